#include "station.h"

using namespace softrnic;
using namespace softrnic::neigh;
using namespace softrnic::neigh::test;
using Verdict = HostStack::Verdict;

TEST_CASE("RFC 1812 5.2.4.3: the longest prefix wins", "[routes]") {
  RouteTable t;
  const Gid gw1 = from_ipv4(0x0A0000FE), gw2 = from_ipv4(0x0A0000FD);
  REQUIRE(t.add({from_ipv4(0), 0, gw1, kNoVlan}));
  REQUIRE(t.add({from_ipv4(0x0A000000), 24, Gid{}, kNoVlan}));
  REQUIRE(t.add({from_ipv4(0xAC100000), 12, gw2, kNoVlan}));
  Gid hop;
  REQUIRE(t.next_hop(from_ipv4(0x0A000007), kNoVlan, &hop));
  CHECK(hop == from_ipv4(0x0A000007));
  REQUIRE(t.next_hop(from_ipv4(0xAC1F0001), kNoVlan, &hop));
  CHECK(hop == gw2);
  REQUIRE(t.next_hop(from_ipv4(0xAC200001), kNoVlan, &hop));
  CHECK(hop == gw1);
  CHECK_FALSE(t.next_hop(from_ipv4(0xAC200001), 5, &hop));
  CHECK_FALSE(t.next_hop(kPeerV6, kNoVlan, &hop));
  CHECK(t.remove(from_ipv4(0), 0, kNoVlan));
  CHECK_FALSE(t.remove(from_ipv4(0), 0, kNoVlan));
  CHECK_FALSE(t.next_hop(from_ipv4(0xAC200001), kNoVlan, &hop));
}

TEST_CASE("A default route of IPv6 is none of IPv4", "[routes]") {
  RouteTable t;
  REQUIRE(t.add({Gid{}, 0, v6(0xFE), kNoVlan}));
  Gid hop;
  CHECK(t.next_hop({{0x20, 1}}, kNoVlan, &hop));
  CHECK(hop == v6(0xFE));
  CHECK_FALSE(t.next_hop(from_ipv4(0x08080808), kNoVlan, &hop));
}

TEST_CASE("Routes that make no sense are refused", "[routes]") {
  RouteTable t;
  CHECK_FALSE(t.add({from_ipv4(0x0A000000), 33, Gid{}, kNoVlan}));
  CHECK_FALSE(t.add({kOurV6, 129, Gid{}, kNoVlan}));
  CHECK_FALSE(t.add({from_ipv4(0x0A000000), 8, v6(1), kNoVlan}));
  CHECK_FALSE(t.add({kOurV6, 64, from_ipv4(1), kNoVlan}));
}

TEST_CASE("RFC 1122 3.3.1: a frame off the link goes to the gateway's MAC", "[routes]") {
  Station s = Station::ready();
  s.host.routes().add({from_ipv4(0), 0, from_ipv4(kPeerV4), kNoVlan});
  const Gid far = from_ipv4(0x08080808);
  CHECK(s.send(far, data_frame(1)) == Verdict::held);
  CHECK(arp_of(s.sent().at(0)).target_ip == kPeerV4);
  s.receive(arp_reply(kPeerV4));
  CHECK(s.sent().size() == 1);
  Mac mac{};
  CHECK(s.send(far, data_frame(2), &mac) == Verdict::ready);
  CHECK(mac == kPeerMac);
}

TEST_CASE("Without a route a frame is dropped and counted", "[routes]") {
  Station s = Station::ready();
  CHECK(s.send(from_ipv4(0x08080808), data_frame(1)) == Verdict::unreachable);
  CHECK(s.host.counters().no_route == 1);
}

TEST_CASE("RFC 1112 6.4, RFC 2464 7: multicast needs no neighbour", "[routes]") {
  Station s = Station::ready();
  Mac mac{};
  CHECK(s.send(from_ipv4(0xEF810203), data_frame(1), &mac) == Verdict::ready);
  CHECK(mac == Mac{0x01, 0x00, 0x5E, 0x01, 0x02, 0x03});
  CHECK(s.send({{0xFF, 0x0E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}}, data_frame(1), &mac) == Verdict::ready);
  CHECK(mac == Mac{0x33, 0x33, 1, 2, 3, 4});
  CHECK(s.sent().empty());
}

TEST_CASE("RFC 4291 2.5.6: link-local destinations are on every link", "[routes]") {
  Station s = Station::ready();
  CHECK(s.send(kPeerLinkLocal, data_frame(1)) == Verdict::held);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(ip6_of(out[0]).src() == link_local_of(kOurMac));
}

TEST_CASE("The prefix of an address is on the link as long as an address has it", "[routes]") {
  Station s = Station::ready();
  REQUIRE(s.host.add_address(s.now, {from_ipv4(kOurV4 + 9), 24, kNoVlan}));
  CHECK_FALSE(s.host.add_address(s.now, {from_ipv4(kOurV4 + 9), 24, kNoVlan}));
  CHECK_FALSE(s.host.add_address(s.now, {from_ipv4(0xE0000005), 24, kNoVlan}));
  CHECK(s.host.remove_address(s.now, from_ipv4(kOurV4), kNoVlan));
  CHECK_FALSE(s.host.remove_address(s.now, from_ipv4(kOurV4), kNoVlan));
  CHECK(s.send(from_ipv4(kPeerV4), data_frame(1)) == Verdict::held);
  CHECK(s.host.remove_address(s.now, from_ipv4(kOurV4 + 9), kNoVlan));
  CHECK(s.send(from_ipv4(kPeerV4 + 1), data_frame(1)) == Verdict::unreachable);
  s.sent();
  s.receive(arp_request(kPeerV4, kOurV4));
  CHECK(s.sent().empty());
}
