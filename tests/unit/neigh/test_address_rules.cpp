// Duplicate address detection and the times of Neighbour Discovery, rule by rule. test_arp.cpp and test_neighbour.cpp
// have the exchanges.
#include <algorithm>

#include "station.h"

using namespace softrnic;
using namespace softrnic::neigh;
using namespace softrnic::neigh::test;
using Verdict = HostStack::Verdict;
using State = NeighbourState;

namespace {

Station detecting() {
  HostOptions o;
  o.detect_duplicates = true;
  return Station(o);
}

// A host that probes for an address.
Station probing_for(const Gid& ip, std::uint8_t prefix) {
  Station s = detecting();
  REQUIRE(s.host.add_address(s.now, {ip, prefix, kNoVlan}));
  return s;
}

// The address is given up because of `mac`, and nothing is said about it any more.
void check_given_up(Station& s, const Gid& ip, const Mac& mac) {
  const auto events = s.events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == HostEvent::Kind::address_duplicate);
  CHECK(events[0].ip == ip);
  CHECK(events[0].mac == mac);
  s.sent();
  s.run_until(s.now + 20 * kSec);
  CHECK(s.host.own(ip, kNoVlan) == nullptr);
  for (const Frame& f : s.sent()) CHECK((!is_ipv4(ip) && ip6_of(f).next_header() == 0));  // at most MLD leaves
}

struct Sent {
  Nanos at;
  Frame frame;
};
// What is sent until `end`, and when.
std::vector<Sent> timeline(Station& s, Nanos end) {
  std::vector<Sent> all;
  const auto take = [&] {
    for (Frame& f : s.sent()) all.push_back({s.now, std::move(f)});
  };
  take();
  while (s.host.next_timeout() <= end) {
    s.now = std::max(s.now, s.host.next_timeout());
    s.host.on_timeout(s.now);
    take();
  }
  s.now = end;
  return all;
}

}  // namespace

TEST_CASE("RFC 5227 1.1: three probes a second apart, after two seconds two announcements two seconds apart", "[arp]") {
  Station s = probing_for(from_ipv4(kOurV4), 24);
  const Nanos start = s.now;
  std::vector<Nanos> probes, announcements;
  for (const Sent& p : timeline(s, start + 60 * kSec)) {
    (arp_of(p.frame).sender_ip == 0 ? probes : announcements).push_back(p.at - start);
  }
  CHECK(probes == std::vector<Nanos>{0, kSec, 2 * kSec});
  CHECK(announcements == std::vector<Nanos>{4 * kSec, 6 * kSec});
}

TEST_CASE("RFC 5227 2.1.1: a probe has no sender address and is broadcast", "[arp]") {
  Station s = probing_for(from_ipv4(kOurV4), 24);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(dst_of(out[0]) == kBroadcastMac);
  CHECK(src_of(out[0]) == kOurMac);
  const wire::ArpPacket a = arp_of(out[0]);
  CHECK(a.operation == wire::ArpPacket::kRequest);
  CHECK(load_mac(a.sender_mac) == kOurMac);
  CHECK(a.sender_ip == 0);
  CHECK(load_mac(a.target_mac) == Mac{});
  CHECK(a.target_ip == kOurV4);
}

TEST_CASE("RFC 5227 2.1.1: while probing, any packet of the address's owner and any other probe is a conflict",
          "[arp]") {
  const Gid ip = from_ipv4(kOurV4);
  Station s = probing_for(ip, 24);
  SECTION("a request of the owner") { s.receive(arp_request(kOurV4, kPeerV4)); }
  SECTION("an announcement of the owner") { s.receive(arp_request(kOurV4, kOurV4)); }
  SECTION("a reply to somebody else") { s.receive(arp(2, kPeerMac, kOurV4, kOtherMac, kPeerV4)); }
  SECTION("a probe of another station") { s.receive(arp_request(0, kOurV4)); }
  check_given_up(s, ip, kPeerMac);
}

TEST_CASE("RFC 5227 2.1.1: own probes that come back and requests for the address are no conflict", "[arp]") {
  const Gid ip = from_ipv4(kOurV4);
  Station s = probing_for(ip, 24);
  for (const Frame& f : s.sent()) s.receive(f);
  s.receive(arp_request(kPeerV4, kOurV4));
  s.receive(arp_request(0, kPeerV4));  // probes for something else
  s.run_until(s.now + 20 * kSec);
  CHECK(s.host.own(ip, kNoVlan) != nullptr);
  REQUIRE(s.events().size() == 1);
}

TEST_CASE("RFC 4862 5.1: one probe, and the address is used a second later", "[ndp]") {
  Station s = probing_for(kOurV6, 64);
  const Nanos start = s.now;
  std::vector<Nanos> probes, announcements;
  for (const Sent& p : timeline(s, start + 60 * kSec)) {
    if (ip6_of(p.frame).next_header() != wire::kIpProtoIcmpv6) continue;  // MLD
    (ndp_of(p.frame).type == wire::kNdpSolicitation ? probes : announcements).push_back(p.at - start);
  }
  CHECK(probes == std::vector<Nanos>{0});
  REQUIRE_FALSE(announcements.empty());
  CHECK(announcements[0] == kSec);
}

