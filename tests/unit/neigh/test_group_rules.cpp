// What the specifications of IGMP and MLD say about single fields and times; test_groups.cpp has the exchanges.
#include <algorithm>

#include "group_messages.h"

using namespace softrnic;
using namespace softrnic::neigh;
using namespace softrnic::neigh::test;

namespace {

constexpr std::size_t kIgmpAt = 14 + 24;     // of a report's IGMP message: behind a header with router alert
constexpr std::size_t kMldAt = 14 + 40 + 8;  // of its MLD message: behind the hop-by-hop header

// A member of `group` with nothing left to report.
Station member_of(const Gid& group) {
  Station s = Station::ready();
  REQUIRE(s.host.join(s.now, group, kNoVlan));
  s.run_until(s.now + 5 * kSec);
  s.sent();
  return s;
}

// The longest time that 300 answers to the same query took.
Nanos longest_delay(Station& s, const Frame& query) {
  Nanos longest = 0;
  for (int i = 0; i < 300; ++i) {
    const Nanos asked = s.now;
    CHECK(s.receive(query));
    REQUIRE(s.host.next_timeout() != kNever);
    longest = std::max(longest, s.host.next_timeout() - asked);
    s.run_until(s.host.next_timeout());
    CHECK(s.sent().size() == 1);
  }
  return longest;
}
void check_delays(Station& s, const Frame& query, Nanos most) {
  const Nanos longest = longest_delay(s, query);
  CHECK(longest <= most);
  CHECK(longest > most / 10 * 9);
}

// Type of the single record that is reported after `what`.
template <class What>
GroupRecord reported_type(Station& s, std::size_t at, What what) {
  what();
  REQUIRE(s.host.next_timeout() != kNever);
  s.run_until(s.host.next_timeout());
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  REQUIRE(out[0].size() > at + 8);
  return GroupRecord{out[0][at + 8]};
}

}  // namespace

TEST_CASE("RFC 3376 4: IGMP goes out with TTL 1, internetwork control precedence and the router alert", "[igmp]") {
  Station s = Station::ready();
  std::vector<Frame> all;
  const auto collect = [&] {
    s.run_until(s.now + 3 * kSec);
    for (Frame& f : s.sent()) all.push_back(std::move(f));
  };
  s.host.join(s.now, from_ipv4(kGroup4), kNoVlan);
  collect();
  s.receive(igmp_query(1, 0, false));  // from here on version 2
  collect();
  s.host.leave(s.now, from_ipv4(kGroup4), kNoVlan);
  collect();
  std::vector<std::uint8_t> types;
  for (const Frame& f : all) {
    REQUIRE(f.size() >= kIgmpAt + 8);
    const std::uint8_t* ip = f.data() + 14;
    CHECK(ip[0] == 0x46);
    CHECK(ip[1] == 0xC0);
    CHECK(ip[8] == 1);
    CHECK(ip[9] == 2);
    CHECK(load_be32(ip + 12) == kOurV4);
    CHECK(load_be32(ip + 20) == 0x94040000);
    CHECK(wire::inet_fold(wire::inet_sum(ip, 24)) == 0xFFFF);
    CHECK(wire::icmp_checksum_ok(f.data() + kIgmpAt, load_be16(ip + 2) - 24u));
    types.push_back(f[kIgmpAt]);
  }
  for (const std::uint8_t type : {0x22, 0x16, 0x17}) CHECK(std::count(types.begin(), types.end(), type) >= 1);
}

TEST_CASE("RFC 3376 4.1.1: response codes from 128 on are floating point, in tenths of a second", "[igmp]") {
  struct Row {
    std::uint8_t code;
    std::uint32_t tenths;
  };
  for (const Row& row : {Row{1, 1}, Row{127, 127}, Row{128, 128}, Row{0x8F, 248}, Row{0x90, 256}, Row{0xFF, 31744}}) {
    CAPTURE(int(row.code));
    Station s = member_of(from_ipv4(kGroup4));
    check_delays(s, igmp_query(row.code, 0, true), row.tenths * 100 * kMs);
  }
}

