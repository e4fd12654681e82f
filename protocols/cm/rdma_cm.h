// What the RDMA connection manager (rdma_cm) lays over the IB CM: service IDs made of port spaces and ports, the header
// with the IP addresses at the start of the private data of REQ and SIDR_REQ, and the private data that is left to
// applications.
#pragma once

#include <optional>

#include "protocols/common/bytes.h"
#include "protocols/common/types.h"

namespace softrnic::cm {

// enum rdma_port_space of the kernel's ABI.
enum class PortSpace : std::uint16_t { ipoib = 0x0002, tcp = 0x0106, udp = 0x0111, ib = 0x013F };

inline constexpr std::uint64_t service_id(PortSpace ps, std::uint16_t port) {
  return static_cast<std::uint64_t>(ps) << 16 | port;
}
// Of a service ID that service_id() made; nothing for others.
std::optional<PortSpace> port_space_of(std::uint64_t service_id);
inline constexpr std::uint16_t port_of(std::uint64_t service_id) { return static_cast<std::uint16_t>(service_id); }

// The addresses in front of an application's private data. IPv4 addresses are in their IPv4-mapped form here
// (::ffff:a.b.c.d), on the wire behind twelve zero bytes.
struct IpHeader {
  static constexpr std::size_t kSize = 36;
  std::uint8_t ip_version = 4;  // 4 or 6
  std::uint16_t src_port = 0;
  Gid src{};
  Gid dst{};

  // Writes kSize bytes.
  void write(std::uint8_t* p) const;
  // Nothing when the bytes are too few, the header's version is not 0, or the IP version is neither 4 nor 6.
  static std::optional<IpHeader> read(Bytes private_data);
};

// Bytes of private data an application may give (and what its peer is always given).
inline constexpr std::size_t kMaxConnectData = 56;        // REQ, behind the IpHeader
inline constexpr std::size_t kMaxAcceptData = 196;        // REP
inline constexpr std::size_t kMaxRejectData = 148;        // REJ
inline constexpr std::size_t kMaxResolveData = 180;       // SIDR_REQ, behind the IpHeader
inline constexpr std::size_t kMaxResolveReplyData = 136;  // SIDR_REP

// What the kernel's rdma_cm asks its CM for; the codes are those of encoded times, 4.096 us * 2^code.
inline constexpr std::uint8_t kResponseTimeout = 20;    // both response time-outs of a REQ
inline constexpr std::uint8_t kMaxCmRetries = 15;       // of REQ, REP, DREQ, SIDR_REQ
inline constexpr std::uint8_t kMraServiceTimeout = 24;  // "the application takes its time"
inline constexpr std::uint8_t kRocePacketLifeTime = 16;

}  // namespace softrnic::cm
