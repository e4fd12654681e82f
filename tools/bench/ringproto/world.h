// Two application processes A and B and a switch process S, joined by real rings: what the experiments of ringproto
// run on. Everything is made before fork(), so that the processes share it at the same addresses.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include <sys/types.h>

#include "engine/datapath/ring.h"
#include "engine/datapath/wakeup.h"

namespace ringproto {

using namespace softrnic::dp;

inline constexpr std::uint32_t kRingSize = 256 * 1024;

std::uint64_t now_ns();

// One side of a channel: the ring it fills, the ring it empties, and how the two sides wake each other.
struct End {
  RingProducer tx;
  RingConsumer rx;
  Inbox* inbox;
  Inbox* peer_inbox;
  int eventfd;
  int peer_eventfd;

  // Sends if there is room; rings the peer's bell when its ring is armed.
  bool send(const void* data, std::uint32_t length, std::uint16_t aux = 0);
  void notify();  // after publishing by other means
  // Takes one frame or mark: f(entry). False when there was none.
  template <class F>
  bool take(F&& f) {
    RingConsumer::Entry e;
    if (!rx.peek(&e)) return false;
    f(e);
    rx.pop();
    if (rx.publish_head(false)) ring_bell(*peer_inbox, 0, peer_eventfd);
    return true;
  }
  // Arms the ring, looks again, and sleeps until kicked or for `timeout_ns`.
  void sleep(std::uint64_t timeout_ns);
};

// Counters and memory that all processes see.
struct Shared {
  alignas(64) std::atomic<std::uint64_t> landed_a;  // "registered memory" of A and B
  alignas(64) std::atomic<std::uint64_t> landed_b;
  alignas(64) std::atomic<std::uint64_t> result[8];
  alignas(64) std::atomic<std::uint32_t> stop;
};

struct World {
  World();
  ~World();
  End a_to_b, b_to_a;  // the direct channel
  End a_to_s, s_to_a;
  End b_to_s, s_to_b;
  Shared* shared;

 private:
  void* memory_;
  std::uint64_t bytes_;
  int eventfds_[3];
};

// Runs f in a child process; wait_child() reaps it.
pid_t spawn(const std::function<void()>& f);
void wait_child(pid_t pid);

void run_rings();     // rules 1, 7: what the ring itself costs
void run_progress();  // rule 1
void run_stopped();   // rules 2, 3
void run_full();      // rule 3
void run_locks();     // rule 4
void run_routes();    // rules 5, 6

}  // namespace ringproto
