// Where a packet goes next: directly to its destination, or to a gateway.
#pragma once

#include <cstdint>
#include <vector>

#include "protocols/neigh/address.h"

namespace softrnic::neigh {

struct Route {
  Gid prefix{};
  std::uint8_t length = 0;  // bits of the prefix, 0 to 32 for IPv4 and 0 to 128 for IPv6
  Gid gateway{};            // of the prefix's family; unspecified: the prefix is on the link
  std::uint16_t vlan = kNoVlan;
};

class RouteTable {
 public:
  // Adds a route, or replaces the one with the same prefix and VLAN. False when the length is more than the family
  // has, or the gateway is of the other family.
  bool add(const Route& route);
  // False when there is none.
  bool remove(const Gid& prefix, std::uint8_t length, std::uint16_t vlan);

  // The next hop towards `dst` out of VLAN `vlan` by longest prefix match (RFC 1812 s5.2.4.3). False: no route.
  // Link-local and multicast destinations are always on the link.
  bool next_hop(const Gid& dst, std::uint16_t vlan, Gid* out) const;

  const std::vector<Route>& routes() const { return routes_; }  // longest prefix first

 private:
  std::vector<Route> routes_;
};

// True when the first `length` bits (counted as in Route) of two addresses of one family are equal.
bool same_prefix(const Gid& a, const Gid& b, std::uint8_t length);

}  // namespace softrnic::neigh
