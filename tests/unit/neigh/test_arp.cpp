#include "station.h"

using namespace softrnic;
using namespace softrnic::neigh;
using namespace softrnic::neigh::test;
using Verdict = HostStack::Verdict;

TEST_CASE("RFC 826: a request for an own address is answered to the asker alone", "[arp]") {
  Station s = Station::ready();
  CHECK(s.receive(arp_request(kPeerV4, kOurV4)));
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  const wire::ArpPacket reply = arp_of(out[0]);
  CHECK(dst_of(out[0]) == kPeerMac);
  CHECK(src_of(out[0]) == kOurMac);
  CHECK(reply.operation == wire::ArpPacket::kReply);
  CHECK(load_mac(reply.sender_mac) == kOurMac);
  CHECK(reply.sender_ip == kOurV4);
  CHECK(load_mac(reply.target_mac) == kPeerMac);
  CHECK(reply.target_ip == kPeerV4);
}

TEST_CASE("RFC 826: a request for somebody else is not answered", "[arp]") {
  Station s = Station::ready();
  CHECK(s.receive(arp_request(kPeerV4, kOurV4 + 7)));
  CHECK(s.sent().empty());
  CHECK_FALSE(s.neighbour(from_ipv4(kPeerV4)));
}

TEST_CASE("RFC 826: the asker is entered, so that nothing need be asked back", "[arp]") {
  Station s = Station::ready();
  s.receive(arp_request(kPeerV4, kOurV4));
  s.sent();
  Mac mac{};
  CHECK(s.send(from_ipv4(kPeerV4), data_frame(1), &mac) == Verdict::ready);
  CHECK(mac == kPeerMac);
}

TEST_CASE("RFC 826: a known sender is brought up to date by any of its packets", "[arp]") {
  Station s = Station::ready();
  s.receive(arp_request(kPeerV4, kOurV4));
  s.receive(arp(1, kOtherMac, kPeerV4, Mac{}, kPeerV4));  // announcement from another MAC
  CHECK(s.neighbour(from_ipv4(kPeerV4))->mac == kOtherMac);
}

TEST_CASE("RFC 826: other hardware, other protocols and short packets are counted and dropped", "[arp]") {
  Station s = Station::ready();
  for (unsigned at : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u}) {  // hardware, protocol, lengths, operation
    Frame f = arp_request(kPeerV4, kOurV4);
    f[14 + at] ^= 0x40;
    CHECK(s.receive(f));
  }
  Frame cut = arp_request(kPeerV4, kOurV4);
  cut.resize(14 + 27);
  CHECK(s.receive(cut));
  CHECK(s.receive(arp(1, Mac{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, kPeerV4, Mac{}, kOurV4)) == false);  // group source
  CHECK(s.sent().empty());
  CHECK(s.host.counters().malformed == 9);
}

TEST_CASE("RFC 826: a sender off the link is answered but not entered", "[arp]") {
  Station s = Station::ready();
  s.receive(arp_request(0xC0A80101, kOurV4));
  CHECK(s.sent().size() == 1);
  CHECK(s.host.neighbours().size() == 0);
}

TEST_CASE("RFC 1122 2.3.2.1, 2.3.2.2: frames wait for the reply and then leave in order", "[arp]") {
  Station s = Station::ready();
  const Gid peer = from_ipv4(kPeerV4);
  CHECK(s.send(peer, data_frame(1)) == Verdict::held);
  CHECK(s.send(peer, data_frame(2)) == Verdict::held);
  auto out = s.sent();
  REQUIRE(out.size() == 1);  // one question, not two
  CHECK(dst_of(out[0]) == kBroadcastMac);
  const wire::ArpPacket request = arp_of(out[0]);
  CHECK(request.operation == wire::ArpPacket::kRequest);
  CHECK(request.sender_ip == kOurV4);
  CHECK(request.target_ip == kPeerV4);

  s.receive(arp_reply(kPeerV4));
  out = s.sent();
  REQUIRE(out.size() == 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(dst_of(out[i]) == kPeerMac);
    CHECK(src_of(out[i]) == kOurMac);
    CHECK(out[i][14] == i + 1);
  }
  Mac mac{};
  CHECK(s.send(peer, data_frame(3), &mac) == Verdict::ready);
  CHECK(s.neighbour(peer)->state == NeighbourState::reachable);
}

TEST_CASE("RFC 4861 7.2.2: when too many frames wait, the oldest make room", "[arp]") {
  Station s = Station::ready();
  const std::size_t extra = 5;
  for (std::size_t i = 0; i < NeighbourCache::kMaxPending + extra; ++i)
    CHECK(s.send(from_ipv4(kPeerV4), data_frame(static_cast<std::uint8_t>(i))) == Verdict::held);
  s.sent();
  s.receive(arp_reply(kPeerV4));
  const auto out = s.sent();
  REQUIRE(out.size() == NeighbourCache::kMaxPending);
  CHECK(out.front()[14] == extra);
  CHECK(s.host.neighbours().dropped_frames() == extra);
}

TEST_CASE("RFC 1122 2.3.2.1: three unanswered questions a second apart, then frames are dropped for a while", "[arp]") {
  Station s = Station::ready();
  const Gid peer = from_ipv4(kPeerV4);
  const Nanos start = s.now;
  s.send(peer, data_frame(1));
  s.run_until(start + 2 * kSec + 999 * kMs);
  CHECK(s.sent().size() == 3);
  CHECK(s.events().empty());
  s.run_until(start + 3 * kSec);
  CHECK(s.sent().empty());
  const auto events = s.events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == HostEvent::Kind::neighbour_failed);
  CHECK(events[0].ip == peer);
  CHECK(s.send(peer, data_frame(2)) == Verdict::unreachable);
  CHECK(s.host.counters().unreachable == 1);
  CHECK(s.host.neighbours().dropped_frames() == 1);

  s.now += kSec;  // and then it is tried again
  CHECK(s.send(peer, data_frame(3)) == Verdict::held);
  CHECK(s.sent().size() == 1);
  s.receive(arp_reply(kPeerV4));
  CHECK(s.sent().size() == 1);
}

