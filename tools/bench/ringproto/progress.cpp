// Rule 1: who makes progress for a program that spins on memory and calls no verbs.
#include <cstdio>
#include <cstring>
#include <thread>

#include <sched.h>

#include "tools/bench/ringproto/world.h"

namespace ringproto {
namespace {

enum class Helper { spins, spins_50us, sleeps, yields };
struct Policy {
  const char* name;
  Helper helper;
};

constexpr std::uint64_t kSpinNs = 50000;

void helper_loop(End& end, std::atomic<std::uint64_t>& landed, Helper policy, const std::atomic<std::uint32_t>& stop) {
  std::uint64_t idle_since = now_ns();
  end.rx.set_state(ConsumerState::helper_polling);
  while (stop.load(std::memory_order_relaxed) == 0) {
    bool some = false;
    while (end.take([&](const RingConsumer::Entry& e) {
      std::uint64_t v;
      std::memcpy(&v, e.data, sizeof v);
      landed.store(v, std::memory_order_release);
    })) {
      some = true;
    }
    if (policy == Helper::yields) sched_yield();
    if (policy == Helper::spins || policy == Helper::yields) continue;
    if (policy == Helper::spins_50us) {
      std::uint64_t t = now_ns();
      if (some) idle_since = t;
      if (t - idle_since < kSpinNs) continue;
    }
    end.sleep(10000000);
    end.rx.set_state(ConsumerState::helper_polling);
    idle_since = now_ns();
  }
}

// An ib_write_lat: post, then spin on memory until the answer has landed.
void app(End& end, std::atomic<std::uint64_t>& landed, Helper policy, bool starts, Shared* s) {
  std::thread helper([&] { helper_loop(end, landed, policy, s->stop); });
  std::uint64_t seen = 0, rounds = 0;
  if (starts) {
    std::uint64_t one = 1;
    end.send(&one, sizeof one);
  }
  std::uint64_t end_at = now_ns() + 1500000000;
  for (std::uint64_t n = 0;; ++n) {
    std::uint64_t v = landed.load(std::memory_order_acquire);
    if (v != seen) {
      seen = v;
      ++rounds;
      std::uint64_t next = v + 1;
      end.send(&next, sizeof next);
    } else if (policy == Helper::yields) {
      sched_yield();
    }
    if (s->stop.load(std::memory_order_relaxed) != 0) break;
    if (starts && n % 1024 == 0 && now_ns() > end_at) s->stop = 1;
  }
  if (starts) s->result[0] = rounds;
  helper.join();
}

void spinning_apps(const Policy& p) {
  World w;
  std::uint64_t start = now_ns();
  pid_t b = spawn([&] { app(w.b_to_a, w.shared->landed_b, p.helper, false, w.shared); });
  pid_t a = spawn([&] { app(w.a_to_b, w.shared->landed_a, p.helper, true, w.shared); });
  wait_child(a);
  wait_child(b);
  double ns = static_cast<double>(now_ns() - start);
  double rounds = static_cast<double>(w.shared->result[0].load());
  std::printf("  apps spin on memory, helper %-25s %8.1f us one way\n", p.name,
              ns / 1000 / 2 / (rounds < 1 ? 1 : rounds));
}

// A and B poll their rings themselves and a switch polls between them: three busy parties.
void three_pollers(bool yield) {
  World w;
  for (End* e : {&w.a_to_s, &w.b_to_s, &w.s_to_a, &w.s_to_b}) e->rx.set_state(ConsumerState::app_polling);
  auto idle = [&] {
    if (yield) sched_yield();
  };
  pid_t s = spawn([&] {
    while (w.shared->stop.load(std::memory_order_relaxed) == 0) {
      bool some = w.s_to_a.take([&](const RingConsumer::Entry& e) { w.s_to_b.send(e.data, e.length); });
      some |= w.s_to_b.take([&](const RingConsumer::Entry& e) { w.s_to_a.send(e.data, e.length); });
      if (!some) idle();
    }
  });
  auto poller = [&](End& end, bool starts) {
    std::uint64_t v = 1, rounds = 0, end_at = now_ns() + 1500000000;
    if (starts) end.send(&v, sizeof v);
    while (w.shared->stop.load(std::memory_order_relaxed) == 0) {
      if (end.take([&](const RingConsumer::Entry& e) { std::memcpy(&v, e.data, sizeof v); })) {
        ++rounds;
        end.send(&v, sizeof v);
      } else {
        idle();
      }
      if (starts && now_ns() > end_at) w.shared->stop = 1;
    }
    if (starts) w.shared->result[0] = rounds;
  };
  std::uint64_t start = now_ns();
  pid_t b = spawn([&] { poller(w.b_to_s, false); });
  pid_t a = spawn([&] { poller(w.a_to_s, true); });
  for (pid_t p : {a, b, s}) wait_child(p);
  double rounds = static_cast<double>(w.shared->result[0].load());
  std::printf("  apps poll through a switch, %-25s %8.1f us one way\n",
              yield ? "all yield when idle:" : "nobody yields:",
              static_cast<double>(now_ns() - start) / 1000 / 2 / (rounds < 1 ? 1 : rounds));
}

}  // namespace

void run_progress() {
  std::printf("progress: %u CPUs\n", std::thread::hardware_concurrency());
  const Policy policies[] = {{"always spins:", Helper::spins},
                             {"spins 50 us, then sleeps:", Helper::spins_50us},
                             {"sleeps at once:", Helper::sleeps},
                             {"and apps yield:", Helper::yields}};
  for (const Policy& p : policies) spinning_apps(p);
  three_pollers(false);
  three_pollers(true);
}

}  // namespace ringproto
