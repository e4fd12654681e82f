// A HostStack under test and packets from its neighbours.
#pragma once

#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "protocols/neigh/host_stack.h"
#include "protocols/wire/arp.h"
#include "protocols/wire/eth.h"
#include "protocols/wire/icmp.h"
#include "protocols/wire/icmpv6.h"
#include "protocols/wire/ipv4.h"
#include "protocols/wire/ipv6.h"
#include "protocols/wire/ndp.h"
#include "protocols/wire/vlan.h"

namespace softrnic::neigh::test {

using Frame = std::vector<std::uint8_t>;

inline constexpr Nanos kMs = 1'000'000;
inline constexpr Nanos kSec = 1'000'000'000;
inline constexpr Mac kOurMac{0x02, 0, 0, 0, 0, 0x01};
inline constexpr Mac kPeerMac{0x02, 0, 0, 0, 0, 0x02};
inline constexpr Mac kOtherMac{0x02, 0, 0, 0, 0, 0x03};
inline constexpr std::uint32_t kOurV4 = 0x0A000001;   // 10.0.0.1
inline constexpr std::uint32_t kPeerV4 = 0x0A000002;  // 10.0.0.2

inline Gid v6(std::uint8_t last) { return {{0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}}; }
inline const Gid kOurV6 = v6(1), kPeerV6 = v6(2);
inline const Gid kPeerLinkLocal = link_local_of(kPeerMac);

inline Frame ethernet(const Mac& dst, const Mac& src, std::uint16_t ethertype, const Frame& body) {
  Frame f(14);
  std::copy(dst.begin(), dst.end(), f.begin());
  std::copy(src.begin(), src.end(), f.begin() + 6);
  store_be16(f.data() + 12, ethertype);
  f.insert(f.end(), body.begin(), body.end());
  return f;
}
inline Frame tagged(Frame f, std::uint16_t vlan) {
  const std::uint8_t tag[4] = {0x81, 0x00, static_cast<std::uint8_t>(vlan >> 8), static_cast<std::uint8_t>(vlan)};
  f.insert(f.begin() + 12, tag, tag + 4);
  return f;
}

inline Frame arp(std::uint16_t op, const Mac& sender, std::uint32_t sender_ip, const Mac& target,
                 std::uint32_t target_ip, const Mac& dst = kBroadcastMac) {
  wire::ArpPacket a;
  a.operation = op;
  std::memcpy(a.sender_mac, sender.data(), 6);
  a.sender_ip = sender_ip;
  std::memcpy(a.target_mac, target.data(), 6);
  a.target_ip = target_ip;
  Frame body(wire::ArpPacket::kSize);
  a.store(body.data());
  body.resize(46);  // padding of a real Ethernet
  return ethernet(dst, sender, wire::kEthertypeArp, body);
}
inline Frame arp_request(std::uint32_t sender_ip, std::uint32_t target_ip, const Mac& sender = kPeerMac) {
  return arp(1, sender, sender_ip, Mac{}, target_ip);
}
inline Frame arp_reply(std::uint32_t sender_ip, const Mac& sender = kPeerMac) {
  return arp(2, sender, sender_ip, kOurMac, kOurV4, kOurMac);
}

inline Frame ipv4(std::uint32_t src, std::uint32_t dst, std::uint8_t protocol, const Frame& payload,
                  const Mac& dst_mac = kOurMac) {
  wire::Ipv4Header ip;
  ip.total_length = static_cast<std::uint16_t>(20 + payload.size());
  ip.protocol = protocol;
  ip.src = src;
  ip.dst = dst;
  Frame body(20);
  ip.store(body.data());
  body.insert(body.end(), payload.begin(), payload.end());
  return ethernet(dst_mac, kPeerMac, wire::kEthertypeIpv4, body);
}
// An ICMP or IGMP message of type and code, the bytes of `rest` behind the checksum.
inline Frame icmp(std::uint8_t type, const Frame& rest, std::uint8_t code = 0) {
  Frame m{type, code, 0, 0};
  m.insert(m.end(), rest.begin(), rest.end());
  wire::icmp_store_checksum(m.data(), m.size());
  return m;
}

inline Frame ipv6(const Gid& src, const Gid& dst, std::uint8_t next, std::uint8_t hop_limit, const Frame& payload,
                  const Mac& dst_mac = kOurMac, const Mac& src_mac = kPeerMac) {
  wire::Ipv6Header ip;
  ip.payload_length = static_cast<std::uint16_t>(payload.size());
  ip.next_header = next;
  ip.hop_limit = hop_limit;
  ip.src = src;
  ip.dst = dst;
  Frame body(40);
  ip.store(body.data());
  body.insert(body.end(), payload.begin(), payload.end());
  return ethernet(dst_mac, src_mac, wire::kEthertypeIpv6, body);
}
inline Frame icmpv6(const Gid& src, const Gid& dst, std::uint8_t hop_limit, std::uint8_t type, const Frame& rest,
                    const Mac& dst_mac = kOurMac) {
  Frame m{type, 0, 0, 0};
  m.insert(m.end(), rest.begin(), rest.end());
  wire::icmpv6_store_checksum(src, dst, m.data(), m.size());
  return ipv6(src, dst, wire::kIpProtoIcmpv6, hop_limit, m, dst_mac);
}
inline Frame ndp(const Gid& src, const Gid& dst, std::uint8_t type, std::uint8_t flags, const Gid& target,
                 std::optional<Mac> mac = kPeerMac, std::uint8_t hop_limit = 255, const Mac& src_mac = kPeerMac) {
  wire::NdpMessage m;
  m.type = type;
  m.flags = flags;
  m.target = target;
  m.has_mac = mac.has_value();
  if (mac) std::memcpy(m.mac, mac->data(), 6);
  Frame body(m.size());
  m.store(body.data(), src, dst);
  return ipv6(src, dst, wire::kIpProtoIcmpv6, hop_limit, body, is_multicast(dst) ? multicast_mac(dst) : kOurMac,
              src_mac);
}
inline Frame solicitation(const Gid& target, std::optional<Mac> mac = kPeerMac, const Gid& src = kPeerV6) {
  return ndp(src, solicited_node_group(target), wire::kNdpSolicitation, 0, target, mac);
}
inline Frame advertisement(std::uint8_t flags, std::optional<Mac> mac = kPeerMac, const Gid& target = kPeerV6) {
  return ndp(target, kOurV6, wire::kNdpAdvertisement, flags, target, mac);
}

// A RoCE-like frame of another layer, addresses in the Ethernet header left open.
inline Frame data_frame(std::uint8_t tag, std::uint16_t ethertype = wire::kEthertypeIpv4) {
  return ethernet(Mac{}, Mac{}, ethertype, Frame(50, tag));
}

class Station {
 public:
  explicit Station(HostOptions o = {})
      : host([&] {
          o.mac = kOurMac;
          return o;
        }()) {}
  // 10.0.0.1/24, fd00::1/64 and the link-local address, with their announcements taken away.
  static Station ready() {
    Station s;
    REQUIRE(s.host.add_address(s.now, {from_ipv4(kOurV4), 24, kNoVlan}));
    REQUIRE(s.host.add_address(s.now, {kOurV6, 64, kNoVlan}));
    REQUIRE(s.host.add_address(s.now, {link_local_of(kOurMac), 64, kNoVlan}));
    s.run_until(s.now + 20 * kSec);
    s.sent();
    return s;
  }