TEST_CASE("RFC 5227 2.3: a new address is announced twice", "[arp]") {
  Station s;
  REQUIRE(s.host.add_address(s.now, {from_ipv4(kOurV4), 24, kNoVlan}));
  auto out = s.sent();
  REQUIRE(out.size() == 1);
  const wire::ArpPacket a = arp_of(out[0]);
  CHECK(a.operation == wire::ArpPacket::kRequest);
  CHECK(a.sender_ip == kOurV4);
  CHECK(a.target_ip == kOurV4);
  CHECK(dst_of(out[0]) == kBroadcastMac);
  s.run_until(s.now + 10 * kSec);
  CHECK(s.sent().size() == 1);
  CHECK(s.host.next_timeout() == kNever);
}

TEST_CASE("RFC 5227 2.1: with duplicate detection an address is probed for before it is used", "[arp]") {
  HostOptions o;
  o.detect_duplicates = true;
  Station s(o);
  const Gid ip = from_ipv4(kOurV4);
  REQUIRE(s.host.add_address(s.now, {ip, 24, kNoVlan}));
  SECTION("nobody has it") {
    auto out = s.sent();
    REQUIRE(out.size() == 1);
    CHECK(arp_of(out[0]).sender_ip == 0);
    CHECK(s.host.own(ip, kNoVlan) == nullptr);
    s.receive(arp_request(kPeerV4, kOurV4));
    CHECK(s.sent().empty());  // not yet ours to answer for
    s.run_until(s.now + 3 * kSec + 999 * kMs);
    CHECK(s.host.own(ip, kNoVlan) == nullptr);
    s.run_until(s.now + kMs);
    REQUIRE(s.host.own(ip, kNoVlan) != nullptr);
    out = s.sent();
    REQUIRE(out.size() == 3);  // two more probes, one announcement
    CHECK(arp_of(out[1]).sender_ip == 0);
    CHECK(arp_of(out[2]).sender_ip == kOurV4);
    CHECK(s.events().at(0).kind == HostEvent::Kind::address_ready);
  }
  SECTION("somebody answers") { s.receive(arp(2, kPeerMac, kOurV4, kOurMac, 0, kOurMac)); }
  SECTION("somebody probes for it too") { s.receive(arp_request(0, kOurV4)); }
  if (s.host.own(ip, kNoVlan) == nullptr) {
    const auto events = s.events();
    REQUIRE(events.size() == 1);
    CHECK(events[0].kind == HostEvent::Kind::address_duplicate);
    CHECK(events[0].mac == kPeerMac);
    s.run_until(s.now + 10 * kSec);
    CHECK(s.host.own(ip, kNoVlan) == nullptr);
  }
}

TEST_CASE("RFC 4862 5.4.5: a duplicate address is given up whole, and no other one with it", "[ndp]") {
  HostOptions o;
  o.detect_duplicates = true;
  Station s(o);
  const Gid other = v6(9);
  REQUIRE(s.host.add_address(s.now, {kOurV6, 64, kNoVlan}));
  REQUIRE(s.host.add_address(s.now, {other, 48, kNoVlan}));
  s.receive(ndp(kOurV6, {{0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}, wire::kNdpAdvertisement, 0x20, kOurV6));
  REQUIRE(s.events().at(0).kind == HostEvent::Kind::address_duplicate);
  CHECK_FALSE(s.host.member(solicited_node_group(kOurV6), kNoVlan));
  CHECK(s.host.member(solicited_node_group(other), kNoVlan));
  REQUIRE(s.host.routes().routes().size() == 1);
  CHECK(s.host.routes().routes()[0].length == 48);
  s.run_until(s.now + 5 * kSec);
  CHECK(s.host.own(other, kNoVlan) != nullptr);
}

TEST_CASE("RFC 5227 2.4: an address in use is defended once in ten seconds", "[arp]") {
  Station s = Station::ready();
  for (int i = 0; i < 3; ++i) s.receive(arp_request(kOurV4, kOurV4));
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(arp_of(out[0]).sender_ip == kOurV4);
  CHECK(s.events().at(0).kind == HostEvent::Kind::address_conflict);
  s.now += 10 * kSec;
  s.receive(arp_request(kOurV4, kOurV4));
  CHECK(s.sent().size() == 1);
}

TEST_CASE("IEEE 802.1Q: an address belongs to its VLAN", "[arp][vlan]") {
  Station s;
  REQUIRE(s.host.add_address(s.now, {from_ipv4(kOurV4), 24, 7}));
  auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(type_of(out[0]) == wire::kEthertypeVlan);
  CHECK(load_be16(out[0].data() + 14) == 7);
  CHECK(load_be16(out[0].data() + 16) == wire::kEthertypeArp);

  s.receive(arp_request(kPeerV4, kOurV4));
  s.receive(tagged(arp_request(kPeerV4, kOurV4), 8));
  CHECK(s.sent().empty());
  s.receive(tagged(arp_request(kPeerV4, kOurV4), 7));
  out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(load_be16(out[0].data() + 14) == 7);
  CHECK(s.send(from_ipv4(kPeerV4), data_frame(1)) == Verdict::unreachable);
  CHECK(s.send(from_ipv4(kPeerV4), data_frame(1), nullptr, 7) == Verdict::ready);
}
