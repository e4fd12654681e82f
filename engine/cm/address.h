// Addresses as rdma_cm takes them: IPv4, IPv6, and the service IDs of AF_IB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "protocols/common/types.h"

namespace softrnic::rdmacm {

inline constexpr std::uint16_t kAfIb = 27;  // AF_IB of linux/socket.h

// One address with its port. IPv4 addresses are kept in their mapped form.
struct Address {
  std::uint16_t family = 0;     // AF_INET, AF_INET6, kAfIb; 0: not set
  Gid ip{};                     // of AF_IB: the GID
  std::uint16_t port = 0;       // of AF_IB: the lowest 16 bits of the service ID
  std::uint32_t scope_id = 0;   // IPv6: interface of a link-local address
  std::uint32_t flow_info = 0;  // network byte order
  std::uint16_t pkey = 0;       // AF_IB, network byte order
  std::uint64_t sid = 0;        // AF_IB: service ID and what of it counts
  std::uint64_t sid_mask = 0;

  // Takes a struct sockaddr_in, sockaddr_in6 or sockaddr_ib apart. Nothing when the family is none of these or the
  // bytes are too few.
  static std::optional<Address> read(Bytes sockaddr);
  // Writes the struct sockaddr to `out`, which has at least 48 bytes. Returns its size; 0 when the family is not set.
  std::size_t write(std::uint8_t* out) const;
  // Size of the struct sockaddr of a family (rdma_addr_size()); 0 for others.
  static std::size_t size_of(std::uint16_t family);

  bool is_zero() const;      // the unspecified address, or none
  bool is_loopback() const;  // 127.0.0.0/8, ::1
  bool is_link_local() const;
  bool same_ip(const Address& other) const { return family == other.family && ip == other.ip; }
  void set_port(std::uint16_t p);
};

bool is_multicast(const Address& a);

}  // namespace softrnic::rdmacm
