// Address Resolution Protocol for IPv4 on Ethernet (RFC 826).
#pragma once

#include "protocols/common/bytes.h"

namespace softrnic::wire {

// The whole packet as values; protocol addresses as big-endian numbers (10.0.0.1 is 0x0A000001).
struct ArpPacket {
  static constexpr std::uint32_t kSize = 28;
  static constexpr std::uint16_t kRequest = 1;
  static constexpr std::uint16_t kReply = 2;
  std::uint16_t operation = kRequest;
  std::uint8_t sender_mac[6]{};
  std::uint32_t sender_ip = 0;
  std::uint8_t target_mac[6]{};
  std::uint32_t target_ip = 0;

  // True when the packet of at least kSize bytes is about Ethernet (1) and IPv4 with addresses of 6 and 4 bytes.
  static bool is_ethernet_ipv4(const std::uint8_t* p) { return load_be64(p) >> 16 == 0x000108000604u; }
  // Takes the fields out of a packet that is_ethernet_ipv4().
  static ArpPacket load(const std::uint8_t* p) {
    ArpPacket a;
    a.operation = load_be16(p + 6);
    std::memcpy(a.sender_mac, p + 8, 6);
    a.sender_ip = load_be32(p + 14);
    std::memcpy(a.target_mac, p + 18, 6);
    a.target_ip = load_be32(p + 24);
    return a;
  }
  // Writes kSize bytes.
  void store(std::uint8_t* p) const {
    store_be64(p, 0x000108000604u << 16 | operation);
    std::memcpy(p + 8, sender_mac, 6);
    store_be32(p + 14, sender_ip);
    std::memcpy(p + 18, target_mac, 6);
    store_be32(p + 24, target_ip);
  }
};

}  // namespace softrnic::wire
