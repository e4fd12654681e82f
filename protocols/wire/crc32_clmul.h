// CRC-32 of Ethernet with carry-less multiplication, where that beats ISA-L: the short inputs of a small packet, for
// which ISA-L has no code of their own, and long ones on CPUs that multiply 256 bits at once but have not the 512-bit
// vectors that ISA-L uses. States are reflected, before the final complement.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softrnic::wire {

// Shortest input of crc32_wide().
inline constexpr std::size_t kCrc32WideMin = 128;

// Does this CPU have what crc32_blocks() needs? Does it gain from crc32_wide()?
inline bool has_crc32_blocks() { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
inline bool has_crc32_wide() {
  return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx2") && !__builtin_cpu_supports("avx512f");
}

// State after `length` more bytes at `p`: a multiple of 16, at least 16. The first 16 bytes count with the bits of
// `first_ones` (16 bytes) set.
std::uint32_t crc32_blocks(std::uint32_t state, const std::uint8_t* p, std::size_t length,
                           const std::uint8_t* first_ones);

// State after `length` more bytes at `p`: a multiple of 16, at least kCrc32WideMin.
std::uint32_t crc32_wide(std::uint32_t state, const std::uint8_t* p, std::size_t length);

}  // namespace softrnic::wire
