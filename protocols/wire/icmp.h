// ICMP for IPv4 (RFC 792), as far as a host answers it: echo. And the group management of IGMP (RFC 2236, RFC 3376).
#pragma once

#include "protocols/common/bytes.h"
#include "protocols/wire/inet_checksum.h"

namespace softrnic::wire {

inline constexpr std::uint8_t kIcmpEchoReply = 0;
inline constexpr std::uint8_t kIcmpEcho = 8;
// Type, code, checksum, identifier, sequence number; data behind it.
inline constexpr std::uint32_t kIcmpEchoSize = 8;

// True when the checksum over a whole ICMP or IGMP message is right.
inline bool icmp_checksum_ok(const std::uint8_t* p, std::size_t length) {
  return inet_fold(inet_sum(p, length)) == 0xFFFFu;
}
// Fills in the checksum (bytes 2 and 3) of a whole ICMP or IGMP message.
inline void icmp_store_checksum(std::uint8_t* p, std::size_t length) {
  store_be16(p + 2, 0);
  store_be16(p + 2, static_cast<std::uint16_t>(~inet_fold(inet_sum(p, length))));
}

inline constexpr std::uint8_t kIpProtoIgmp = 2;
inline constexpr std::uint8_t kIgmpQuery = 0x11;
inline constexpr std::uint8_t kIgmpV2Report = 0x16;
inline constexpr std::uint8_t kIgmpV2Leave = 0x17;
inline constexpr std::uint8_t kIgmpV3Report = 0x22;
inline constexpr std::uint32_t kIgmpV2Size = 8;        // type, maximum response time, checksum, group
inline constexpr std::uint32_t kIgmpV3QueryMin = 12;   // a query at least this long is version 3 (RFC 3376 s7.1)
inline constexpr std::uint32_t kIgmpV3ReportSize = 8;  // type, 0, checksum, 0, number of records
inline constexpr std::uint32_t kIgmpV3RecordSize = 8;  // type, 0, number of sources = 0, group

// Types of group records, the same in IGMPv3 (RFC 3376 s4.2.12) and MLDv2 (RFC 3810 s5.2.12).
enum class GroupRecord : std::uint8_t {
  mode_is_exclude = 2,    // current state: a member, of every source
  change_to_include = 3,  // without sources: leaves the group
  change_to_exclude = 4,  // joins the group
};

}  // namespace softrnic::wire
