// What every fuzz target defines: libFuzzer's entry point and inputs to start from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

// Runs one input. Aborts, or makes a sanitizer abort, when it finds a fault.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace softrnic::fuzz {

using Input = std::vector<std::uint8_t>;

// Inputs that reach every part of the target.
std::vector<Input> seeds();

// Ends the process with a message when a property does not hold.
#define FUZZ_CHECK(condition)                                                                 \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      std::fprintf(stderr, "%s:%d: property violated: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                           \
    }                                                                                         \
  } while (false)

// Takes an input apart. Behind its end everything is 0.
class Reader {
 public:
  Reader(const std::uint8_t* data, std::size_t size) : p_(data), end_(data + size) {}
  bool empty() const { return p_ == end_; }
  std::uint8_t u8() { return p_ == end_ ? std::uint8_t{0} : *p_++; }
  std::uint16_t u16() {
    const std::uint8_t high = u8();
    return static_cast<std::uint16_t>(high << 8 | u8());
  }
  std::uint32_t u32() {
    const std::uint32_t high = u16();
    return high << 16 | u16();
  }
  // At most `n` bytes.
  Input bytes(std::size_t n) {
    if (n > static_cast<std::size_t>(end_ - p_)) n = static_cast<std::size_t>(end_ - p_);
    Input v(p_, p_ + n);
    p_ += n;
    return v;
  }
  Input rest() { return bytes(static_cast<std::size_t>(end_ - p_)); }

 private:
  const std::uint8_t* p_;
  const std::uint8_t* end_;
};

}  // namespace softrnic::fuzz
