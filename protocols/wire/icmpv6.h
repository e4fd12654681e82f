// ICMPv6 (RFC 4443) and what MLDv2 (RFC 3810) puts into it.
#pragma once

#include "protocols/common/bytes.h"
#include "protocols/wire/inet_checksum.h"
#include "protocols/wire/ipv6.h"

namespace softrnic::wire {

inline constexpr std::uint8_t kIpProtoIcmpv6 = 58;
inline constexpr std::uint8_t kIcmpv6Echo = 128;
inline constexpr std::uint8_t kIcmpv6EchoReply = 129;
inline constexpr std::uint32_t kIcmpv6EchoSize = 8;  // as in ICMP

inline constexpr std::uint8_t kMldQuery = 130;
inline constexpr std::uint8_t kMldV2Report = 143;
inline constexpr std::uint32_t kMldQueryMin = 24;      // type, code, checksum, maximum response delay, 0, group
inline constexpr std::uint32_t kMldV2QueryMin = 28;    // a query at least this long is version 2 (RFC 3810 s8.1)
inline constexpr std::uint32_t kMldV2ReportSize = 8;   // type, 0, checksum, 0, number of records
inline constexpr std::uint32_t kMldV2RecordSize = 20;  // type, 0, number of sources = 0, group

// A hop-by-hop extension header with the router alert of MLD (RFC 2711 s2.1, RFC 3810 s5), 8 bytes.
inline void store_mld_hop_by_hop(std::uint8_t* p) {
  store_be64(p, static_cast<std::uint64_t>(kIpProtoIcmpv6) << 56 | 0x00'0502'0000'0100u);
}

// True when a hop-by-hop extension header, a whole one, has that router alert.
inline bool has_mld_alert(Bytes header) {
  for (std::size_t at = 2; at < header.size();) {
    if (header[at] == 0) {  // Pad1
      ++at;
      continue;
    }
    if (header.size() - at < 2 || header.size() - at < 2u + header[at + 1]) return false;
    if (header[at] == 5 && header[at + 1] == 2 && load_be16(&header[at + 2]) == 0) return true;
    at += 2u + header[at + 1];
  }
  return false;
}

// The checksum of RFC 4443 s2.3: over a pseudo-header of the addresses and the message. 0 when it is right.
inline std::uint16_t icmpv6_checksum(const Gid& src, const Gid& dst, const std::uint8_t* p, std::size_t length) {
  std::uint32_t sum = inet_sum(dst.raw, 16, inet_sum(src.raw, 16));
  sum = inet_sum(p, length, inet_fold(sum + static_cast<std::uint32_t>(length) + kIpProtoIcmpv6));
  return static_cast<std::uint16_t>(~inet_fold(sum));
}
// Fills in the checksum (bytes 2 and 3) of a whole message.
inline void icmpv6_store_checksum(const Gid& src, const Gid& dst, std::uint8_t* p, std::size_t length) {
  store_be16(p + 2, 0);
  store_be16(p + 2, icmpv6_checksum(src, dst, p, length));
}

}  // namespace softrnic::wire