TEST_CASE("RFC 4862 5.4.2: the probe goes from nowhere to the solicited-node group, which is joined before", "[ndp]") {
  Station s = probing_for(kOurV6, 64);
  CHECK(s.host.member(solicited_node_group(kOurV6), kNoVlan));
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(is_unspecified(ip6_of(out[0]).src()));
  CHECK(ip6_of(out[0]).dst() == solicited_node_group(kOurV6));
  CHECK(dst_of(out[0]) == multicast_mac(solicited_node_group(kOurV6)));
  const wire::NdpMessage ns = ndp_of(out[0]);
  CHECK(ns.type == wire::kNdpSolicitation);
  CHECK(ns.target == kOurV6);
  CHECK_FALSE(ns.has_mac);
}

TEST_CASE("RFC 4862 5.4.3: a tentative address: probes of others are duplicates, other solicitations are ignored",
          "[ndp]") {
  Station s = probing_for(kOurV6, 64);
  s.sent();
  SECTION("a probe of another station") {
    s.receive(solicitation(kOurV6, std::nullopt, Gid{}));
    check_given_up(s, kOurV6, kPeerMac);
    CHECK_FALSE(s.host.member(solicited_node_group(kOurV6), kNoVlan));
  }
  SECTION("a solicitation") {
    s.receive(solicitation(kOurV6));
    CHECK(s.sent().empty());
    CHECK(s.events().empty());
    CHECK(s.host.neighbours().size() == 0);
    s.run_until(s.now + kSec);
    CHECK(s.host.own(kOurV6, kNoVlan) != nullptr);
  }
  SECTION("the own probe, come back") {
    Station again = probing_for(kOurV6, 64);
    for (const Frame& f : again.sent()) again.receive(f);
    CHECK(again.events().empty());
  }
}

TEST_CASE("RFC 4862 5.4.4: an advertisement for a tentative address is a duplicate, for a valid one a conflict",
          "[ndp]") {
  const Frame claim = ndp(kOurV6, solicited_node_group(kOurV6), wire::kNdpAdvertisement, wire::NdpMessage::kOverride,
                          kOurV6, kOtherMac);
  SECTION("tentative") {
    Station s = probing_for(kOurV6, 64);
    s.receive(claim);
    check_given_up(s, kOurV6, kOtherMac);
  }
  SECTION("valid") {
    Station s = Station::ready();
    s.events();
    s.receive(claim);
    const auto events = s.events();
    REQUIRE(events.size() == 1);
    CHECK(events[0].kind == HostEvent::Kind::address_conflict);
    CHECK(s.host.own(kOurV6, kNoVlan) != nullptr);
  }
}

TEST_CASE("RFC 4291 2.7.1: the solicited-node group has the low 24 bits of the address", "[ndp]") {
  const Gid address{{0x40, 0x37, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x08, 0x00, 0x20, 0x0E, 0x8C, 0x6C}};
  const Gid group{{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0xFF, 0x0E, 0x8C, 0x6C}};
  CHECK(solicited_node_group(address) == group);
}

TEST_CASE("RFC 4861 4.3: a host without an address solicits without telling its MAC", "[ndp]") {
  Station s;
  REQUIRE(s.host.routes().add({kPeerV6, 64, Gid{}, kNoVlan}));
  CHECK(s.send(kPeerV6, data_frame(1)) == Verdict::held);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(is_unspecified(ip6_of(out[0]).src()));
  CHECK_FALSE(ndp_of(out[0]).has_mac);
}

TEST_CASE("RFC 4861 4.4: the answer to a unicast solicitation may leave the MAC out", "[ndp]") {
  Station s = Station::ready();
  s.receive(solicitation(kOurV6));
  s.send(kPeerV6, data_frame(1));
  s.run_until(s.now + 5 * kSec);
  s.sent();
  REQUIRE(s.neighbour(kPeerV6)->state == State::probe);
  s.receive(advertisement(wire::NdpMessage::kSolicited, std::nullopt));
  CHECK(s.neighbour(kPeerV6)->state == State::reachable);
  CHECK(s.neighbour(kPeerV6)->mac == kPeerMac);
}

TEST_CASE("RFC 4861 10: three solicitations a second apart, by multicast and, after five seconds, by unicast",
          "[ndp]") {
  Station s = Station::ready();
  const bool known = GENERATE(false, true);
  CAPTURE(known);
  if (known) {
    s.receive(solicitation(kOurV6));
    s.sent();
  }
  const Nanos start = s.now;
  s.send(kPeerV6, data_frame(1));
  std::vector<Nanos> times;
  for (const Sent& p : timeline(s, start + 60 * kSec)) {
    CHECK(ndp_of(p.frame).type == wire::kNdpSolicitation);
    CHECK(is_multicast(ip6_of(p.frame).dst()) == !known);
    times.push_back(p.at - start);
  }
  const Nanos first = known ? 5 * kSec : 0;
  CHECK(times == std::vector<Nanos>{first, first + kSec, first + 2 * kSec});
  CHECK(s.neighbour(kPeerV6)->state == State::failed);
}
