// Inboxes (shm_layout.h): how a sender tells a receiver which ring to look at, and wakes it when it sleeps. Both the
// applications and the eSwitch use these. A peer may scribble in an inbox; what that can do is delay a wake-up
// until the receiver's slow scan.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/datapath/shm_layout.h"
#include "engine/nic/raw_io.h"

namespace softrnic::dp {

// Marks `slot` in the inbox and wakes its owner if it sleeps. To be called after what is to be seen was published and
// a seq_cst fence.
inline void ring_bell(Inbox& inbox, std::uint32_t slot, int eventfd) {
  std::uint32_t group = (slot / 64) & 63;
  inbox.bits[group].fetch_or(std::uint64_t{1} << (slot & 63), std::memory_order_seq_cst);
  inbox.groups.fetch_or(std::uint64_t{1} << group, std::memory_order_seq_cst);
  if (inbox.sleeping.load(std::memory_order_seq_cst) != 0 &&
      inbox.sleeping.exchange(0, std::memory_order_seq_cst) != 0) {
    raw_eventfd_write(eventfd);
  }
}

// Wakes the helper of a receiver that does not sleep as far as its rings say.
inline void nudge(Inbox& inbox, int eventfd) {
  if (inbox.nudged.exchange(1, std::memory_order_seq_cst) == 0) raw_eventfd_write(eventfd);
}
inline bool take_nudge(Inbox& inbox) {
  return inbox.nudged.load(std::memory_order_relaxed) != 0 && inbox.nudged.exchange(0, std::memory_order_seq_cst) != 0;
}

inline bool inbox_pending(const Inbox& inbox) { return inbox.groups.load(std::memory_order_relaxed) != 0; }

// Takes all marked slots: f(slot) for each. A slot marked again meanwhile shows up in the next call.
template <class F>
void take_inbox(Inbox& inbox, F&& f) {
  std::uint64_t groups = inbox.groups.exchange(0, std::memory_order_seq_cst);
  while (groups != 0) {
    auto g = static_cast<std::uint32_t>(__builtin_ctzll(groups));
    groups &= groups - 1;
    std::uint64_t bits = inbox.bits[g].exchange(0, std::memory_order_seq_cst);
    while (bits != 0) {
      f(g * 64 + static_cast<std::uint32_t>(__builtin_ctzll(bits)));
      bits &= bits - 1;
    }
  }
}

// Going to sleep: every ring has been armed; then prepare_sleep(), look at every ring and the inbox once more, and
// only then wait on the eventfd. After waking, or when something was found: end_sleep().
inline void prepare_sleep(Inbox& inbox) {
  inbox.sleeping.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
inline void end_sleep(Inbox& inbox) { inbox.sleeping.store(0, std::memory_order_relaxed); }

// Empties the eventfd after a wake-up; never blocks.
inline void drain_eventfd(int eventfd) { raw_eventfd_take_one_nonblocking(eventfd); }

}  // namespace softrnic::dp
