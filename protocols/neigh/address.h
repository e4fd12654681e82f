// Addresses of a host on an Ethernet: IPv6 addresses as they are, IPv4 ones in their IPv4-mapped form (::ffff:a.b.c.d).
#pragma once

#include <array>
#include <cstring>

#include "protocols/common/bytes.h"
#include "protocols/common/types.h"
#include "protocols/wire/vlan.h"

namespace softrnic::neigh {

using Mac = std::array<std::uint8_t, 6>;

inline constexpr Mac kBroadcastMac{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
using wire::kNoVlan;

inline Gid from_ipv4(std::uint32_t address) {
  Gid g{};
  g.raw[10] = g.raw[11] = 0xFF;
  store_be32(g.raw + 12, address);
  return g;
}
inline bool is_ipv4(const Gid& g) { return load_be64(g.raw) == 0 && load_be32(g.raw + 8) == 0xFFFF; }
// Of an address that is_ipv4().
inline std::uint32_t to_ipv4(const Gid& g) { return load_be32(g.raw + 12); }

inline bool is_unspecified(const Gid& g) {
  return (load_be64(g.raw) == 0 && load_be64(g.raw + 8) == 0) || (is_ipv4(g) && to_ipv4(g) == 0);
}
inline bool is_link_local(const Gid& g) { return g.raw[0] == 0xFE && (g.raw[1] & 0xC0) == 0x80; }
inline bool is_multicast(const Gid& g) { return is_ipv4(g) ? (g.raw[12] & 0xF0) == 0xE0 : g.raw[0] == 0xFF; }

// Modified EUI-64 link-local address of a MAC (RFC 4291 appendix A).
inline Gid link_local_of(const Mac& mac) {
  return {{0xFE, 0x80, 0, 0, 0, 0, 0, 0, static_cast<std::uint8_t>(mac[0] ^ 2), mac[1], mac[2], 0xFF, 0xFE, mac[3],
           mac[4], mac[5]}};
}
// ff02::1:ffXX:XXXX (RFC 4291 s2.7.1).
inline Gid solicited_node_group(const Gid& g) {
  return {{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, g.raw[13], g.raw[14], g.raw[15]}};
}
// MAC of a multicast group (RFC 1112 s6.4, RFC 2464 s7).
inline Mac multicast_mac(const Gid& g) {
  if (is_ipv4(g)) return {0x01, 0x00, 0x5E, static_cast<std::uint8_t>(g.raw[13] & 0x7F), g.raw[14], g.raw[15]};
  return {0x33, 0x33, g.raw[12], g.raw[13], g.raw[14], g.raw[15]};
}

inline Mac load_mac(const std::uint8_t* p) {
  Mac m;
  std::memcpy(m.data(), p, m.size());
  return m;
}
// Neither a group address nor all zeros.
inline bool is_unicast(const Mac& m) { return (m[0] & 1) == 0 && m != Mac{}; }

}  // namespace softrnic::neigh
