#include "station.h"

using namespace softrnic;
using namespace softrnic::neigh;
using namespace softrnic::neigh::test;
using Verdict = HostStack::Verdict;
using State = NeighbourState;

namespace {

constexpr std::uint8_t kSolicited = wire::NdpMessage::kSolicited, kOverride = wire::NdpMessage::kOverride;

// A host that knows its peer as reachable.
Station with_reachable_peer() {
  Station s = Station::ready();
  s.send(kPeerV6, data_frame(1));
  s.receive(advertisement(kSolicited | kOverride));
  s.sent();
  REQUIRE(s.neighbour(kPeerV6)->state == State::reachable);
  return s;
}
// A host that knows its peer as stale.
Station with_stale_peer() {
  Station s = Station::ready();
  s.receive(solicitation(kOurV6));
  s.sent();
  REQUIRE(s.neighbour(kPeerV6)->state == State::stale);
  return s;
}

}  // namespace

TEST_CASE("RFC 4861 7.2.2: the first frame solicits in the solicited-node group, with our own MAC", "[ndp]") {
  Station s = Station::ready();
  CHECK(s.send(kPeerV6, data_frame(9)) == Verdict::held);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  const wire::NdpMessage ns = ndp_of(out[0]);
  CHECK(ns.type == wire::kNdpSolicitation);
  CHECK(ns.target == kPeerV6);
  CHECK(ip6_of(out[0]).src() == kOurV6);
  CHECK(ip6_of(out[0]).dst() == solicited_node_group(kPeerV6));
  CHECK(dst_of(out[0]) == Mac{0x33, 0x33, 0xFF, 0, 0, 2});
  REQUIRE(ns.has_mac);
  CHECK(load_mac(ns.mac) == kOurMac);
}

TEST_CASE("RFC 4861 7.2.5: an answer makes an incomplete neighbour reachable and sends what waits", "[ndp]") {
  Station s = Station::ready();
  s.send(kPeerV6, data_frame(9));
  s.sent();
  SECTION("solicited") {
    s.receive(advertisement(kSolicited));
    CHECK(s.neighbour(kPeerV6)->state == State::reachable);
  }
  SECTION("unsolicited: stale") {
    s.receive(advertisement(0));
    CHECK(s.neighbour(kPeerV6)->state == State::stale);
  }
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(dst_of(out[0]) == kPeerMac);
}

TEST_CASE("RFC 4861 7.2.5: an advertisement of an unknown neighbour enters nothing", "[ndp]") {
  Station s = Station::ready();
  CHECK(s.receive(advertisement(kSolicited | kOverride)));
  CHECK(s.host.neighbours().size() == 0);
}

TEST_CASE("RFC 4861 7.2.5: another MAC replaces a known one only with the override flag", "[ndp]") {
  Station s = with_reachable_peer();
  SECTION("without: reachable becomes stale, the MAC stays") {
    s.receive(advertisement(kSolicited, kOtherMac));
    CHECK(s.neighbour(kPeerV6)->state == State::stale);
    CHECK(s.neighbour(kPeerV6)->mac == kPeerMac);
  }
  SECTION("with, unsolicited: replaced and stale") {
    s.receive(advertisement(kOverride, kOtherMac));
    CHECK(s.neighbour(kPeerV6)->state == State::stale);
    CHECK(s.neighbour(kPeerV6)->mac == kOtherMac);
  }
  SECTION("with, solicited: replaced and reachable") {
    s.receive(advertisement(kOverride | kSolicited, kOtherMac));
    CHECK(s.neighbour(kPeerV6)->state == State::reachable);
    CHECK(s.neighbour(kPeerV6)->mac == kOtherMac);
  }
  SECTION("the same MAC unsolicited changes nothing") {
    s.receive(advertisement(kOverride));
    CHECK(s.neighbour(kPeerV6)->state == State::reachable);
  }
}

TEST_CASE("RFC 4861 7.2.3: the sender of a solicitation is entered as stale", "[ndp]") {
  Station s = with_stale_peer();
  CHECK(s.neighbour(kPeerV6)->mac == kPeerMac);
  SECTION("another MAC later replaces it") {
    s.receive(solicitation(kOurV6, kOtherMac));
    CHECK(s.neighbour(kPeerV6)->mac == kOtherMac);
    CHECK(s.neighbour(kPeerV6)->state == State::stale);
  }
}

