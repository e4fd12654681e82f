#include "group_messages.h"

using namespace softrnic;
using namespace softrnic::neigh;
using namespace softrnic::neigh::test;

TEST_CASE("RFC 3376 5.1: joining and leaving a group is reported twice", "[igmp]") {
  Station s = Station::ready();
  const Gid group = from_ipv4(kGroup4);
  REQUIRE(s.host.join(s.now, group, kNoVlan));
  s.run_until(s.now + 5 * kSec);
  auto out = s.sent();
  REQUIRE(out.size() == 2);
  for (const Frame& f : out) {
    const auto records = igmp_v3(f);
    REQUIRE(records.size() == 1);
    CHECK(records[0].type == GroupRecord::change_to_exclude);
    CHECK(records[0].group == group);
  }
  CHECK(s.host.member(group, kNoVlan));
  s.host.leave(s.now, group, kNoVlan);
  CHECK_FALSE(s.host.member(group, kNoVlan));
  s.run_until(s.now + 5 * kSec);
  out = s.sent();
  REQUIRE(out.size() == 2);
  CHECK(igmp_v3(out[1])[0].type == GroupRecord::change_to_include);
  CHECK(s.host.next_timeout() == kNever);
}

TEST_CASE("RFC 3376 5: memberships are counted, and the group of all systems is not reported", "[igmp]") {
  Station s = Station::ready();
  const Gid group = from_ipv4(kGroup4);
  s.host.join(s.now, group, kNoVlan);
  s.host.join(s.now, group, kNoVlan);
  s.run_until(s.now + 5 * kSec);
  s.sent();
  s.host.leave(s.now, group, kNoVlan);
  s.host.join(s.now, from_ipv4(0xE0000001), kNoVlan);
  s.run_until(s.now + 5 * kSec);
  CHECK(s.sent().empty());
  CHECK(s.host.member(group, kNoVlan));
}

TEST_CASE("RFC 3376 5.2: a general query is answered for all groups within its time", "[igmp]") {
  Station s = Station::ready();
  s.host.join(s.now, from_ipv4(kGroup4), kNoVlan);
  s.host.join(s.now, from_ipv4(kGroup4 + 1), kNoVlan);
  s.run_until(s.now + 5 * kSec);
  s.sent();
  CHECK(s.receive(igmp_query(100, 0, true)));
  CHECK(s.host.next_timeout() <= s.now + 10 * kSec);
  s.run_until(s.now + 10 * kSec);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  const auto records = igmp_v3(out[0]);
  REQUIRE(records.size() == 2);
  CHECK(records[0].type == GroupRecord::mode_is_exclude);
}

TEST_CASE("RFC 3376 5.2: a group-specific query concerns only that group", "[igmp]") {
  Station s = Station::ready();
  s.host.join(s.now, from_ipv4(kGroup4), kNoVlan);
  s.host.join(s.now, from_ipv4(kGroup4 + 1), kNoVlan);
  s.run_until(s.now + 5 * kSec);
  s.sent();
  s.receive(igmp_query(10, kGroup4 + 1, true));
  s.run_until(s.now + kSec);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(igmp_v3(out[0]).at(0).group == from_ipv4(kGroup4 + 1));
}

TEST_CASE("RFC 3376 7.2.1, RFC 2236: with a version 2 router, reports and leaves are version 2", "[igmp]") {
  Station s = Station::ready();
  s.receive(igmp_query(100, 0, false));
  s.host.join(s.now, from_ipv4(kGroup4), kNoVlan);
  s.run_until(s.now + 5 * kSec);
  auto out = s.sent();
  REQUIRE(out.size() == 2);
  CHECK(out[0][14 + 24] == wire::kIgmpV2Report);
  CHECK(load_be32(out[0].data() + 14 + 16) == kGroup4);
  CHECK(dst_of(out[0]) == multicast_mac(from_ipv4(kGroup4)));
  s.host.leave(s.now, from_ipv4(kGroup4), kNoVlan);
  s.host.on_timeout(s.now);
  out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(out[0][14 + 24] == wire::kIgmpV2Leave);
  CHECK(load_be32(out[0].data() + 14 + 16) == 0xE0000002);
  // The router is gone for long enough: version 3 again.
  s.run_until(s.now + 300 * kSec);
  s.sent();
  s.host.join(s.now, from_ipv4(kGroup4), kNoVlan);
  s.host.on_timeout(s.now);
  CHECK(igmp_v3(s.sent().at(0)).size() == 1);
}