TEST_CASE("RFC 3810 5.1.3: response codes from 32768 on are floating point, in milliseconds", "[mld]") {
  struct Row {
    std::uint16_t code;
    std::uint32_t ms;
  };
  for (const Row& row : {Row{1, 1}, Row{32767, 32767}, Row{0x8000, 32768}, Row{0x8FFF, 65528}, Row{0x9000, 65536},
                         Row{0xFFFF, 8387584}}) {
    CAPTURE(row.code);
    Station s = member_of(kGroup6);
    check_delays(s, mld_query_of_size(28, row.code), row.ms * kMs);
  }
}

TEST_CASE("RFC 3376 4.2.12, RFC 3810 5.2.12: joining is record type 4, leaving 3, an answer 2", "[igmp][mld]") {
  const bool ipv4 = GENERATE(true, false);
  CAPTURE(ipv4);
  Station s = Station::ready();
  const Gid group = ipv4 ? from_ipv4(kGroup4) : kGroup6;
  const std::size_t at = ipv4 ? kIgmpAt : kMldAt;
  CHECK(reported_type(s, at, [&] { s.host.join(s.now, group, kNoVlan); }) == GroupRecord{4});
  s.run_until(s.now + 5 * kSec);
  s.sent();
  if (ipv4) {
    CHECK(reported_type(s, at, [&] { s.receive(igmp_query(1, kGroup4, true)); }) == GroupRecord{2});
  } else {
    s.host.leave(s.now, solicited_node_group(kOurV6), kNoVlan);  // so that the answer has one record
    s.host.leave(s.now, solicited_node_group(link_local_of(kOurMac)), kNoVlan);
    s.run_until(s.now + 5 * kSec);
    s.sent();
    CHECK(reported_type(s, at, [&] { s.receive(mld_query_of_size(28, 1)); }) == GroupRecord{2});
  }
  CHECK(reported_type(s, at, [&] { s.host.leave(s.now, group, kNoVlan); }) == GroupRecord{3});
}

TEST_CASE("RFC 3376 7.1: a query of 12 bytes and more is version 3, one of 8 with a response time version 2",
          "[igmp]") {
  struct Row {
    std::size_t size;
    std::uint8_t report;
  };
  for (const Row& row : {Row{8, wire::kIgmpV2Report}, Row{12, wire::kIgmpV3Report}, Row{16, wire::kIgmpV3Report}}) {
    CAPTURE(row.size);
    Station s = member_of(from_ipv4(kGroup4));
    CHECK(s.receive(igmp_query_of_size(row.size, 10)));
    s.run_until(s.now + kSec);
    const auto out = s.sent();
    REQUIRE(out.size() == 1);
    CHECK(out[0][kIgmpAt] == row.report);
  }
}

TEST_CASE("RFC 3376 7.1, RFC 3810 8.1: queries of any other length are ignored", "[igmp][mld]") {
  Station s = member_of(from_ipv4(kGroup4));
  for (const std::size_t size : {9u, 10u, 11u}) s.receive(igmp_query_of_size(size, 10));
  for (const std::size_t size : {20u, 25u, 26u, 27u}) s.receive(mld_query_of_size(size, 10));
  CHECK(s.host.next_timeout() == kNever);
  s.host.join(s.now, from_ipv4(kGroup4 + 1), kNoVlan);
  s.host.on_timeout(s.now);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(out[0][kIgmpAt] == wire::kIgmpV3Report);  // none of them was a sign of a version 2 router
}

TEST_CASE("RFC 3810 8.1: a query of 24 bytes is version 1: its response time is no floating point number", "[mld]") {
  Station s = member_of(kGroup6);
  check_delays(s, mld_query_of_size(24, 0x9000), 0x9000 * kMs);
  check_delays(s, mld_query_of_size(28, 0x9000), 65536 * kMs);
}

TEST_CASE("RFC 3376 8.1, 8.11: a change is reported twice, within a second", "[igmp]") {
  Station s = Station::ready();
  s.host.join(s.now, from_ipv4(kGroup4), kNoVlan);
  const Nanos start = s.now;
  s.run_until(start);
  CHECK(s.sent().size() == 1);
  s.run_until(start + kSec);
  CHECK(s.sent().size() == 1);
  s.run_until(start + 100 * kSec);
  CHECK(s.sent().empty());
}