TEST_CASE("RFC 4861 7.2.3: a solicitation does not change a reachable neighbour with the same MAC", "[ndp]") {
  Station s = with_reachable_peer();
  s.receive(solicitation(kOurV6));
  CHECK(s.neighbour(kPeerV6)->state == State::reachable);
}

TEST_CASE("RFC 4861 6.3.2, 7.3.3: reachable for 0.5 to 1.5 times 30 s, then stale; use starts the delay", "[ndp]") {
  Station s = with_reachable_peer();
  Mac mac{};
  s.now += 14 * kSec;
  CHECK(s.send(kPeerV6, data_frame(1), &mac) == Verdict::ready);
  CHECK(s.neighbour(kPeerV6)->state == State::reachable);
  s.now += 32 * kSec;
  CHECK(s.send(kPeerV6, data_frame(1), &mac) == Verdict::ready);  // frames go on
  CHECK(mac == kPeerMac);
  CHECK(s.neighbour(kPeerV6)->state == State::delay);
  s.run_until(s.now);
  CHECK(s.host.next_timeout() == s.now + 5 * kSec);
}

TEST_CASE("RFC 4861 7.3.3: after the delay the neighbour is probed by unicast, and answers", "[ndp]") {
  Station s = with_stale_peer();
  s.send(kPeerV6, data_frame(1));
  s.run_until(s.now + 5 * kSec);
  auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(dst_of(out[0]) == kPeerMac);
  CHECK(ip6_of(out[0]).dst() == kPeerV6);
  CHECK(s.neighbour(kPeerV6)->state == State::probe);
  CHECK(s.send(kPeerV6, data_frame(2)) == Verdict::ready);
  s.receive(advertisement(kSolicited));
  CHECK(s.neighbour(kPeerV6)->state == State::reachable);
  s.run_until(s.now + 10 * kSec);
  CHECK(s.sent().empty());
  CHECK(s.host.next_timeout() == kNever);
}

TEST_CASE("RFC 4861 7.3.3: three unanswered probes end in failure", "[ndp]") {
  Station s = with_stale_peer();
  s.send(kPeerV6, data_frame(1));
  s.run_until(s.now + 8 * kSec);
  CHECK(s.sent().size() == 3);
  CHECK(s.neighbour(kPeerV6)->state == State::failed);
  CHECK(s.events().at(0).kind == HostEvent::Kind::neighbour_failed);
  CHECK(s.send(kPeerV6, data_frame(1)) == Verdict::unreachable);
}

TEST_CASE("RFC 4861 7.3.3: a stale neighbour nobody uses causes no traffic", "[ndp]") {
  Station s = with_stale_peer();
  CHECK(s.host.next_timeout() == kNever);
}

TEST_CASE("RFC 4861 7.2.4: a solicitation is answered with our MAC, solicited and override", "[ndp]") {
  Station s = Station::ready();
  s.receive(solicitation(kOurV6));
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  const wire::NdpMessage na = ndp_of(out[0]);
  CHECK(na.type == wire::kNdpAdvertisement);
  CHECK(na.flags == (kSolicited | kOverride));
  CHECK(na.target == kOurV6);
  REQUIRE(na.has_mac);
  CHECK(load_mac(na.mac) == kOurMac);
  CHECK(dst_of(out[0]) == kPeerMac);
  CHECK(ip6_of(out[0]).dst() == kPeerV6);
  CHECK(ip6_of(out[0]).src() == kOurV6);
}

TEST_CASE("RFC 4861 7.2.4: a solicitation from the unspecified address is answered to all nodes", "[ndp]") {
  Station s = Station::ready();
  s.receive(solicitation(kOurV6, std::nullopt, Gid{}));
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(ndp_of(out[0]).flags == kOverride);
  CHECK(dst_of(out[0]) == Mac{0x33, 0x33, 0, 0, 0, 1});
  CHECK(s.host.neighbours().size() == 0);
}

