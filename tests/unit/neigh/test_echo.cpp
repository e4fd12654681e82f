#include "station.h"

using namespace softrnic;
using namespace softrnic::neigh;
using namespace softrnic::neigh::test;

namespace {

const Frame kEchoBody{0x12, 0x34, 0, 1, 'd', 'a', 't', 'a', 0xFF};  // identifier, sequence number, odd data

Gid all_nodes() { return {{0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}; }

}  // namespace

TEST_CASE("RFC 792: an echo comes back with its identifier, sequence number and data", "[icmp]") {
  Station s = Station::ready();
  CHECK(s.receive(ipv4(kPeerV4, kOurV4, 1, icmp(8, kEchoBody))));
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  const wire::Ipv4View ip(out[0].data() + 14);
  CHECK(dst_of(out[0]) == kPeerMac);
  CHECK(ip.checksum_ok());
  CHECK(load_be32(ip.src()) == kOurV4);
  CHECK(load_be32(ip.dst()) == kPeerV4);
  CHECK(Frame(out[0].begin() + 34, out[0].end()) == icmp(0, kEchoBody));
}

TEST_CASE("RFC 792: Ethernet padding behind the packet is not echoed", "[icmp]") {
  Station s = Station::ready();
  Frame f = ipv4(kPeerV4, kOurV4, 1, icmp(8, kEchoBody));
  f.resize(60);
  s.receive(f);
  CHECK(s.sent().at(0).size() == 34 + 4 + kEchoBody.size());
}

TEST_CASE("RFC 1122 3.2.2.6: echoes to others, to groups and from groups are not answered", "[icmp]") {
  Station s = Station::ready();
  s.receive(ipv4(kPeerV4, kOurV4 + 5, 1, icmp(8, kEchoBody)));
  s.receive(ipv4(kPeerV4, 0xE0000001, 1, icmp(8, kEchoBody), Mac{1, 0, 0x5E, 0, 0, 1}));
  s.receive(ipv4(kPeerV4, kOurV4, 1, icmp(8, kEchoBody), kBroadcastMac));
  s.receive(ipv4(0xE0000001, kOurV4, 1, icmp(8, kEchoBody)));
  s.receive(ipv4(kPeerV4, kOurV4, 1, icmp(0, kEchoBody)));
  CHECK(s.sent().empty());
}

TEST_CASE("RFC 792, RFC 791: bad checksums, lengths and fragments are not answered", "[icmp]") {
  Station s = Station::ready();
  const Frame good = ipv4(kPeerV4, kOurV4, 1, icmp(8, kEchoBody));
  for (std::size_t at : {14u, 16u, 17u, 24u, 36u, 42u}) {
    Frame f = good;
    f[at] ^= 0x55;
    CHECK(s.receive(f));
  }
  Frame cut = good;
  cut.resize(cut.size() - 1);
  CHECK(s.receive(cut));
  CHECK(s.sent().empty());
  CHECK(s.host.counters().malformed == 7);
}

TEST_CASE("RFC 4443 4.2: an ICMPv6 echo is answered from the address that was asked", "[icmpv6]") {
  Station s = Station::ready();
  CHECK(s.receive(icmpv6(kPeerV6, kOurV6, 64, 128, kEchoBody)));
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(ip6_of(out[0]).src() == kOurV6);
  CHECK(ip6_of(out[0]).dst() == kPeerV6);
  const Frame m = icmpv6_of(out[0]);
  CHECK(m[0] == 129);
  CHECK(Frame(m.begin() + 4, m.end()) == kEchoBody);
}

TEST_CASE("RFC 4443 4.2: an echo to a group is answered from a unicast address of that scope", "[icmpv6]") {
  Station s = Station::ready();
  s.receive(icmpv6(kPeerLinkLocal, all_nodes(), 64, 128, kEchoBody, Mac{0x33, 0x33, 0, 0, 0, 1}));
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(ip6_of(out[0]).src() == link_local_of(kOurMac));
}

TEST_CASE("RFC 4443 2.3, 2.4: bad checksums, unknown messages and other destinations are not answered", "[icmpv6]") {
  Station s = Station::ready();
  Frame f = icmpv6(kPeerV6, kOurV6, 64, 128, kEchoBody);
  f[56] ^= 1;
  s.receive(f);
  CHECK(s.host.counters().malformed == 1);
  s.receive(icmpv6(kPeerV6, kOurV6, 64, 200, kEchoBody));
  s.receive(icmpv6(kPeerV6, v6(77), 64, 128, kEchoBody));
  s.receive(icmpv6(Gid{}, kOurV6, 64, 128, kEchoBody));
  CHECK(s.sent().empty());
}

TEST_CASE("Frames of other protocols and for other stations are left alone", "[host]") {
  Station s = Station::ready();
  CHECK_FALSE(s.receive(ipv4(kPeerV4, kOurV4, 17, Frame(20))));
  CHECK_FALSE(s.receive(ipv6(kPeerV6, kOurV6, 17, 64, Frame(20))));
  CHECK_FALSE(s.receive(ethernet(kOurMac, kPeerMac, 0x8915, Frame(60))));
  CHECK_FALSE(s.receive(ipv4(kPeerV4, kOurV4, 1, icmp(8, kEchoBody), kOtherMac)));
  CHECK_FALSE(s.receive(ethernet(kOurMac, kOurMac, wire::kEthertypeArp, Frame(46))));  // our own, come back
  CHECK(s.sent().empty());
}

TEST_CASE("A flood of questions costs bounded memory", "[host]") {
  Station s = Station::ready();
  for (unsigned i = 0; i < 1000; ++i) s.receive(icmpv6(kPeerV6, kOurV6, 64, 128, kEchoBody));
  CHECK(s.sent().size() == HostStack::kMaxOutput);
  CHECK(s.host.counters().output_dropped == 1000 - HostStack::kMaxOutput);
}

TEST_CASE("No frame of random bytes or with one random byte changed does harm", "[host]") {
  Station s = Station::ready();
  std::uint64_t x = 42;
  const auto rnd = [&] {
    x = x * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(x >> 33);
  };
  const std::vector<Frame> seeds = {arp_request(kPeerV4, kOurV4), ipv4(kPeerV4, kOurV4, 1, icmp(8, kEchoBody)),
                                    icmpv6(kPeerV6, kOurV6, 64, 128, kEchoBody), solicitation(kOurV6),
                                    advertisement(0x60)};
  for (unsigned i = 0; i < 20000; ++i) {
    Frame f = seeds[rnd() % seeds.size()];
    f.resize(rnd() % (f.size() + 1));
    for (unsigned n = rnd() % 4; n > 0 && !f.empty(); --n) f[rnd() % f.size()] = static_cast<std::uint8_t>(rnd());
    s.receive(f);
    s.sent();
  }
  s.receive(arp_request(kPeerV4, kOurV4));
  CHECK(s.sent().size() == 1);
}