  bool receive(const Frame& f) { return host.on_packet(now, f); }
  // Frames the host wants to send now.
  std::vector<Frame> sent() {
    std::vector<Frame> all = std::move(collected);
    collected.clear();
    std::uint8_t buffer[9216];
    while (const std::size_t n = host.poll_transmit(now, buffer)) all.emplace_back(buffer, buffer + n);
    return all;
  }
  // Lets time pass, timer by timer, and keeps what is sent meanwhile.
  void run_until(Nanos end) {
    while (host.next_timeout() <= end) {
      now = std::max(now, host.next_timeout());
      host.on_timeout(now);
      std::vector<Frame> more = sent();
      collected = std::move(more);
    }
    now = end;
  }
  std::vector<HostEvent> events() {
    std::vector<HostEvent> all;
    HostEvent e;
    while (host.poll_event(&e)) all.push_back(e);
    return all;
  }
  HostStack::Verdict send(const Gid& dst, const Frame& f, Mac* mac = nullptr, std::uint16_t vlan = kNoVlan) {
    Mac unused{};
    return host.send(now, dst, vlan, f, mac != nullptr ? mac : &unused);
  }
  std::optional<NeighbourCache::Info> neighbour(const Gid& ip) const {
    for (const auto& e : host.neighbours().entries())
      if (e.key.ip == ip) return e;
    return std::nullopt;
  }

  HostStack host;
  Nanos now = 1000 * kSec;
  std::vector<Frame> collected;
};

// ---- what a frame says ----
inline Mac dst_of(const Frame& f) { return load_mac(f.data()); }
inline Mac src_of(const Frame& f) { return load_mac(f.data() + 6); }
inline std::uint16_t type_of(const Frame& f) { return load_be16(f.data() + 12); }
inline wire::ArpPacket arp_of(const Frame& f) {
  REQUIRE(type_of(f) == wire::kEthertypeArp);
  REQUIRE(f.size() >= 14 + wire::ArpPacket::kSize);
  REQUIRE(wire::ArpPacket::is_ethernet_ipv4(f.data() + 14));
  return wire::ArpPacket::load(f.data() + 14);
}
inline wire::Ipv6View ip6_of(const Frame& f) {
  REQUIRE(type_of(f) == wire::kEthertypeIpv6);
  REQUIRE(f.size() >= 54);
  return wire::Ipv6View(f.data() + 14);
}
// The ICMPv6 message of a frame, its checksum checked.
inline Frame icmpv6_of(const Frame& f) {
  const wire::Ipv6View ip = ip6_of(f);
  REQUIRE(f.size() == 54u + ip.payload_length());
  Frame m(f.begin() + 54, f.end());
  if (ip.next_header() == 0) m.erase(m.begin(), m.begin() + 8);
  REQUIRE(wire::icmpv6_checksum(ip.src(), ip.dst(), m.data(), m.size()) == 0);
  return m;
}
inline wire::NdpMessage ndp_of(const Frame& f) {
  const Frame m = icmpv6_of(f);
  wire::NdpMessage out;
  REQUIRE(ip6_of(f).hop_limit() == 255);
  REQUIRE(wire::NdpMessage::load(m.data(), m.size(), &out));
  return out;
}
inline std::vector<Frame> of_type(const std::vector<Frame>& frames, std::uint16_t ethertype) {
  std::vector<Frame> some;
  for (const Frame& f : frames)
    if (type_of(f) == ethertype) some.push_back(f);
  return some;
}

}  // namespace softrnic::neigh::test
