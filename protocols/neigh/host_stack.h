// What makes a NIC a host on an Ethernet: its addresses, ARP (RFC 826, RFC 5227), Neighbour Discovery (RFC 4861, RFC
// 4862), echo (RFC 792, RFC 4443), group membership (RFC 3376, RFC 2236, RFC 3810) and routes. Sans-IO:
//
//   on_packet(now, frame)       a frame arrived; true when it was for this object
//   poll_transmit(now, out)     the next frame to send
//   next_timeout()              when on_timeout wants to be called; it may then have nothing to do
//   on_timeout(now)
//   poll_event(out)             address and neighbour events
//
// and for everybody else's frames: send(), which finds the next hop and its link-layer address.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "protocols/neigh/address.h"
#include "protocols/neigh/neighbour_cache.h"
#include "protocols/neigh/route_table.h"
#include "protocols/wire/arp.h"
#include "protocols/wire/icmp.h"
#include "protocols/wire/ndp.h"

namespace softrnic::neigh {

struct HostOptions {
  Mac mac{};
  std::uint32_t mtu = 1500;        // bytes of an IP packet
  bool detect_duplicates = false;  // probe for an address before it is used (RFC 4862 s5.4, RFC 5227 s2.1)
  NeighbourTiming timing;
  std::uint64_t seed = 1;  // of random delays
};

// An address of the host itself and the prefix that is on the link with it.
struct OwnAddress {
  Gid ip{};
  std::uint8_t prefix_length = 0;  // as in Route
  std::uint16_t vlan = kNoVlan;
};

struct HostEvent {
  enum class Kind : std::uint8_t {
    address_ready,      // duplicate detection found nobody
    address_duplicate,  // it found somebody (`mac`): the address is not used
    address_conflict,   // another station (`mac`) claims an address in use
    neighbour_failed,   // did not answer
  };
  Kind kind = Kind::address_ready;
  Gid ip{};
  std::uint16_t vlan = kNoVlan;
  Mac mac{};
};

struct HostCounters {
  std::uint64_t malformed = 0;  // bad lengths or checksums in what was for this object
  std::uint64_t echo_requests = 0;
  std::uint64_t no_route = 0;        // send(): frames without a next hop
  std::uint64_t unreachable = 0;     // send(): frames to neighbours that do not answer
  std::uint64_t output_dropped = 0;  // answers not sent because too many waited
};

class HostStack {
 public:
  static constexpr std::size_t kMaxOutput = 256;  // frames of its own that wait to be taken
  static constexpr std::size_t kMaxGroups = 4096;

  explicit HostStack(const HostOptions& options);

  // ---- configuration -------------------------------------------------------------------------------------------
  // Adds an address with its on-link prefix, and announces it (unless it must be probed for first). False when it is
  // there already, is no unicast address, or the prefix is too long.
  bool add_address(Nanos now, const OwnAddress& address);
  bool remove_address(Nanos now, const Gid& ip, std::uint16_t vlan);
  // The host's address with this IP, null when there is none or it is not (yet) usable.
  const OwnAddress* own(const Gid& ip, std::uint16_t vlan) const;
  std::vector<OwnAddress> addresses() const;   // the usable ones
  std::vector<OwnAddress> configured() const;  // those that are still probed for, too
  RouteTable& routes() { return routes_; }

  // Membership of a multicast group, counted; reported to routers and snooping switches. False: too many groups.
  bool join(Nanos now, const Gid& group, std::uint16_t vlan);
  void leave(Nanos now, const Gid& group, std::uint16_t vlan);
  bool member(const Gid& group, std::uint16_t vlan) const;

  const Mac& mac() const { return options_.mac; }
  std::uint32_t mtu() const { return options_.mtu; }
  const NeighbourCache& neighbours() const { return cache_; }
  const HostCounters& counters() const { return counters_; }

  // ---- frames of others --------------------------------------------------------------------------------------
  enum class Verdict : std::uint8_t {
    ready,        // send it to *mac
    held,         // copied; comes out of poll_transmit with the right addresses when the neighbour answered
    unreachable,  // drop it
  };
  // `frame` is an Ethernet frame in VLAN `vlan` (tagged so) for the IP address `dst`.
  Verdict send(Nanos now, const Gid& dst, std::uint16_t vlan, Bytes frame, Mac* mac);

