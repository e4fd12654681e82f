#include "protocols/roce/framing.h"

#include <cstring>

#include "protocols/common/bytes.h"
#include "protocols/wire/eth.h"
#include "protocols/wire/grh.h"
#include "protocols/wire/icrc.h"
#include "protocols/wire/ipv4.h"
#include "protocols/wire/ipv6.h"
#include "protocols/wire/udp.h"
#include "protocols/wire/vlan.h"

namespace softrnic::roce {

using wire::EthHeader;
using wire::EthView;
using wire::Ipv4Header;
using wire::Ipv4View;
using wire::Ipv6Header;
using wire::Ipv6View;
using wire::UdpHeader;
using wire::UdpView;

static_assert(kEthertypeV1 == wire::kEthertypeRoceV1);

namespace {

constexpr std::uint32_t kBthSize = 12;
constexpr std::uint32_t kIcrcSize = 4;
constexpr std::uint32_t kMinTransport = kBthSize + kIcrcSize;
constexpr std::uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

std::uint32_t ipv4_of(const Gid& gid) { return load_be32(gid.raw + 12); }

Gid mapped_gid(const std::uint8_t* ipv4) {
  Gid g;
  std::memcpy(g.raw, kMappedPrefix, 12);
  std::memcpy(g.raw + 12, ipv4, 4);
  return g;
}

constexpr std::uint32_t kV4Headers = Ipv4Header::kSize + UdpHeader::kSize;
constexpr std::uint32_t kV6Headers = Ipv6Header::kSize + UdpHeader::kSize;
constexpr std::uint32_t kV1Headers = wire::GrhHeader::kSize;

// Bits that count as ones in the ICRC: eight bytes in the place of the LRH, the fields of the network
// headers that routers change (IBA A17.3.3 for v2, 7.8.1 for the GRH of v1), and the fifth byte of the BTH.
struct IcrcMask {
  static constexpr std::uint32_t kLrh = 8;
  std::uint8_t bytes[kLrh + kV6Headers];
};
constexpr IcrcMask ipv4_mask() {
  IcrcMask m{};
  for (std::uint32_t i = 0; i < IcrcMask::kLrh; ++i) m.bytes[i] = 0xFF;
  std::uint8_t* l3 = m.bytes + IcrcMask::kLrh;
  l3[1] = 0xFF;                    // TOS
  l3[8] = 0xFF;                    // TTL
  l3[10] = l3[11] = 0xFF;          // header checksum
  l3[20 + 6] = l3[20 + 7] = 0xFF;  // UDP checksum
  l3[kV4Headers + 4] = 0xFF;       // FECN, BECN, reserved
  return m;
}
constexpr IcrcMask ipv6_mask() {
  IcrcMask m{};
  for (std::uint32_t i = 0; i < IcrcMask::kLrh; ++i) m.bytes[i] = 0xFF;
  std::uint8_t* l3 = m.bytes + IcrcMask::kLrh;
  l3[0] = 0x0F;  // traffic class, flow label
  l3[1] = l3[2] = l3[3] = 0xFF;
  l3[7] = 0xFF;                    // hop limit
  l3[40 + 6] = l3[40 + 7] = 0xFF;  // UDP checksum; a GRH is followed by no UDP header
  return m;
}
constexpr IcrcMask kIpv4Mask = ipv4_mask();
constexpr IcrcMask kIpv6Mask = ipv6_mask();

// State of the CRC after `Size` bytes at `p`, masked. With Size a multiple of 16 the copy is made of whole
// vectors, which the CRC then loads as they were stored: anything else costs a store-forwarding stall.
template <std::uint32_t Size>
std::uint32_t icrc_masked(std::uint32_t state, const std::uint8_t* p, const std::uint8_t* mask) {
  using Vector = std::uint8_t __attribute__((vector_size(16)));
  alignas(16) std::uint8_t masked[Size];
  std::uint32_t i = 0;
  for (; i + 16 <= Size; i += 16) {
    Vector a, b;
    std::memcpy(&a, p + i, 16);
    std::memcpy(&b, mask + i, 16);
    a |= b;
    std::memcpy(masked + i, &a, 16);
  }
  for (; i < Size; ++i) masked[i] = p[i] | mask[i];
  return wire::icrc_update(state, masked, Size);
}

// State at the BTH, for network headers at `l3`.
std::uint32_t icrc_state_at_bth(const std::uint8_t* l3, bool ipv4, bool udp) {
  if (ipv4) return icrc_masked<kV4Headers>(wire::kIcrcAfterLrh, l3, kIpv4Mask.bytes + IcrcMask::kLrh);
  if (udp) return icrc_masked<kV6Headers>(wire::kIcrcAfterLrh, l3, kIpv6Mask.bytes + IcrcMask::kLrh);
  return icrc_masked<IcrcMask::kLrh + kV1Headers>(wire::kIcrcSeed, l3 - IcrcMask::kLrh, kIpv6Mask.bytes);
}

// State behind the BTH, for network headers at `l3` in a frame. The bytes before the network headers belong
// to the Ethernet header; the mask makes them the LRH.
std::uint32_t icrc_state_behind_bth(const std::uint8_t* l3, bool ipv4, bool udp) {
  constexpr std::uint32_t kWithBth = IcrcMask::kLrh + kV4Headers + kBthSize;
  static_assert(kWithBth % 16 == 0);
  if (ipv4) return icrc_masked<kWithBth>(wire::kIcrcSeed, l3 - IcrcMask::kLrh, kIpv4Mask.bytes);
  return wire::icrc_update_bth(icrc_state_at_bth(l3, false, udp), l3 + (udp ? kV6Headers : kV1Headers));
}

// ICRC of a packet of which `length` bytes, the last of them pad, stand behind the BTH.
std::uint32_t icrc_finish(std::uint32_t state_behind_bth, const std::uint8_t* p, std::size_t length) {
  return wire::icrc_value(wire::icrc_update(state_behind_bth, p, length));
}

}  // namespace

bool is_ipv4_mapped(const Gid& gid) { return std::memcmp(gid.raw, kMappedPrefix, sizeof kMappedPrefix) == 0; }

std::uint16_t udp_sport_of_flow_label(std::uint32_t flow_label) {
  flow_label &= 0xFFFFF;
  return static_cast<std::uint16_t>(((flow_label & 0x3FFF) ^ (flow_label >> 14)) | 0xC000);
}

std::uint32_t flow_label_of_qpns(std::uint32_t lqpn, std::uint32_t rqpn) {
  std::uint64_t v = static_cast<std::uint64_t>(lqpn) * rqpn;
  v ^= v >> 20;
  v ^= v >> 40;
  return static_cast<std::uint32_t>(v & 0xFFFFF);
}

void multicast_mac(const Gid& mgid, std::uint8_t mac[6]) {
  if (is_ipv4_mapped(mgid)) {  // RFC 1112 s6.4
    mac[0] = 0x01;
    mac[1] = 0x00;
    mac[2] = 0x5E;
    mac[3] = mgid.raw[13] & 0x7F;
    mac[4] = mgid.raw[14];
    mac[5] = mgid.raw[15];
  } else {  // RFC 2464 s7
    mac[0] = mac[1] = 0x33;
    std::memcpy(mac + 2, mgid.raw + 12, 4);
  }
}

HeaderTemplate::HeaderTemplate(const PathParams& params) {
  udp_ = params.version == Version::v2;
  ipv4_ = udp_ && is_ipv4_mapped(params.dgid);
  const std::uint16_t inner = !udp_ ? kEthertypeV1 : ipv4_ ? wire::kEthertypeIpv4 : wire::kEthertypeIpv6;

  EthHeader eth;
  std::memcpy(eth.dst, params.dst_mac, 6);
  std::memcpy(eth.src, params.src_mac, 6);
  eth.ethertype = params.has_vlan ? wire::kEthertypeVlan : inner;
  eth.store(bytes_);
  l3_ = EthHeader::kSize;
  if (params.has_vlan) {
    wire::VlanTag{wire::VlanTag::make_tci(params.priority, params.vlan_id), inner}.store(bytes_ + l3_);
    l3_ += wire::VlanTag::kSize;
  }

  std::uint8_t* l3 = bytes_ + l3_;
  if (ipv4_) {
    Ipv4Header ip;  // IBA A17.3.1: DF set; id 0, as atomic datagrams need none (RFC 6864 s4.1)
    ip.tos = params.traffic_class;
    ip.ttl = params.hop_limit;
    ip.protocol = wire::kIpProtoUdp;
    ip.src = ipv4_of(params.sgid);
    ip.dst = ipv4_of(params.dgid);
    ip.store(l3);
    store_be16(l3 + 10, 0);
    size_ = static_cast<std::uint8_t>(l3_ + Ipv4Header::kSize);
  } else {
    Ipv6Header ip;
    ip.traffic_class = params.traffic_class;
    ip.flow_label = params.flow_label;
    ip.next_header = udp_ ? wire::kIpProtoUdp : wire::kGrhNextHeaderIba;
    ip.hop_limit = params.hop_limit;
    ip.src = params.sgid;
    ip.dst = params.dgid;
    ip.store(l3);
    size_ = static_cast<std::uint8_t>(l3_ + Ipv6Header::kSize);
  }
  if (udp_) {
    UdpHeader{params.udp_sport, kUdpPort, 0, 0}.store(bytes_ + size_);
    size_ += UdpHeader::kSize;
  }
  prepare();
}

// What patch() starts from: the length fields and the IPv4 checksum are zero.
void HeaderTemplate::prepare() {
  const std::uint8_t* l3 = bytes_ + l3_;
  if (ipv4_) ip_sum_ = wire::inet_fold(wire::inet_sum(l3, Ipv4Header::kSize));
  icrc_base_ = icrc_state_at_bth(l3, ipv4_, udp_);
}

HeaderTemplate HeaderTemplate::of(Bytes frame, const RxFrame& f) {
  HeaderTemplate t;
  t.size_ = static_cast<std::uint8_t>(f.transport.data() - frame.data());
  t.l3_ = static_cast<std::uint8_t>(f.l3 - frame.data());
  t.ipv4_ = f.ipv4;
  t.udp_ = f.version == Version::v2;
  std::memcpy(t.bytes_, frame.data(), t.size_);
  std::uint8_t* l3 = t.bytes_ + t.l3_;
  if (t.ipv4_) {
    store_be16(l3 + 2, 0);
    store_be16(l3 + 10, 0);
  } else {
    store_be16(l3 + 4, 0);
  }
  if (t.udp_) store_be16(t.bytes_ + t.size_ - 4, 0);
  t.prepare();
  return t;
}

bool HeaderTemplate::matches(Bytes frame) {
  if (size_ == 0 || frame.size() < size_ + kMinTransport || (frame.size() - size_) % 4 != 0) return false;
  set_length(static_cast<std::uint32_t>(frame.size() - size_ - kIcrcSize));
  const std::uint8_t* p = frame.data();
  std::uint64_t differences = 0;
  // Words that overlap: the sizes are 42 bytes and more.
  const auto compare = [&](std::uint32_t at) {
    std::uint64_t a, b;
    std::memcpy(&a, bytes_ + at, 8);
    std::memcpy(&b, p + at, 8);
    differences |= a ^ b;
  };
  for (std::uint32_t at = 0; at < 32; at += 8) compare(at);
  for (std::uint32_t at = 32; at + 8 < size_; at += 8) compare(at);
  compare(size_ - 8u);
  return differences == 0 && (p[size_ + 1] & 0x0F) == 0;
}

// Sets the length fields, the IPv4 checksum, and the CRC state: that of the template plus what the fields add to it.
void HeaderTemplate::patch(std::uint32_t transport_len) {
  transport_len_ = transport_len;
  std::uint8_t* l3 = bytes_ + l3_;
  icrc_state_ = icrc_base_;
  std::uint32_t length = transport_len + kIcrcSize;
  if (udp_) {
    length += UdpHeader::kSize;
    store_be16(bytes_ + size_ - 4, static_cast<std::uint16_t>(length));
    icrc_state_ ^= wire::icrc_field16<2>(static_cast<std::uint16_t>(length));
  }
  if (ipv4_) {
    length += Ipv4Header::kSize;
    store_be16(l3 + 2, static_cast<std::uint16_t>(length));
    store_be16(l3 + 10, static_cast<std::uint16_t>(~wire::inet_fold(ip_sum_ + length)));
    icrc_state_ ^= wire::icrc_field16<kV4Headers - 4>(static_cast<std::uint16_t>(length));
    return;
  }
  store_be16(l3 + 4, static_cast<std::uint16_t>(length));
  icrc_state_ ^= udp_ ? wire::icrc_field16<kV6Headers - 6>(static_cast<std::uint16_t>(length))
                      : wire::icrc_field16<kV1Headers - 6>(static_cast<std::uint16_t>(length));
}

std::uint32_t HeaderTemplate::icrc(const std::uint8_t* frame, std::uint32_t transport_len) {
  set_length(transport_len);
  return wire::icrc_value(wire::icrc_update_transport(icrc_state_, frame + size_, transport_len));
}

namespace {

// IBA A17.3.1: IPv4 header, no options, no fragments. On none, `*udp` is what the packet holds behind the header.
FrameError parse_ipv4(Bytes packet, RxFrame* out, Bytes* udp) {
  if (packet.size() < Ipv4Header::kSize) return FrameError::too_short;
  const Ipv4View ip(packet.data());
  const std::size_t total = ip.total_length();
  if (ip.version() != 4 || ip.header_length() < Ipv4Header::kSize) return FrameError::bad_ip_header;
  if (ip.protocol() != wire::kIpProtoUdp) return FrameError::not_roce;
  if (ip.fragment_offset() != 0) return FrameError::fragmented;  // of which port, nobody can say
  if (total > packet.size() || total < ip.header_length()) return FrameError::bad_ip_header;
  packet = packet.first(total);
  if (packet.size() < ip.header_length() + UdpHeader::kSize) return FrameError::too_short;
  if (UdpView(packet.data() + ip.header_length()).dst_port() != kUdpPort) return FrameError::not_roce;
  if (ip.header_length() != Ipv4Header::kSize || !ip.checksum_ok()) return FrameError::bad_ip_header;
  if (ip.is_fragment()) return FrameError::fragmented;
  out->ipv4 = true;
  out->traffic_class = ip.tos();
  out->hop_limit = ip.ttl();
  out->sgid = mapped_gid(ip.src());
  out->dgid = mapped_gid(ip.dst());
  *udp = packet.subspan(Ipv4Header::kSize);
  return FrameError::none;
}

// An IPv6 header or GRH. On none, `*payload` is what stands behind it, as long as the header says.
FrameError parse_ipv6(Bytes packet, std::uint8_t next_header, FrameError length_error, RxFrame* out, Bytes* payload) {
  if (packet.size() < Ipv6Header::kSize) return FrameError::too_short;
  const Ipv6View ip(packet.data());
  const std::size_t length = ip.payload_length();
  if (ip.version() != 6) return FrameError::bad_ip_header;
  if (ip.next_header() == wire::kIpv6FragmentHeader) return FrameError::fragmented;
  if (ip.next_header() != next_header) return FrameError::not_roce;
  if (length > packet.size() - Ipv6Header::kSize) return length_error;
  out->ipv4 = false;
  out->traffic_class = ip.traffic_class();
  out->hop_limit = ip.hop_limit();
  out->sgid = ip.src();
  out->dgid = ip.dst();
  *payload = packet.subspan(Ipv6Header::kSize, length);
  return FrameError::none;
}

// The UDP checksum is not looked at: the ICRC covers more, and masks it (IBA A17.3.3).
FrameError parse_udp(Bytes udp, Bytes* payload) {
  if (udp.size() < UdpHeader::kSize) return FrameError::too_short;
  const UdpView header(udp.data());
  if (header.dst_port() != kUdpPort) return FrameError::not_roce;
  if (header.length() != udp.size()) return FrameError::bad_length;
  *payload = udp.subspan(UdpHeader::kSize);
  return FrameError::none;
}

FrameError parse_network(std::uint16_t ethertype, Bytes packet, RxFrame* out, Bytes* transport_and_icrc) {
  out->l3 = packet.data();
  out->version = ethertype == kEthertypeV1 ? Version::v1 : Version::v2;
  Bytes udp;
  FrameError e;
  switch (ethertype) {
    case wire::kEthertypeIpv4:
      e = parse_ipv4(packet, out, &udp);
      return e != FrameError::none ? e : parse_udp(udp, transport_and_icrc);
    case wire::kEthertypeIpv6:
      e = parse_ipv6(packet, wire::kIpProtoUdp, FrameError::bad_ip_header, out, &udp);
      return e != FrameError::none ? e : parse_udp(udp, transport_and_icrc);
    case kEthertypeV1:
      return parse_ipv6(packet, wire::kGrhNextHeaderIba, FrameError::bad_length, out, transport_and_icrc);
    default:
      return FrameError::not_roce;
  }
}

}  // namespace

FrameError parse(Bytes frame, RxFrame* out) {
  if (frame.size() < EthHeader::kSize) return FrameError::too_short;
  std::uint16_t ethertype = EthView(frame.data()).ethertype();
  Bytes packet = frame.subspan(EthHeader::kSize);
  out->has_vlan = ethertype == wire::kEthertypeVlan;
  out->vlan_tci = 0;
  if (out->has_vlan) {
    if (packet.size() < wire::VlanTag::kSize) return FrameError::too_short;
    const wire::VlanView tag(packet.data());
    out->vlan_tci = tag.tci();
    ethertype = tag.ethertype();
    packet = packet.subspan(wire::VlanTag::kSize);
  }

  Bytes transport;
  if (const FrameError e = parse_network(ethertype, packet, out, &transport); e != FrameError::none) return e;
  if (transport.size() < kMinTransport) return FrameError::too_short;
  if (transport.size() % 4 != 0) return FrameError::bad_length;
  if ((transport[1] & 0x0F) != 0) return FrameError::bad_transport_version;  // IBA 9.6.1.1
  out->transport = transport.first(transport.size() - kIcrcSize);
  return FrameError::none;
}

std::uint32_t icrc_of(const RxFrame& f) {
  const std::uint32_t state = icrc_state_behind_bth(f.l3, f.ipv4, f.version == Version::v2);
  const Bytes rest = f.transport.subspan(kBthSize);
  return icrc_finish(state, rest.data(), rest.size());
}

bool icrc_ok(const RxFrame& f) {
  return icrc_of(f) == wire::detail::load_le32(f.transport.data() + f.transport.size());
}

void write_grh_area(const RxFrame& f, std::uint8_t out[40]) {
  if (f.ipv4) {  // IBA A17.9.2
    std::memset(out, 0, 20);
    std::memcpy(out + 20, f.l3, 20);
  } else {
    std::memcpy(out, f.l3, 40);
  }
}

}  // namespace softrnic::roce