TEST_CASE("RFC 4861 7.1.1, 7.1.2: malformed discovery messages are counted and dropped", "[ndp]") {
  Station s = Station::ready();
  s.send(kPeerV6, data_frame(1));
  s.sent();
  std::vector<Frame> bad;
  bad.push_back(ndp(kPeerV6, kOurV6, 136, kSolicited, kPeerV6, kPeerMac, 254));         // hop limit
  bad.push_back(ndp(kPeerV6, kOurV6, 136, kSolicited, solicited_node_group(kPeerV6)));  // target is a group
  bad.push_back(ndp(kPeerV6, solicited_node_group(kOurV6), 136, kSolicited, kPeerV6));  // solicited to a group
  bad.push_back(ndp(Gid{}, solicited_node_group(kOurV6), 135, 0, kOurV6, kPeerMac));    // no source, yet its MAC
  bad.push_back(ndp(Gid{}, kOurV6, 135, 0, kOurV6, std::nullopt));                      // no source, not to the group
  bad.push_back(advertisement(kSolicited));
  bad.back()[14 + 40 + 2] ^= 1;  // checksum
  for (const Frame& f : bad) CHECK(s.receive(f));
  for (std::uint8_t length : {std::uint8_t{0}, std::uint8_t{2}}) {  // option of 0 or too many bytes
    wire::NdpMessage m;
    m.type = 136;
    m.target = kPeerV6;
    m.has_mac = true;
    Frame body(m.size());
    m.store(body.data(), kPeerV6, kOurV6);
    body[25] = length;
    wire::icmpv6_store_checksum(kPeerV6, kOurV6, body.data(), body.size());
    CHECK(s.receive(ipv6(kPeerV6, kOurV6, 58, 255, body)));
  }
  CHECK(s.host.counters().malformed == 8);
  CHECK(s.sent().empty());
  CHECK(s.neighbour(kPeerV6)->state == State::incomplete);
}

TEST_CASE("RFC 4862 5.4: an IPv6 address is probed for once before it is used", "[ndp]") {
  HostOptions o;
  o.detect_duplicates = true;
  Station s(o);
  REQUIRE(s.host.add_address(s.now, {kOurV6, 64, kNoVlan}));
  auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(is_unspecified(ip6_of(out[0]).src()));
  CHECK(ndp_of(out[0]).target == kOurV6);
  CHECK_FALSE(ndp_of(out[0]).has_mac);
  SECTION("5.4.3: a solicitation for it from a real source is not answered") {
    s.receive(solicitation(kOurV6));
    CHECK(s.sent().empty());
    s.run_until(s.now + kSec);
    CHECK(s.host.own(kOurV6, kNoVlan) != nullptr);
    CHECK(s.events().at(0).kind == HostEvent::Kind::address_ready);
  }
  SECTION("5.4.3: somebody else probes for it") {
    s.receive(solicitation(kOurV6, std::nullopt, Gid{}));
    CHECK(s.events().at(0).kind == HostEvent::Kind::address_duplicate);
  }
  SECTION("5.4.4: somebody has it") {
    s.receive(ndp(kOurV6, solicited_node_group(v6(0)), 136, kOverride, kOurV6));
    CHECK(s.events().at(0).kind == HostEvent::Kind::address_duplicate);
    s.run_until(s.now + 5 * kSec);
    CHECK(s.host.own(kOurV6, kNoVlan) == nullptr);
  }
}

TEST_CASE("RFC 4861 7.2.6: a new IPv6 address is advertised to all nodes", "[ndp]") {
  Station s;
  REQUIRE(s.host.add_address(s.now, {kOurV6, 64, kNoVlan}));
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(ndp_of(out[0]).type == wire::kNdpAdvertisement);
  CHECK(ndp_of(out[0]).flags == kOverride);
}

TEST_CASE("An address scan cannot push out neighbours that are in use", "[ndp]") {
  Station s = with_reachable_peer();
  Gid ip = kPeerV6;
  for (unsigned i = 0; i < 3 * NeighbourCache::kMaxEntries; ++i) {
    store_be32(ip.raw + 12, 0x10000 + i);
    s.send(ip, data_frame(1));
  }
  CHECK(s.host.neighbours().size() == NeighbourCache::kMaxEntries);
  CHECK(s.send(kPeerV6, data_frame(1)) == Verdict::ready);
  s.run_until(s.now + 4 * kSec);  // those that failed make room
  s.sent();
  store_be32(ip.raw + 12, 0x20000);
  CHECK(s.send(ip, data_frame(1)) == Verdict::held);
}
