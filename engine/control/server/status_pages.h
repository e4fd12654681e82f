// Reading the status pages of VFs, which the applications write: nothing in them is believed beyond its form.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/datapath/shm_layout.h"
#include "engine/switch/shared_memory.h"

namespace softrnic::control {

template <class T>
T field(const std::uint8_t* at, std::size_t offset) {
  T value;
  std::memcpy(&value, at + offset, sizeof(value));
  return value;
}

// Entries of the page that were ever written. Read through the descriptor: that allocates no memory for the holes, and
// gives a copy that does not change under our eyes.
template <class F>
void for_each_qp(const sw::SharedMemory& page, F&& f) {
  constexpr std::size_t kEntry = sizeof(dp::QpStatus);
  constexpr off_t kFirst = offsetof(dp::StatusPage, qp);
  constexpr off_t kEnd = kFirst + static_cast<off_t>(kEntry * dp::kStatusQps);
  std::vector<std::uint8_t> buffer(kEntry * 256);
  off_t at = kFirst;
  while (at < kEnd) {
    const off_t data = ::lseek(page.fd(), at, SEEK_DATA);
    if (data < 0) return;
    // On to the entry that the data is in.
    if (data > at) at += (data - at) / static_cast<off_t>(kEntry) * static_cast<off_t>(kEntry);
    const ssize_t n = ::pread(page.fd(), buffer.data(),
                              std::min<std::size_t>(buffer.size(), static_cast<std::size_t>(kEnd - at)), at);
    if (n < static_cast<ssize_t>(kEntry)) return;
    for (std::size_t i = 0; i + kEntry <= static_cast<std::size_t>(n); i += kEntry) f(buffer.data() + i);
    at += n / static_cast<off_t>(kEntry) * static_cast<off_t>(kEntry);
  }
}

}  // namespace softrnic::control
