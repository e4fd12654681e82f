// Group membership on the wire: queries of routers, and what reports say.
#pragma once

#include "station.h"

namespace softrnic::neigh::test {

inline constexpr std::uint32_t kGroup4 = 0xEF010203;  // 239.1.2.3
inline constexpr Gid kGroup6{{0xFF, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3}};

using wire::GroupRecord;

struct Record {
  GroupRecord type;
  Gid group;
};

// Records of an IGMPv3 report, its headers checked (RFC 3376 s4, s4.2.14).
inline std::vector<Record> igmp_v3(const Frame& f) {
  REQUIRE(type_of(f) == wire::kEthertypeIpv4);
  const std::uint8_t* ip = f.data() + 14;
  CHECK(ip[0] == 0x46);
  CHECK(ip[8] == 1);
  CHECK(load_be32(ip + 16) == 0xE0000016);
  CHECK(load_be32(ip + 20) == 0x94040000);
  CHECK(wire::inet_fold(wire::inet_sum(ip, 24)) == 0xFFFF);
  CHECK(dst_of(f) == Mac{0x01, 0x00, 0x5E, 0, 0, 0x16});
  const std::uint8_t* m = ip + 24;
  const std::size_t size = load_be16(ip + 2) - 24u;
  REQUIRE(m[0] == wire::kIgmpV3Report);
  CHECK(wire::icmp_checksum_ok(m, size));
  std::vector<Record> records;
  for (unsigned i = 0; i < load_be16(m + 6); ++i) {
    const std::uint8_t* r = m + 8 + 8 * i;
    records.push_back({GroupRecord{r[0]}, from_ipv4(load_be32(r + 4))});
  }
  CHECK(size == 8 + 8 * records.size());
  return records;
}
// Records of an MLDv2 report (RFC 3810 s5.2).
inline std::vector<Record> mld(const Frame& f) {
  CHECK(ip6_of(f).hop_limit() == 1);
  CHECK(ip6_of(f).next_header() == 0);
  CHECK(dst_of(f) == Mac{0x33, 0x33, 0, 0, 0, 0x16});
  CHECK(load_be64(f.data() + 54) == 0x3A00050200000100u);
  const Frame m = icmpv6_of(f);
  REQUIRE(m[0] == wire::kMldV2Report);
  std::vector<Record> records;
  for (unsigned i = 0; i < load_be16(m.data() + 6); ++i) {
    Record r;
    r.type = GroupRecord{m[8 + 20 * i]};
    std::memcpy(r.group.raw, m.data() + 12 + 20 * i, 16);
    records.push_back(r);
  }
  return records;
}

// A query of `size` bytes: from 12 on it is version 3, of 8 bytes version 2.
inline Frame igmp_query_of_size(std::size_t size, std::uint8_t max_response, std::uint32_t group = 0) {
  Frame rest(size - 4);
  store_be32(rest.data(), group);
  return ipv4(0x0A0000FE, group == 0 ? 0xE0000001 : group, 2, icmp(0x11, rest, max_response), Mac{1, 0, 0x5E, 0, 0, 1});
}
inline Frame igmp_query(std::uint8_t max_response, std::uint32_t group, bool v3) {
  return igmp_query_of_size(v3 ? 12 : 8, max_response, group);
}
// What stands before an MLD message: a hop-by-hop header with the router alert.
inline const Frame kRouterAlert{wire::kIpProtoIcmpv6, 0, 5, 2, 0, 0, 1, 0};
// A general query of `size` bytes: from 28 on it is version 2, of 24 bytes version 1.
inline Frame mld_query_of_size(std::size_t size, std::uint16_t max_response, const Gid& src = kPeerLinkLocal,
                               std::uint8_t hop_limit = 1, const Frame& header = kRouterAlert) {
  const Gid all_nodes{{0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  Frame m(size);
  m[0] = wire::kMldQuery;
  store_be16(m.data() + 4, max_response);
  wire::icmpv6_store_checksum(src, all_nodes, m.data(), size);
  m.insert(m.begin(), header.begin(), header.end());
  const std::uint8_t next = header.empty() ? wire::kIpProtoIcmpv6 : std::uint8_t{0};
  return ipv6(src, all_nodes, next, hop_limit, m, Mac{0x33, 0x33, 0, 0, 0, 1});
}

}  // namespace softrnic::neigh::test
