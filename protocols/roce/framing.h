// RoCE v2 and v1 framing: what stands around the transport packet on Ethernet (IBA annexes A16, A17).
#pragma once

#include <cstring>

#include "protocols/common/types.h"
#include "protocols/wire/vlan.h"

namespace softrnic::roce {

enum class Version : std::uint8_t { v1, v2 };

inline constexpr std::uint16_t kUdpPort = 4791;  // IANA, RoCE v2
inline constexpr std::uint16_t kEthertypeV1 = 0x8915;

// All that determines the headers of a path. Addresses in network byte order.
struct PathParams {
  Version version = Version::v2;
  std::uint8_t dst_mac[6]{};
  std::uint8_t src_mac[6]{};
  bool has_vlan = false;
  std::uint16_t vlan_id = 0;  // 12 bits
  std::uint8_t priority = 0;  // 802.1p, from the SL
  Gid sgid{};                 // IPv4-mapped: RoCE v2 uses IPv4
  Gid dgid{};
  std::uint8_t traffic_class = 0;  // DSCP[7:2] ECN[1:0]
  std::uint32_t flow_label = 0;    // 20 bits; IPv6 and v1 headers carry it, v2 derives the UDP source port
  std::uint8_t hop_limit = 64;
  std::uint16_t udp_sport = 0xC000;
};

// True for ::ffff:a.b.c.d.
bool is_ipv4_mapped(const Gid& gid);

// UDP source port of a flow label (rdma_flow_label_to_udp_sport): ((fl & 0x3FFF) ^ (fl >> 14)) | 0xC000.
std::uint16_t udp_sport_of_flow_label(std::uint32_t flow_label);
// Flow label derived from a pair of QPNs when the address vector gives 0; symmetric in the two.
std::uint32_t flow_label_of_qpns(std::uint32_t lqpn, std::uint32_t rqpn);

// Destination MAC of a multicast GID: 33:33 + last 4 bytes, or 01:00:5e + low 23 bits for IPv4-mapped.
void multicast_mac(const Gid& mgid, std::uint8_t mac[6]);

struct RxFrame;

// Prebuilt headers of one path. What depends on the size of a packet is kept for the last size: the packets of a
// message, and mostly those of a program, have the same one.
class HeaderTemplate {
 public:
  static constexpr std::uint32_t kMaxSize = 14 + 4 + 40 + 8;
  HeaderTemplate() = default;
  explicit HeaderTemplate(const PathParams& params);

  // Bytes before the BTH: 42 (v2, IPv4), 62 (v2, IPv6), 54 (v1), 4 more with a VLAN tag.
  std::uint32_t size() const { return size_; }

  // Writes the headers for a transport packet of `transport_len` bytes (BTH through pad, without ICRC)
  // to `dst`, which has size() bytes of room.
  void write(std::uint8_t* dst, std::uint32_t transport_len) {
    set_length(transport_len);
    // Copies of fixed sizes that overlap: a copy of size_ bytes would be a call.
    std::memcpy(dst, bytes_, 32);
    if (size_ > 64) std::memcpy(dst + 32, bytes_ + 32, 16);
    std::memcpy(dst + size_ - 32, bytes_ + size_ - 32, 32);
  }

  // ICRC of a complete frame whose headers were written by write(); `frame` starts at the Ethernet
  // header, the transport packet of `transport_len` bytes stands behind it. Value as stored:
  // store it least significant byte first.
  std::uint32_t icrc(const std::uint8_t* frame, std::uint32_t transport_len);

  // The template that the headers of a received frame come from; `frame` is the whole of it and parse() has accepted
  // it.
  static HeaderTemplate of(Bytes frame, const RxFrame& f);
  // True when the headers of `frame` are what write() makes for its size, and a transport packet of a size that parse()
  // accepts stands behind them. Such a frame needs no parsing: all but its lengths is known.
  bool matches(Bytes frame);

 private:
  void set_length(std::uint32_t transport_len) {
    if (transport_len != transport_len_) patch(transport_len);
  }
  void prepare();
  void patch(std::uint32_t transport_len);

  std::uint8_t bytes_[kMaxSize]{};
  std::uint8_t size_ = 0;
  std::uint8_t l3_ = 0;  // offset of the IP header or GRH
  bool ipv4_ = false;
  bool udp_ = false;
  std::uint32_t ip_sum_ = 0;         // IPv4 header sum without the total length
  std::uint32_t icrc_base_ = 0;      // CRC state at the BTH, the length fields counting as zero
  std::uint32_t transport_len_ = 0;  // that the length fields in bytes_ are for; 0: they are zero
  std::uint32_t icrc_state_ = 0;     // CRC state at the BTH with them
};

// Why a frame was not taken in. Each has a counter of that name.
enum class FrameError : std::uint8_t {
  none,
  too_short,
  not_roce,               // another ethertype, protocol or port
  bad_ip_header,          // version, IHL, checksum, total length against frame length
  fragmented,             // RoCE v2 forbids IP fragments
  bad_length,             // UDP or GRH length against frame length; not a multiple of 4
  bad_transport_version,  // BTH TVer != 0
  bad_icrc,
};

// A received frame taken apart. Points into the frame; nothing is copied.
struct RxFrame {
  Version version = Version::v2;
  Gid sgid{};  // source and destination as GIDs (IPv4 as mapped)
  Gid dgid{};
  bool has_vlan = false;
  std::uint16_t vlan_tci = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  const std::uint8_t* l3 = nullptr;  // IP header or GRH
  bool ipv4 = false;
  Bytes transport;  // BTH through pad; at least 12 bytes

  // The VLAN it is in; wire::kNoVlan: none.
  std::uint16_t vlan() const { return has_vlan ? wire::VlanTag::vlan_of(vlan_tci) : wire::kNoVlan; }
};

// Parses a frame up to the BTH and checks all lengths. Trailing Ethernet padding is tolerated. Does not
// touch the payload.
FrameError parse(Bytes frame, RxFrame* out);

// The ICRC of a packet, computed over the frame. Value as stored: store it least significant byte first.
std::uint32_t icrc_of(const RxFrame& f);

// Compares the ICRC that follows `f.transport` with a computation over the frame.
bool icrc_ok(const RxFrame& f);

// Fills the 40 bytes that a UD receive places before the payload: an IPv6 header or GRH as it is; an
// IPv4 header in the last 20 bytes behind 20 zero bytes (RoCE v2 annex A17.9.2).
void write_grh_area(const RxFrame& f, std::uint8_t out[40]);

}  // namespace softrnic::roce
