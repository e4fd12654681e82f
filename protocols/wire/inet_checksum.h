// The Internet checksum (RFC 1071).
#pragma once

#include <cstddef>

#include "protocols/common/bytes.h"

namespace softrnic::wire {

// Folds a sum of 16-bit words to 16 bits with end-around carry.
constexpr std::uint32_t inet_fold(std::uint32_t sum) {
  sum = (sum & 0xFFFFu) + (sum >> 16);
  return (sum & 0xFFFFu) + (sum >> 16);
}

// Adds `length` bytes as big-endian 16-bit words to `sum`; an odd last byte counts as a high byte.
// At most 64 KiB in all, so that the 32-bit sum cannot overflow.
inline std::uint32_t inet_sum(const std::uint8_t* p, std::size_t length, std::uint32_t sum = 0) {
  for (; length >= 2; p += 2, length -= 2) sum += load_be16(p);
  if (length != 0) sum += static_cast<std::uint32_t>(*p) << 8;
  return sum;
}

}  // namespace softrnic::wire
