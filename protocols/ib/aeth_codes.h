// AETH syndromes: credits, RNR timers and NAK codes (IBA 9.7.5.2, tables 45 and 46).
#pragma once

#include <bit>

#include "protocols/common/types.h"

namespace softrnic::ib {

// Bits [6:5] of the syndrome; bit 7 is reserved and ignored on receipt.
inline constexpr std::uint8_t kSyndromeTypeMask = 0x60;
inline constexpr std::uint8_t kSyndromeAck = 0x00;
inline constexpr std::uint8_t kSyndromeRnr = 0x20;
inline constexpr std::uint8_t kSyndromeNak = 0x60;
inline constexpr std::uint8_t kSyndromeValueMask = 0x1F;

inline constexpr std::uint8_t kNakPsnSequence = 0x60;
inline constexpr std::uint8_t kNakInvalidRequest = 0x61;
inline constexpr std::uint8_t kNakRemoteAccess = 0x62;
inline constexpr std::uint8_t kNakRemoteOperational = 0x63;

// ACK credit code "no flow control": what QPs with an SRQ send.
inline constexpr std::uint8_t kCreditsUnlimited = 0x1F;

// Credit code of `available` receive requests, rounded down: 0, 1, 2, 3, then two codes an octave up
// to 32768 (IBA table 46).
constexpr std::uint8_t encode_credits(std::uint32_t available) {
  if (available < 2) return static_cast<std::uint8_t>(available);
  if (available >= 32768) return 0x1E;
  const unsigned k = static_cast<unsigned>(std::bit_width(available)) - 1;
  return static_cast<std::uint8_t>(2 * k + ((available >> (k - 1)) & 1));
}

// Receive requests that a code below kCreditsUnlimited stands for.
constexpr std::uint32_t decode_credits(std::uint8_t code) {
  if (code < 2) return code;
  const unsigned k = code / 2u;
  return (1u << k) + ((code & 1u) << (k - 1));
}

// Waiting time of an RNR timer code 0..31 (IBA table 45).
constexpr Nanos rnr_timer_ns(std::uint8_t code) {
  constexpr std::uint32_t kHundredthsOfMs[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                                 48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                                 2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return Nanos{kHundredthsOfMs[code & 31]} * 10'000;
}

}  // namespace softrnic::ib
