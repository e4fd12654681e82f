// The time that captures and events carry.
#pragma once

#include <cstdint>
#include <ctime>

namespace softrnic::observe {

// Nanoseconds since 1970 (CLOCK_REALTIME).
inline std::uint64_t wall_clock() {
  timespec ts{};
  ::clock_gettime(CLOCK_REALTIME, &ts);
  return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(ts.tv_nsec);
}

}  // namespace softrnic::observe
