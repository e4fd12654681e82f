#include "engine/cm/address.h"

#include <netinet/in.h>

#include <cstring>

#include "protocols/common/bytes.h"
#include "protocols/neigh/address.h"
#include "protocols/roce/framing.h"

namespace softrnic::rdmacm {
namespace {

// struct sockaddr_ib of rdma/ib.h: family 2, pkey 2, flowinfo 4, GID 16, service ID 8, its mask 8, scope 8.
constexpr std::size_t kSockaddrIb = 48;

}  // namespace

std::size_t Address::size_of(std::uint16_t family) {
  switch (family) {
    case AF_INET:
      return sizeof(sockaddr_in);
    case AF_INET6:
      return sizeof(sockaddr_in6);
    case kAfIb:
      return kSockaddrIb;
    default:
      return 0;
  }
}

std::optional<Address> Address::read(Bytes bytes) {
  Address a;
  if (bytes.size() < sizeof(a.family)) return std::nullopt;
  std::memcpy(&a.family, bytes.data(), sizeof(a.family));
  const std::size_t size = size_of(a.family);
  if (size == 0 || bytes.size() < size) return std::nullopt;
  const std::uint8_t* p = bytes.data();
  if (a.family == AF_INET) {
    a.port = load_be16(p + 2);
    a.ip.raw[10] = a.ip.raw[11] = 0xFF;
    std::memcpy(a.ip.raw + 12, p + 4, 4);
  } else if (a.family == AF_INET6) {
    a.port = load_be16(p + 2);
    std::memcpy(&a.flow_info, p + 4, 4);
    std::memcpy(a.ip.raw, p + 8, 16);
    std::memcpy(&a.scope_id, p + 24, 4);
  } else {
    std::memcpy(&a.pkey, p + 2, 2);
    std::memcpy(&a.flow_info, p + 4, 4);
    std::memcpy(a.ip.raw, p + 8, 16);
    a.sid = load_be64(p + 24);
    a.sid_mask = load_be64(p + 32);
    a.port = static_cast<std::uint16_t>(a.sid & a.sid_mask);
  }
  return a;
}

std::size_t Address::write(std::uint8_t* p) const {
  const std::size_t size = size_of(family);
  std::memset(p, 0, size);
  if (size == 0) return 0;
  std::memcpy(p, &family, sizeof(family));
  if (family == AF_INET) {
    store_be16(p + 2, port);
    std::memcpy(p + 4, ip.raw + 12, 4);
  } else if (family == AF_INET6) {
    store_be16(p + 2, port);
    std::memcpy(p + 4, &flow_info, 4);
    std::memcpy(p + 8, ip.raw, 16);
    std::memcpy(p + 24, &scope_id, 4);
  } else {
    std::memcpy(p + 2, &pkey, 2);
    std::memcpy(p + 4, &flow_info, 4);
    std::memcpy(p + 8, ip.raw, 16);
    store_be64(p + 24, sid);
    store_be64(p + 32, sid_mask);
  }
  return size;
}

bool Address::is_zero() const {
  if (family != AF_INET) return ip == Gid{};
  static constexpr std::uint8_t zero[4] = {};
  return std::memcmp(ip.raw + 12, zero, sizeof(zero)) == 0;
}

bool Address::is_loopback() const {
  if (family == AF_INET) return ip.raw[12] == 127;
  static constexpr Gid one{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  return ip == one || (roce::is_ipv4_mapped(ip) && ip.raw[12] == 127);
}

bool Address::is_link_local() const { return neigh::is_link_local(ip); }

void Address::set_port(std::uint16_t p) {
  port = p;
  if (family == kAfIb) {
    sid = (sid & ~std::uint64_t{0xFFFF}) | p;
    sid_mask = ~std::uint64_t{0};
  }
}

bool is_multicast(const Address& a) {
  if (a.family == AF_INET) return (a.ip.raw[12] & 0xF0) == 0xE0;
  return a.ip.raw[0] == 0xFF;
}

}  // namespace softrnic::rdmacm
