// 24-bit packet sequence numbers (IBA 9.7.1) and message sequence numbers.
#pragma once

#include <cstdint>

namespace softrnic {

inline constexpr std::uint32_t kPsnMask = 0xFFFFFFu;

// a + n modulo 2^24.
constexpr std::uint32_t psn_add(std::uint32_t a, std::uint32_t n) { return (a + n) & kPsnMask; }

// Signed distance a - b in [-2^23, 2^23): negative when `a` lies behind `b` (IBA 9.7.1, half-window rule).
constexpr std::int32_t psn_diff(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>((a - b) << 8) >> 8;
}

}  // namespace softrnic
