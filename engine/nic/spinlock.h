// The short locks of the data path: never held across a call that can block.
#pragma once

#include <atomic>

#include <sched.h>

namespace softrnic {

class SpinLock {
 public:
  bool try_lock() {
    return !locked_.load(std::memory_order_relaxed) && !locked_.exchange(true, std::memory_order_acquire);
  }
  void lock() {
    for (int spins = 0; !try_lock();) {
      if (++spins < 256) {
        __builtin_ia32_pause();
      } else {
        spins = 0;
        sched_yield();  // the holder may have lost its CPU
      }
    }
  }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

class SpinGuard {
 public:
  explicit SpinGuard(SpinLock& l) : l_(l) { l_.lock(); }
  ~SpinGuard() { l_.unlock(); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  SpinLock& l_;
};

}  // namespace softrnic
