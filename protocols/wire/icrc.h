// The invariant CRC (IBA 7.8.1): the CRC-32 of Ethernet over a packet whose mutable header fields are
// replaced by ones. Stored least significant byte first.
//
// All functions work on the *state* of the CRC, before the final complement, so that the state after
// bytes that do not change can be kept and continued.
#pragma once

#include <isa-l/crc.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "protocols/common/bytes.h"
#include "protocols/wire/crc32_clmul.h"

namespace softrnic::wire {

namespace detail {
using CrcTable = std::array<std::uint32_t, 256>;

template <std::size_t N>
constexpr std::array<CrcTable, N> crc_tables() {
  std::array<CrcTable, N> t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t c = b;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) ? 0xEDB88320u : 0);
    t[0][b] = c;
  }
  for (std::size_t k = 1; k < N; ++k) {
    for (std::size_t b = 0; b < 256; ++b) t[k][b] = t[0][t[k - 1][b] & 0xFF] ^ t[k - 1][b] >> 8;
  }
  return t;
}

// kCrcTables[k][b]: what a byte b adds to the state when k more bytes come after it. As far as the length
// field of an IPv6 header lies before the end of a UDP header.
inline constexpr auto kCrcTables = crc_tables<44>();

// Contribution of 4 bytes (the first in the low bits of `w`), `Following` bytes standing behind them.
template <unsigned Following>
inline std::uint32_t crc_word(std::uint32_t w) {
  return kCrcTables[Following + 3][w & 0xFF] ^ kCrcTables[Following + 2][w >> 8 & 0xFF] ^
         kCrcTables[Following + 1][w >> 16 & 0xFF] ^ kCrcTables[Following][w >> 24];
}

inline std::uint32_t load_le32(const std::uint8_t* p) {
  static_assert(std::endian::native == std::endian::little);
  std::uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
}  // namespace detail

// State before the first byte.
inline constexpr std::uint32_t kIcrcSeed = 0xFFFFFFFFu;

// State after the eight bytes of ones that stand for a masked LRH; every RoCE packet starts from it
// (IBA A17.3.3). Also the state after any intact packet together with its stored ICRC.
inline constexpr std::uint32_t kIcrcAfterLrh = 0xDEBB20E3u;

// State after `length` more bytes. ISA-L needs some 15 ns however short the input is; tables do a few
// words in less.
inline std::uint32_t icrc_update(std::uint32_t state, const std::uint8_t* p, std::size_t length) {
  if (length >= kCrc32WideMin && has_crc32_wide()) {
    const std::size_t whole = length & ~std::size_t{15};
    state = crc32_wide(state, p, whole);
    p += whole;
    length -= whole;
  }
  if (length >= 16) return ~crc32_gzip_refl(~state, p, length);
  for (; length >= 4; p += 4, length -= 4) state = detail::crc_word<0>(state ^ detail::load_le32(p));
  for (; length != 0; ++p, --length) state = detail::kCrcTables[0][(state ^ *p) & 0xFF] ^ state >> 8;
  return state;
}

// State after a BTH (12 bytes), whose fifth byte (FECN, BECN, reserved) counts as ones.
inline std::uint32_t icrc_update_bth(std::uint32_t state, const std::uint8_t* bth) {
  return detail::crc_word<8>(state ^ detail::load_le32(bth)) ^ detail::crc_word<4>(detail::load_le32(bth + 4) | 0xFF) ^
         detail::crc_word<0>(detail::load_le32(bth + 8));
}

// State after a transport packet of `length` >= 12 bytes: a BTH, as icrc_update_bth() has it, and what follows.
inline std::uint32_t icrc_update_transport(std::uint32_t state, const std::uint8_t* bth, std::size_t length) {
  constexpr std::size_t kBth = 12;
  alignas(16) static constexpr std::uint8_t kOnes[16] = {0, 0, 0, 0, 0xFF};
  if (length < 16 || length >= kBth + kCrc32WideMin || !has_crc32_blocks()) {
    return icrc_update(icrc_update_bth(state, bth), bth + kBth, length - kBth);
  }
  const std::size_t whole = length & ~std::size_t{15};
  state = crc32_blocks(state, bth, whole, kOnes);
  return icrc_update(state, bth + whole, length - whole);
}

// What a big-endian 16-bit field adds to the state (of the same bytes with this field zero) when
// `Following` bytes stand behind it. Lets a kept state be corrected for a length field.
template <unsigned Following>
inline std::uint32_t icrc_field16(std::uint16_t value) {
  static_assert(Following + 1 < detail::kCrcTables.size());
  return detail::kCrcTables[Following + 1][value >> 8] ^ detail::kCrcTables[Following][value & 0xFF];
}

// Value of the ICRC field, a little-endian number.
constexpr std::uint32_t icrc_value(std::uint32_t state) { return ~state; }

// Stores the ICRC field.
inline void icrc_store(std::uint8_t* p, std::uint32_t value) {
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(p, &value, sizeof value);
}

}  // namespace softrnic::wire
