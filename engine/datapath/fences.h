// The two fences between a producer and a consumer that goes to sleep. The producer publishes an entry and then looks
// whether the consumer is armed; the consumer arms and then looks for entries: each must see the other's store, or a
// wake-up is lost. Producers do this for every batch, consumers stop polling seldom. So the consumer pays: it has the
// kernel run a barrier on every CPU where a registered process runs (membarrier(2), GLOBAL_EXPEDITED), and a
// registered producer needs none of its own, which would wait for the cache line that the consumer polls.
#pragma once

#include <atomic>

#include <linux/membarrier.h>

#include "engine/datapath/shm_layout.h"
#include "engine/nic/raw_syscall.h"

namespace softrnic::dp {

// The producers of this process may leave out their fences from now on. False where the kernel has no such call or
// forbids it: they fence then. Any thread; to be called again after fork().
inline bool register_producer() {
  return raw_syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

// Consumer, between arming and looking. False: only those producers are covered that fence.
inline bool consumer_fence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return raw_syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
}

// A consumer that cannot use consumer_fence() says so in its inbox before anybody sends to it.
inline void announce_fences(Inbox& inbox) {
  if (!consumer_fence()) inbox.needs_fences.store(1, std::memory_order_seq_cst);
}

// Producer, between publishing and looking.
inline void producer_fence(bool registered, const Inbox& consumer) {
  if (registered && consumer.needs_fences.load(std::memory_order_relaxed) == 0) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}

}  // namespace softrnic::dp