TEST_CASE("RFC 3810 6.1: MLD reports joins, from the link-local address", "[mld]") {
  Station s = Station::ready();
  s.host.join(s.now, kGroup6, kNoVlan);
  s.host.on_timeout(s.now);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(ip6_of(out[0]).src() == link_local_of(kOurMac));
  const auto records = mld(out[0]);
  REQUIRE(records.size() == 1);
  CHECK(records[0].type == GroupRecord::change_to_exclude);
  CHECK(records[0].group == kGroup6);
}

TEST_CASE("RFC 4861 7.2.1, RFC 3810: the solicited-node group of an address is joined and left with it", "[mld]") {
  Station s;
  s.host.add_address(s.now, {kOurV6, 64, kNoVlan});
  s.run_until(s.now + 10 * kSec);
  std::size_t reports = 0;
  for (const Frame& f : s.sent()) {
    if (ip6_of(f).next_header() != 0) continue;
    CHECK(mld(f).at(0).group == solicited_node_group(kOurV6));
    ++reports;
  }
  CHECK(reports == 2);
  CHECK(s.host.member(solicited_node_group(kOurV6), kNoVlan));
  s.host.remove_address(s.now, kOurV6, kNoVlan);
  CHECK_FALSE(s.host.member(solicited_node_group(kOurV6), kNoVlan));
}

TEST_CASE("RFC 3810 5.1.14, 6.2: queries are answered in time; those from afar are dropped", "[mld]") {
  Station s = Station::ready();
  const Frame padding{wire::kIpProtoIcmpv6, 0, 1, 4, 0, 0, 0, 0};
  const Frame alert_for_rsvp{wire::kIpProtoIcmpv6, 0, 5, 2, 0, 1, 1, 0};
  const Frame cut_option{wire::kIpProtoIcmpv6, 0, 1, 5, 0, 0, 0, 0};
  s.receive(mld_query_of_size(28, 1000, kPeerLinkLocal, 2));
  s.receive(mld_query_of_size(28, 1000, kPeerV6));
  for (const Frame& header : {Frame{}, padding, alert_for_rsvp, cut_option})
    s.receive(mld_query_of_size(28, 1000, kPeerLinkLocal, 1, header));
  CHECK(s.host.counters().malformed == 6);
  CHECK(s.host.next_timeout() == kNever);
  s.receive(mld_query_of_size(28, 1000));
  s.run_until(s.now + kSec);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(mld(out[0]).size() == 1);  // our two IPv6 addresses have one solicited-node group
  // The alert need not be the first option.
  s.receive(mld_query_of_size(28, 1000, kPeerLinkLocal, 1, {wire::kIpProtoIcmpv6, 0, 0, 0, 5, 2, 0, 0}));
  s.run_until(s.now + kSec);
  CHECK(s.sent().size() == 1);
}

TEST_CASE("Many groups are reported in packets of the MTU", "[mld]") {
  Station s = Station::ready();
  Gid g = kGroup6;
  for (unsigned i = 0; i < 200; ++i) {
    store_be16(g.raw + 14, static_cast<std::uint16_t>(i));
    s.host.join(s.now, g, kNoVlan);
  }
  s.host.on_timeout(s.now);
  std::size_t records = 0;
  for (const Frame& f : s.sent()) {
    CHECK(f.size() <= 1514);
    records += mld(f).size();
  }
  CHECK(records == 200);
}
