// Helpers of the RoCE tests: hex, an independent CRC, and frames of every framing.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "protocols/common/bytes.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/icrc.h"

namespace softrnic::test {

inline std::vector<std::uint8_t> hex(std::string_view text) {
  auto digit = [](char c) { return static_cast<std::uint8_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10); };
  std::vector<std::uint8_t> out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    out.push_back(static_cast<std::uint8_t>(digit(text[i]) << 4 | digit(text[i + 1])));
  }
  return out;
}

// State of the reflected CRC-32 after `n` bytes from the state of all ones, a bit at a time.
inline std::uint32_t crc_bitwise(const std::uint8_t* p, std::size_t n) {
  std::uint32_t c = 0xFFFFFFFFu;
  for (std::size_t i = 0; i < n; ++i) {
    c ^= p[i];
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) ? (c >> 1) ^ 0xEDB88320u : c >> 1;
  }
  return c;
}

}  // namespace softrnic::test
