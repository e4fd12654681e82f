// Rules 2, 3, 5 and 6: stopped peers, full rings, changes of route, and who sent what.
#include <cstdio>
#include <cstring>

#include <sched.h>
#include <signal.h>

#include "tools/bench/ringproto/world.h"

namespace ringproto {
namespace {

void pause_us(unsigned us) {
  std::uint64_t until = now_ns() + us * 1000ull;
  while (now_ns() < until) sched_yield();
}

constexpr std::uint32_t kQueueFrames = 512;

}  // namespace

// The wire begins at the consumer: a stopped peer is a slow link. Through a switch a stopped peer loses packets beyond
// the queue's bound, and nobody else waits.
void run_stopped() {
  std::printf("stopped peer\n");
  {
    World w;
    std::uint64_t frame[16] = {};
    pid_t b = spawn([&] {
      while (w.shared->stop == 0) {
        if (!w.b_to_a.take([&](const RingConsumer::Entry&) { ++w.shared->result[0]; })) w.b_to_a.sleep(10000000);
      }
    });
    kill(b, SIGSTOP);
    pause_us(20000);
    std::uint64_t sent = 0, tail_before = w.a_to_b.tx.taken();
    while (w.a_to_b.send(frame, sizeof frame)) ++sent;
    pause_us(500000);
    std::uint64_t untaken = w.a_to_b.tx.tail() - w.a_to_b.tx.taken();
    kill(b, SIGCONT);
    std::uint64_t start = now_ns();
    while (w.a_to_b.tx.taken() != w.a_to_b.tx.tail()) sched_yield();
    std::printf(
        "  direct: %llu frames until full, %llu bytes not taken after 0.5 s (no timer runs), "
        "all taken %.0f us after SIGCONT\n",
        static_cast<unsigned long long>(sent), static_cast<unsigned long long>(untaken - tail_before),
        static_cast<double>(now_ns() - start) / 1000);
    w.shared->stop = 1;
    wait_child(b);
  }
  World w;
  pid_t s = spawn([&] {  // frames with tag 1 go to B (stopped), with tag 0 back to A
    std::uint64_t dropped = 0;
    while (w.shared->stop == 0) {
      if (!w.s_to_a.take([&](const RingConsumer::Entry& e) {
            End& out = e.data[0] == 1 ? w.s_to_b : w.s_to_a;
            bool bound = w.s_to_b.tx.tail() - w.s_to_b.tx.taken() >= kQueueFrames * 192;
            if ((e.data[0] == 1 && bound) || !out.send(e.data, e.length, 1)) ++dropped;
          })) {
        sched_yield();
      }
    }
    w.shared->result[1] = dropped;
  });
  std::uint8_t to_b[128] = {1}, to_a[128] = {0};
  std::uint64_t returned = 0, n = 0, start = now_ns();
  while (returned < 100000) {
    if (w.a_to_s.send(to_b, sizeof to_b)) ++n;
    if (w.a_to_s.send(to_a, sizeof to_a)) {
      // answered below
    }
    while (w.a_to_s.take([&](const RingConsumer::Entry&) { ++returned; })) {
    }
  }
  double us = static_cast<double>(now_ns() - start) / 1000;
  w.shared->stop = 1;
  wait_child(s);
  std::printf("  switch: %llu frames for a stopped peer, %llu dropped; 100000 frames of others passed in %.0f us\n",
              static_cast<unsigned long long>(n), static_cast<unsigned long long>(w.shared->result[1].load()), us);
}

// No cyclic wait: both fill their rings and neither ever waits for space; answers are state that is sent when there
// is room.
void run_full() {
  std::printf("full rings: both send 4 KiB requests as fast as they can, each is answered\n");
  World w;
  constexpr std::uint64_t kRequests = 200000;
  auto side = [&](End& end, int slot) {
    static std::uint8_t frame[4096];
    std::uint64_t asked = 0, answers = 0, owed = 0, got = 0, full = 0;
    end.rx.set_state(ConsumerState::app_polling);
    while (answers < kRequests || got < kRequests || owed > 0) {
      frame[0] = 1;
      while (owed > 0 && end.send(frame, 64)) --owed;
      frame[0] = 0;
      if (asked < kRequests) {
        if (end.send(frame, sizeof frame)) {
          ++asked;
        } else {
          ++full;
        }
      }
      for (int i = 0; i < 16; ++i) {
        end.take([&](const RingConsumer::Entry& e) {
          if (e.data[0] == 1) {
            ++answers;
          } else {
            ++owed;
            ++got;
          }
        });
      }
    }
    w.shared->result[slot] = full;
  };
  std::uint64_t start = now_ns();
  pid_t b = spawn([&] { side(w.b_to_a, 1); });
  pid_t a = spawn([&] { side(w.a_to_b, 0); });
  wait_child(a);
  wait_child(b);
  std::printf("  2 x %llu requests answered in %.0f ms; rings were full %llu + %llu times\n",
              static_cast<unsigned long long>(kRequests), static_cast<double>(now_ns() - start) / 1e6,
              static_cast<unsigned long long>(w.shared->result[0].load()),
              static_cast<unsigned long long>(w.shared->result[1].load()));
}

// A changes its route between the direct channel and the switch under load. B checks the order, and that what comes
// from the switch carries the ingress id the switch gave it.
void run_routes() {
  std::printf("routes: 1000 barriers under load\n");
  World w;
  constexpr std::uint16_t kVfA = 1;
  for (End* e : {&w.b_to_a, &w.b_to_s, &w.s_to_a}) e->rx.set_state(ConsumerState::app_polling);
  pid_t s = spawn([&] {
    while (w.shared->stop == 0) {
      if (!w.s_to_b.tx.has_room(256) || !w.s_to_a.take([&](const RingConsumer::Entry& e) {
            if (e.kind == EntryKind::mark) {
              MarkBody from{kVfA, {}};
              w.s_to_b.tx.put_mark(e.aux, &from, sizeof from);
            } else {
              w.s_to_b.send(e.data, e.length, kVfA);
            }
          })) {
        sched_yield();
      }
    }
  });
  pid_t b = spawn([&] {
    std::uint64_t expected = 0, wrong = 0, foreign = 0;
    auto on = [&](const RingConsumer::Entry& e, bool from_switch) {
      if (e.kind == EntryKind::mark) {
        w.b_to_a.rx.ack_mark(e.aux);
        return;
      }
      std::uint64_t n;
      std::memcpy(&n, e.data, sizeof n);
      wrong += n != expected;
      expected = n + 1;
      foreign += from_switch && e.aux != kVfA;
    };
    while (w.shared->stop == 0) {
      bool some = w.b_to_a.take([&](const RingConsumer::Entry& e) { on(e, false); });
      some |= w.b_to_s.take([&](const RingConsumer::Entry& e) { on(e, true); });
      if (!some) sched_yield();
    }
    w.shared->result[0] = expected;
    w.shared->result[1] = wrong;
    w.shared->result[2] = foreign;
  });
  std::uint64_t next = 0, flipping = 0, start = now_ns();
  bool direct = true;
  for (std::uint16_t flip = 1; flip <= 1000; ++flip) {
    for (int i = 0; i < 200;) {
      End& out = direct ? w.a_to_b : w.a_to_s;
      if (out.send(&next, sizeof next)) {
        ++next;
        ++i;
      } else {
        sched_yield();
      }
    }
    std::uint64_t t = now_ns();
    MarkBody to{2, {}};
    while (!(direct ? w.a_to_b.tx.put_mark(flip, nullptr, 0) : w.a_to_s.tx.put_mark(flip, &to, sizeof to))) {
      sched_yield();
    }
    while (w.a_to_b.tx.acked_mark() != flip) sched_yield();
    flipping += now_ns() - t;
    direct = !direct;
  }
  pause_us(20000);
  w.shared->stop = 1;
  wait_child(b);
  wait_child(s);
  std::printf(
      "  %llu frames sent, %llu arrived, %llu out of order, %llu with a wrong ingress id; "
      "a barrier takes %.1f us (%.0f ms in all)\n",
      static_cast<unsigned long long>(next), static_cast<unsigned long long>(w.shared->result[0].load()),
      static_cast<unsigned long long>(w.shared->result[1].load()),
      static_cast<unsigned long long>(w.shared->result[2].load()), static_cast<double>(flipping) / 1e6,
      static_cast<double>(now_ns() - start) / 1e6);
}

}  // namespace ringproto