TEST_CASE("RFC 3376 8.12: version 2 is spoken for 260 s after the last version 2 query", "[igmp]") {
  Station s = Station::ready();
  const auto version_spoken = [&](std::uint32_t group) {
    s.host.join(s.now, from_ipv4(group), kNoVlan);
    s.host.on_timeout(s.now);
    const auto out = s.sent();
    REQUIRE_FALSE(out.empty());
    return out.back()[kIgmpAt] == wire::kIgmpV2Report ? 2 : 3;
  };
  s.receive(igmp_query(10, 0, false));
  s.run_until(s.now + 200 * kSec);
  s.receive(igmp_query(10, 0, false));
  const Nanos heard = s.now;
  s.run_until(heard + 260 * kSec - kMs);
  CHECK(version_spoken(kGroup4) == 2);
  s.run_until(heard + 260 * kSec);
  CHECK(version_spoken(kGroup4 + 1) == 3);
}

TEST_CASE("RFC 2711 2.1, RFC 3810 5: MLD goes out with hop limit 1 and the router alert for MLD", "[mld]") {
  Station s = Station::ready();
  s.host.join(s.now, kGroup6, kNoVlan);
  s.host.on_timeout(s.now);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(ip6_of(out[0]).hop_limit() == 1);
  CHECK(ip6_of(out[0]).next_header() == 0);
  const std::uint8_t* header = out[0].data() + 54;
  CHECK(header[0] == wire::kIpProtoIcmpv6);
  const std::size_t size = 8 + 8u * header[1];
  bool alert = false;
  for (std::size_t at = 2; at < size;) {
    if (header[at] == 0) {  // Pad1
      ++at;
      continue;
    }
    REQUIRE(at + 2u + header[at + 1] <= size);
    if (header[at] == 5) {
      alert = true;
      CHECK(header[at + 1] == 2);
      CHECK(load_be16(header + at + 2) == 0);  // the packet contains an MLD message
    }
    at += 2u + header[at + 1];
  }
  CHECK(alert);
}

TEST_CASE("RFC 3810 5.2.13: without a link-local address reports come from the unspecified one", "[mld]") {
  HostOptions o;
  o.detect_duplicates = true;
  Station s(o);
  s.host.join(s.now, kGroup6, kNoVlan);
  s.run_until(s.now + 5 * kSec);
  const Gid link_local = link_local_of(kOurMac);
  REQUIRE(s.host.add_address(s.now, {link_local, 64, kNoVlan}));  // in doubt for a second
  s.host.on_timeout(s.now);
  std::size_t reports = 0;
  for (const Frame& f : s.sent()) {
    if (ip6_of(f).next_header() != 0) continue;
    CHECK(is_unspecified(ip6_of(f).src()));
    CHECK(mld(f).size() == 1);
    ++reports;
  }
  CHECK(reports == 3);
  s.run_until(s.now + 5 * kSec);
  REQUIRE(s.host.own(link_local, kNoVlan) != nullptr);
  s.sent();
  s.host.leave(s.now, kGroup6, kNoVlan);
  s.host.on_timeout(s.now);
  const auto out = s.sent();
  REQUIRE(out.size() == 1);
  CHECK(ip6_of(out[0]).src() == link_local);
}

TEST_CASE("RFC 3810 6: the group of all nodes and groups that stay in the node are not reported", "[mld]") {
  Station s = Station::ready();
  const Gid all_nodes{{0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  for (const Gid& group : {all_nodes, Gid{{0xFF, 1, 1}}, Gid{{0xFF, 0x10, 1}}}) {
    REQUIRE(s.host.join(s.now, group, kNoVlan));
    CHECK(s.host.member(group, kNoVlan));
    s.receive(mld_query_of_size(28, 1));
    s.run_until(s.now + 5 * kSec);
    for (const Frame& f : s.sent())
      for (const Record& r : mld(f)) CHECK_FALSE(r.group == group);
    s.host.leave(s.now, group, kNoVlan);
    CHECK(s.host.next_timeout() == kNever);
  }
  s.host.join(s.now, Gid{{0xFF, 2, 1}}, kNoVlan);  // of link-local scope: reported
  CHECK(s.host.next_timeout() == s.now);
}
