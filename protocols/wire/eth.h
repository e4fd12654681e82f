// Ethernet II header (IEEE 802.3 clause 3).
#pragma once

#include <cstring>

#include "protocols/common/bytes.h"

namespace softrnic::wire {

inline constexpr std::uint16_t kEthertypeIpv4 = 0x0800;
inline constexpr std::uint16_t kEthertypeArp = 0x0806;
inline constexpr std::uint16_t kEthertypeVlan = 0x8100;
inline constexpr std::uint16_t kEthertypeIpv6 = 0x86DD;
inline constexpr std::uint16_t kEthertypeRoceV1 = 0x8915;

// The header as values.
struct EthHeader {
  static constexpr std::uint32_t kSize = 14;
  std::uint8_t dst[6]{};
  std::uint8_t src[6]{};
  std::uint16_t ethertype = 0;

  // Writes kSize bytes.
  void store(std::uint8_t* p) const {
    std::memcpy(p, dst, 6);
    std::memcpy(p + 6, src, 6);
    store_be16(p + 12, ethertype);
  }
};
static_assert(EthHeader::kSize == sizeof(EthHeader), "14 bytes without holes");

// The header in a frame of at least EthHeader::kSize bytes.
class EthView {
 public:
  explicit EthView(const std::uint8_t* p) : p_(p) {}
  const std::uint8_t* dst() const { return p_; }
  const std::uint8_t* src() const { return p_ + 6; }
  std::uint16_t ethertype() const { return load_be16(p_ + 12); }

 private:
  const std::uint8_t* p_;
};

}  // namespace softrnic::wire
