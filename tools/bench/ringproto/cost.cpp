// What a ring and a lock cost.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include <isa-l/crc.h>
#include <sched.h>

#include "engine/nic/spinlock.h"
#include "tools/bench/ringproto/world.h"

namespace ringproto {
namespace {

// The best run of this many packets counts: what other programs take from the machine does not belong to the ring.
constexpr int kChunk = 2000;

// Waits by spinning, but lets others run when it takes so long that the other side cannot be running.
class Patience {
 public:
  void wait() {
    if (++spins_ % 16384 == 0) sched_yield();
  }

 private:
  unsigned spins_ = 0;
};

void ping_pong(std::uint32_t length) {
  World w;
  constexpr int kRounds = 300000;
  std::vector<std::uint8_t> buffer(length);
  for (End* e : {&w.a_to_b, &w.b_to_a}) e->rx.set_state(ConsumerState::app_polling);
  Patience patience;
  pid_t b = spawn([&] {
    for (int i = 0; i < kRounds;) {
      if (w.b_to_a.take([&](const RingConsumer::Entry& e) { std::memcpy(buffer.data(), e.data, length); })) {
        w.b_to_a.send(buffer.data(), length);
        ++i;
      } else {
        patience.wait();
      }
    }
  });
  std::uint64_t best = UINT64_MAX, start = now_ns();
  for (int i = 1; i <= kRounds; ++i) {
    w.a_to_b.send(buffer.data(), length);
    while (!w.a_to_b.take([&](const RingConsumer::Entry& e) { std::memcpy(buffer.data(), e.data, length); })) {
      patience.wait();
    }
    if (i % kChunk == 0) {
      std::uint64_t t = now_ns();
      best = std::min(best, t - start);
      start = t;
    }
  }
  double ns = static_cast<double>(best) / kChunk / 2;
  wait_child(b);
  std::printf("  ping-pong, %4u bytes, both poll:                   %7.0f ns one way\n", length, ns);
}

void stream(std::uint32_t length, bool crc) {
  World w;
  const int frames = length > 1000 ? 1000000 : 5000000;
  std::vector<std::uint8_t> source(length, 0x5A), target(length);
  w.b_to_a.rx.set_state(ConsumerState::app_polling);
  Patience patience;
  pid_t b = spawn([&] {
    std::uint32_t bad = 0;
    for (int i = 0; i < frames;) {
      bool some = w.b_to_a.take([&](const RingConsumer::Entry& e) {
        if (crc) {
          std::uint32_t sum;
          std::memcpy(&sum, e.data, 4);
          bad += sum != crc32_gzip_refl(0, e.data + 64, length);
        }
        std::memcpy(target.data(), e.data + 64, length);
      });
      i += some;
      if (!some) patience.wait();
    }
    w.shared->result[0] = bad;
  });
  std::uint64_t best = UINT64_MAX, start = now_ns();
  for (int i = 1; i <= frames; ++i) {
    while (!w.a_to_b.tx.has_room(length + 64)) patience.wait();
    std::uint8_t* p = w.a_to_b.tx.begin(length + 64);
    std::memcpy(p + 64, source.data(), length);
    std::uint32_t sum = crc ? crc32_gzip_refl(0, p + 64, length) : 0;
    std::memcpy(p, &sum, 4);
    w.a_to_b.tx.commit(length + 64);
    if (i % 16 == 0) w.a_to_b.notify();
    if (i % kChunk == 0) {
      std::uint64_t t = now_ns();
      best = std::min(best, t - start);
      start = t;
    }
  }
  wait_child(b);
  double ns = static_cast<double>(best) / kChunk;
  std::printf("  stream, %4u bytes + 64, %s:     %7.0f ns a packet, %5.1f Gb/s, %llu bad\n", length,
              crc ? "copy and CRC on both sides" : "copies only               ", ns, length * 8 / ns,
              static_cast<unsigned long long>(w.shared->result[0].load()));
}

}  // namespace

void run_rings() {
  std::printf("rings: two processes\n");
  ping_pong(8);
  ping_pong(64);
  ping_pong(4096);
  stream(8, false);
  stream(4096, false);
  stream(4096, true);
}

// Rule 4: the progress lock is only ever try-locked, so two threads that poll do not wait for each other.
void run_locks() {
  std::printf("locks: a queue's lock and the progress lock\n");
  constexpr int kRounds = 5000000;
  softrnic::SpinLock lock;
  std::uint64_t start = now_ns();
  for (int i = 0; i < kRounds; ++i) softrnic::SpinGuard g(lock);
  std::printf("  lock and unlock, one thread:                         %7.1f ns\n",
              static_cast<double>(now_ns() - start) / kRounds);
  std::uint64_t held = 0, refused = 0;
  std::atomic<bool> stop{false};
  auto work = [&](bool count) {
    while (!stop.load(std::memory_order_relaxed)) {
      if (lock.try_lock()) {
        std::uint64_t until = now_ns() + 300;  // a round of the engine
        while (now_ns() < until) {
        }
        lock.unlock();
        if (count) ++held;
      } else if (count) {
        ++refused;
      }
    }
  };
  std::thread other(work, false);
  std::thread mine([&] { work(true); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  stop = true;
  other.join();
  mine.join();
  std::printf("  two threads poll, rounds of 300 ns; one of them:     %llu rounds, %llu refusals in 0.5 s\n",
              static_cast<unsigned long long>(held), static_cast<unsigned long long>(refused));
}

}  // namespace ringproto
