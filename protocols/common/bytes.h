// Big-endian loads and stores at any alignment.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace softrnic {

namespace detail {
template <class T>
constexpr T to_be(T v) {
  static_assert(std::endian::native == std::endian::little);
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(v);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(v);
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(v);
}
template <class T>
inline T load_be(const std::uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return to_be(v);
}
template <class T>
inline void store_be(std::uint8_t* p, T v) {
  v = to_be(v);
  std::memcpy(p, &v, sizeof v);
}
}  // namespace detail

inline std::uint16_t load_be16(const std::uint8_t* p) { return detail::load_be<std::uint16_t>(p); }
inline std::uint32_t load_be24(const std::uint8_t* p) {
  return static_cast<std::uint32_t>(p[0]) << 16 | static_cast<std::uint32_t>(p[1]) << 8 | p[2];
}
inline std::uint32_t load_be32(const std::uint8_t* p) { return detail::load_be<std::uint32_t>(p); }
inline std::uint64_t load_be64(const std::uint8_t* p) { return detail::load_be<std::uint64_t>(p); }
inline void store_be16(std::uint8_t* p, std::uint16_t v) { detail::store_be(p, v); }
inline void store_be24(std::uint8_t* p, std::uint32_t v) {
  p[0] = static_cast<std::uint8_t>(v >> 16);
  p[1] = static_cast<std::uint8_t>(v >> 8);
  p[2] = static_cast<std::uint8_t>(v);
}
inline void store_be32(std::uint8_t* p, std::uint32_t v) { detail::store_be(p, v); }
inline void store_be64(std::uint8_t* p, std::uint64_t v) { detail::store_be(p, v); }

}  // namespace softrnic
