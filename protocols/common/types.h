// Basic value types shared by every layer.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace softrnic {

// A point in time or a duration in nanoseconds. The protocols never read a clock: the caller
// passes `now` from a monotonic clock (the engine) or from virtual time (the simulator).
using Nanos = std::uint64_t;

// "No deadline": later than every time.
inline constexpr Nanos kNever = UINT64_MAX;

using Bytes = std::span<const std::uint8_t>;
using MutableBytes = std::span<std::uint8_t>;

// 128-bit GID / IPv6 address in network byte order.
struct Gid {
  std::uint8_t raw[16];
  friend bool operator==(const Gid&, const Gid&) = default;
  friend auto operator<=>(const Gid&, const Gid&) = default;
};

// Path MTU in the specification's encoding: 1 (256 bytes) to 5 (4096). What is between two of them counts as the
// smaller one.
constexpr std::uint8_t mtu_code(std::uint32_t bytes) {
  std::uint8_t code = 1;
  while (code < 5 && (256u << code) <= bytes) ++code;
  return code;
}

// The bytes of an encoded path MTU, 256 to 4096; 0 for a code that has none.
constexpr std::uint32_t mtu_bytes(std::uint8_t code) { return code >= 1 && code <= 5 ? 128u << code : 0; }

}  // namespace softrnic
