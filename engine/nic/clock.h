// CLOCK_MONOTONIC for the data path: extrapolated from the time-stamp counter where that is invariant, and brought
// back in line with the system's clock every millisecond. Never runs backwards. Under the progress lock.
#pragma once

#include <ctime>

#include <cpuid.h>
#include <x86intrin.h>

#include "protocols/common/types.h"

namespace softrnic::nic {

class Clock {
 public:
  Clock() : invariant_(tsc_invariant()) { sync(__rdtsc()); }

  Nanos now() {
    if (!invariant_) return last_ = system_now();
    const std::uint64_t tsc = __rdtsc();
    const std::uint64_t ticks = tsc - base_tsc_;
    // `scale_` is 0 until the first millisecond has passed and a rate can be told.
    if (ticks >= resync_after_ || scale_ == 0) return sync(tsc);
    const Nanos t = base_ + static_cast<Nanos>((static_cast<unsigned __int128>(ticks) * scale_) >> kShift);
    return last_ = t > last_ ? t : last_;
  }

  static Nanos system_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<Nanos>(t.tv_sec) * 1'000'000'000u + static_cast<Nanos>(t.tv_nsec);
  }

 private:
  static constexpr int kShift = 32;
  static constexpr Nanos kResync = 1'000'000;

  static bool tsc_invariant() {
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
  }

  Nanos sync(std::uint64_t tsc) {
    const Nanos now = system_now();
    if (origin_tsc_ == 0) {
      origin_tsc_ = tsc;
      origin_ = now;
    }
    const Nanos elapsed = now - origin_;
    if (elapsed >= kResync && tsc > origin_tsc_) {
      scale_ = static_cast<std::uint64_t>((static_cast<unsigned __int128>(elapsed) << kShift) / (tsc - origin_tsc_));
      resync_after_ = (static_cast<unsigned __int128>(kResync) << kShift) / (scale_ == 0 ? 1 : scale_);
    }
    base_tsc_ = tsc;
    base_ = now;
    return last_ = now > last_ ? now : last_;
  }

  const bool invariant_;
  std::uint64_t base_tsc_ = 0, origin_tsc_ = 0, scale_ = 0, resync_after_ = 0;
  Nanos base_ = 0, origin_ = 0, last_ = 0;
};

}  // namespace softrnic::nic