  // ---- the five calls ---------------------------------------------------------------------------------------------
  bool on_packet(Nanos now, Bytes frame);
  // Fills `out` and returns the length, 0 when there is nothing to send. Frames that do not fit are dropped.
  std::size_t poll_transmit(Nanos now, MutableBytes out);
  Nanos next_timeout() const;
  void on_timeout(Nanos now);
  bool poll_event(HostEvent* out);

 private:
  struct Own {
    OwnAddress address;
    bool tentative = false;
    unsigned steps = 0;  // probes or announcements still to send
    Nanos due = kNever;  // of the next one; tentative without steps: end of the detection
    Nanos defended = 0;  // last answer to a conflict
  };
  struct Group {
    Gid ip{};
    std::uint16_t vlan = kNoVlan;
    unsigned users = 0;  // 0: being left
    wire::GroupRecord record = wire::GroupRecord::change_to_exclude;
    unsigned repeats = 0;
    Nanos due = kNever;
  };
  struct Querier {  // an IGMPv2 router was heard in this VLAN (RFC 3376 s7.2.1)
    std::uint16_t vlan = kNoVlan;
    Nanos until = 0;
  };
  // A frame taken apart as far as the network layer.
  struct Input {
    Mac src{}, dst{};
    std::uint16_t vlan = kNoVlan;
    std::uint16_t ethertype = 0;
    Bytes body;
  };

  // host_stack.cpp
  Own* find(const Gid& ip, std::uint16_t vlan);
  const Own* find(const Gid& ip, std::uint16_t vlan) const;
  bool on_link(const Gid& ip, std::uint16_t vlan) const;
  Gid source_for(const Gid& dst, std::uint16_t vlan) const;
  Gid link_local_in(std::uint16_t vlan) const;
  std::uint8_t* new_frame(const Mac& dst, std::uint16_t vlan, std::uint16_t ethertype, std::size_t body);
  std::uint8_t* new_ipv6(const Mac& mac, std::uint16_t vlan, const Gid& src, const Gid& dst, std::uint8_t next_header,
                         std::uint8_t hop_limit, std::size_t payload);
  void announce(const Own& own);
  void probe(const Own& own);
  void solicit(const NeighbourCache::Solicit& s);
  void step(Nanos now, Own& own);
  void conflict(Nanos now, Own& own, const Mac& mac);
  Nanos random_delay(Nanos most);

  // host_input.cpp
  bool on_arp(Nanos now, const Input& in);
  bool on_ipv4(Nanos now, const Input& in);
  bool on_ipv6(Nanos now, const Input& in);
  void on_ndp(Nanos now, const Input& in, const Gid& src, const Gid& dst, Bytes message);
  void on_solicitation(Nanos now, const Input& in, const Gid& src, const wire::NdpMessage& m);
  void reply_echo4(const Input& in, const Gid& src, const Gid& dst, Bytes message);
  void reply_echo6(const Input& in, const Gid& src, const Gid& dst, Bytes message);
  void send_arp_reply(const Input& in, const wire::ArpPacket& request);
  bool malformed();

  // host_groups.cpp
  void on_igmp(Nanos now, const Input& in, const Gid& dst, Bytes message);
  void on_mld(Nanos now, const Input& in, const Gid& src, Bytes message);
  void on_query(Nanos now, const Gid& group, bool ipv4, std::uint16_t vlan, Nanos max_delay);
  void report_groups(Nanos now);
  void report_igmp_v2(const Group& g);
  void report_igmp_v3(std::uint16_t vlan, const std::vector<const Group*>& groups);
  void report_mld(std::uint16_t vlan, const std::vector<const Group*>& groups);
  bool igmp_v2_querier(Nanos now, std::uint16_t vlan) const;

  const HostOptions options_;
  std::uint64_t random_;
  NeighbourCache cache_;
  RouteTable routes_;
  std::vector<Own> own_;
  std::vector<Group> groups_;
  std::vector<Querier> queriers_;
  std::deque<std::vector<std::uint8_t>> output_;
  std::deque<HostEvent> events_;
  std::vector<std::uint8_t> discard_;  // what new_frame() gives out when too much waits: written, never sent
  HostCounters counters_;
};

}  // namespace softrnic::neigh
