// Neighbour Discovery messages (RFC 4861 s4.3, s4.4) with the link-layer address options of Ethernet (s4.6.1).
#pragma once

#include "protocols/wire/icmpv6.h"

namespace softrnic::wire {

inline constexpr std::uint8_t kNdpSolicitation = 135;
inline constexpr std::uint8_t kNdpAdvertisement = 136;
inline constexpr std::uint8_t kNdpHopLimit = 255;  // anything else came through a router (RFC 4861 s7.1)
inline constexpr std::uint8_t kNdpOptionSourceMac = 1;
inline constexpr std::uint8_t kNdpOptionTargetMac = 2;
inline constexpr std::uint32_t kNdpMinSize = 24;      // without options
inline constexpr std::uint32_t kNdpSizeWithMac = 32;  // with one link-layer address option

// A Neighbour Solicitation or Advertisement as values.
struct NdpMessage {
  static constexpr std::uint8_t kRouter = 0x80, kSolicited = 0x40, kOverride = 0x20;
  std::uint8_t type = kNdpSolicitation;
  std::uint8_t flags = 0;  // advertisements only
  Gid target{};
  bool has_mac = false;  // source (solicitation) or target (advertisement) link-layer address option
  std::uint8_t mac[6]{};

  // Takes a message of `length` bytes apart, checksum apart. False when the message is malformed: code not 0, too
  // short, target a multicast address, or an option of length 0 or beyond the end (RFC 4861 s7.1.1, s7.1.2).
  static bool load(const std::uint8_t* p, std::size_t length, NdpMessage* out) {
    if (length < kNdpMinSize || p[1] != 0 || p[8] == 0xFF) return false;
    out->type = p[0];
    out->flags = p[4];
    std::memcpy(out->target.raw, p + 8, 16);
    const std::uint8_t wanted = p[0] == kNdpSolicitation ? kNdpOptionSourceMac : kNdpOptionTargetMac;
    for (std::size_t at = kNdpMinSize; at < length;) {
      if (length - at < 8) return false;
      const std::size_t size = p[at + 1] * 8u;
      if (size == 0 || size > length - at) return false;
      if (p[at] == wanted && size == 8) {
        out->has_mac = true;
        std::memcpy(out->mac, p + at + 2, 6);
      }
      at += size;
    }
    return true;
  }
  std::uint32_t size() const { return has_mac ? kNdpSizeWithMac : kNdpMinSize; }
  // Writes size() bytes with the checksum for these addresses.
  void store(std::uint8_t* p, const Gid& src, const Gid& dst) const {
    std::memset(p, 0, size());
    p[0] = type;
    p[4] = flags;
    std::memcpy(p + 8, target.raw, 16);
    if (has_mac) {
      p[24] = type == kNdpSolicitation ? kNdpOptionSourceMac : kNdpOptionTargetMac;
      p[25] = 1;
      std::memcpy(p + 26, mac, 6);
    }
    icmpv6_store_checksum(src, dst, p, size());
  }
};

}  // namespace softrnic::wire
