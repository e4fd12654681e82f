#include "protocols/neigh/route_table.h"

#include <algorithm>

namespace softrnic::neigh {
namespace {

unsigned family_bits(const Gid& g) { return is_ipv4(g) ? 32 : 128; }

}  // namespace

bool same_prefix(const Gid& a, const Gid& b, std::uint8_t length) {
  if (is_ipv4(a) != is_ipv4(b)) return false;
  const unsigned first = is_ipv4(a) ? 12 : 0;
  const unsigned bytes = length / 8, rest = length % 8;
  if (std::memcmp(a.raw + first, b.raw + first, bytes) != 0) return false;
  return rest == 0 || (a.raw[first + bytes] ^ b.raw[first + bytes]) >> (8 - rest) == 0;
}

bool RouteTable::add(const Route& route) {
  if (route.length > family_bits(route.prefix)) return false;
  if (!is_unspecified(route.gateway) && is_ipv4(route.gateway) != is_ipv4(route.prefix)) return false;
  remove(route.prefix, route.length, route.vlan);
  const auto shorter = [&](const Route& r) { return r.length < route.length; };
  routes_.insert(std::find_if(routes_.begin(), routes_.end(), shorter), route);
  return true;
}

bool RouteTable::remove(const Gid& prefix, std::uint8_t length, std::uint16_t vlan) {
  const auto same = [&](const Route& r) {
    return r.length == length && r.vlan == vlan && same_prefix(r.prefix, prefix, length);
  };
  return std::erase_if(routes_, same) != 0;
}

bool RouteTable::next_hop(const Gid& dst, std::uint16_t vlan, Gid* out) const {
  if (is_link_local(dst) || is_multicast(dst)) {
    *out = dst;
    return true;
  }
  for (const Route& r : routes_) {
    if (r.vlan != vlan || !same_prefix(r.prefix, dst, r.length)) continue;
    *out = is_unspecified(r.gateway) ? dst : r.gateway;
    return true;
  }
  return false;
}

}  // namespace softrnic::neigh
