// The input is a polynomial over GF(2), the CRC its remainder modulo P. A block of bits that stands D bits before
// another may be replaced by its product with x^D mod P added to that other block. So blocks of 128 bits are folded
// into each other, or four 256-bit accumulators run over the input in steps of 1024 bits and are folded into one block
// in the end; that is reduced to the remainder.
//
// In the reflected bit order of Ethernet a 64-bit half at a distance of D bits is multiplied with x^(D + 32) for the
// low half and x^(D - 32) for the high one: the products of reflected operands come out one bit too low, which the
// constants make up for by being shifted up by one bit.
#include "protocols/wire/crc32_clmul.h"

#include <immintrin.h>

#define SOFTRNIC_BLOCKS __attribute__((target("sse4.1,pclmul")))
#define SOFTRNIC_WIDE __attribute__((target("avx2,pclmul,vpclmulqdq")))

namespace softrnic::wire {
namespace {

constexpr std::uint32_t kPoly = 0xEDB88320u;  // P without x^32, reflected

// x^n mod P, reflected, as a factor.
constexpr std::uint64_t factor(unsigned n) {
  std::uint32_t r = 0x80000000u;  // x^0
  for (unsigned i = 0; i < n; ++i) r = (r >> 1) ^ ((r & 1) != 0 ? kPoly : 0);
  return std::uint64_t{r} << 1;
}

// floor(x^64 / P), reflected: the quotient of Barrett's reduction.
constexpr std::uint64_t quotient() {
  std::uint64_t q = 0;
  std::uint32_t r = 0x80000000u;  // long division of x^64: remainders of x^32 and on, one quotient bit a step
  for (unsigned i = 0; i < 31; ++i) r >>= 1;
  // r is x^31 now; 33 more steps multiply by x up to x^64.
  for (unsigned i = 0; i < 33; ++i) {
    const bool bit = (r & 1) != 0;
    r = (r >> 1) ^ (bit ? kPoly : 0);
    if (bit) q |= std::uint64_t{1} << i;
  }
  return q;
}
constexpr std::uint64_t kModulus = std::uint64_t{kPoly} << 1 | 1;
static_assert(factor(64) == 0x163CD6124 && quotient() == 0x1F7011641 && kModulus == 0x1DB710641);

template <unsigned Distance>
SOFTRNIC_BLOCKS inline __m128i factors() {
  constexpr std::uint64_t low = factor(Distance + 32), high = factor(Distance - 32);
  return _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
}

SOFTRNIC_BLOCKS inline __m128i fold(__m128i block, __m128i k, __m128i onto) {
  const __m128i low = _mm_clmulepi64_si128(block, k, 0x00), high = _mm_clmulepi64_si128(block, k, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

SOFTRNIC_WIDE inline __m256i fold(__m256i blocks, __m256i k, __m256i onto) {
  const __m256i low = _mm256_clmulepi64_epi128(blocks, k, 0x00), high = _mm256_clmulepi64_epi128(blocks, k, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(low, high), onto);
}

SOFTRNIC_WIDE inline __m256i load256(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
SOFTRNIC_BLOCKS inline __m128i load128(const std::uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// Remainder of a block of 128 bits.
SOFTRNIC_BLOCKS inline std::uint32_t reduce(__m128i x) {
  const __m128i low32 = _mm_set_epi32(0, 0, 0, -1);
  const __m128i k = _mm_set_epi64x(static_cast<long long>(factor(64)), static_cast<long long>(factor(96)));
  // 128 bits to 96 to 64.
  x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, k, 0x00));
  x = _mm_xor_si128(_mm_srli_si128(x, 4), _mm_clmulepi64_si128(_mm_and_si128(x, low32), k, 0x10));
  // Barrett: the multiple of P that the low 32 bits ask for.
  const __m128i p = _mm_set_epi64x(static_cast<long long>(quotient()), static_cast<long long>(kModulus));
  __m128i t = _mm_clmulepi64_si128(_mm_and_si128(x, low32), p, 0x10);
  t = _mm_clmulepi64_si128(_mm_and_si128(t, low32), p, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(x, t), 1));
}

}  // namespace

SOFTRNIC_BLOCKS std::uint32_t crc32_blocks(std::uint32_t state, const std::uint8_t* p, std::size_t length,
                                           const std::uint8_t* first_ones) {
  __m128i x = _mm_xor_si128(_mm_or_si128(load128(p), load128(first_ones)), _mm_cvtsi32_si128(static_cast<int>(state)));
  const __m128i k = factors<128>();
  for (p += 16, length -= 16; length >= 16; p += 16, length -= 16) x = fold(x, k, load128(p));
  return reduce(x);
}

SOFTRNIC_WIDE std::uint32_t crc32_wide(std::uint32_t state, const std::uint8_t* p, std::size_t length) {
  __m256i a = _mm256_xor_si256(load256(p), _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(state))));
  __m256i b = load256(p + 32), c = load256(p + 64), d = load256(p + 96);
  const __m256i far = _mm256_broadcastsi128_si256(factors<1024>());
  for (p += 128, length -= 128; length >= 128; p += 128, length -= 128) {
    a = fold(a, far, load256(p));
    b = fold(b, far, load256(p + 32));
    c = fold(c, far, load256(p + 64));
    d = fold(d, far, load256(p + 96));
  }
  const __m256i near = _mm256_broadcastsi128_si256(factors<256>());
  d = fold(fold(fold(a, near, b), near, c), near, d);
  for (; length >= 32; p += 32, length -= 32) d = fold(d, near, load256(p));
  const __m128i k = factors<128>();
  __m128i x = fold(_mm256_castsi256_si128(d), k, _mm256_extracti128_si256(d, 1));
  if (length >= 16) {
    x = fold(x, k, load128(p));
    p += 16;
    length -= 16;
  }
  return reduce(x);
}

}  // namespace softrnic::wire
