#include <algorithm>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/nic/clock.h"
#include "engine/nic/timer_heap.h"

using namespace softrnic;
using namespace softrnic::nic;

namespace {
struct Timer {
  Nanos timer_key = kNever;
  std::size_t timer_index = 0;
};
}  // namespace

TEST_CASE("timers expire in order, and a later deadline leaves an armed timer alone", "[timers]") {
  TimerHeap<Timer> heap;
  Timer a, b;
  heap.arm(a, 100);
  heap.arm(b, 50);
  heap.arm(a, 200);
  CHECK(heap.top() == 50);
  CHECK(heap.pop_expired(49) == nullptr);
  CHECK(heap.pop_expired(60) == &b);
  CHECK(heap.top() == 100);
  heap.arm(a, kNever);
  CHECK(heap.top() == 100);
  heap.arm(a, 10);
  CHECK(heap.pop_expired(10) == &a);
  CHECK(heap.top() == kNever);
  CHECK(heap.pop_expired(kNever - 1) == nullptr);
}

TEST_CASE("timers: arming, removing and expiring in any order keep the heap", "[timers]") {
  std::mt19937 rng(7);
  std::vector<Timer> t(200);
  TimerHeap<Timer> heap;
  heap.reserve(t.size());
  for (int step = 0; step < 20'000; ++step) {
    Timer& x = t[rng() % t.size()];
    switch (rng() % 4) {
      case 0:
      case 1:
        heap.arm(x, 1 + rng() % 10'000);
        break;
      case 2:
        heap.remove(x);
        break;
      case 3:
        if (Timer* e = heap.pop_expired(rng() % 10'000)) CHECK(e->timer_key == kNever);
        break;
    }
    const Nanos least = std::ranges::min(t, {}, &Timer::timer_key).timer_key;
    if (heap.top() != least) FAIL("step " << step);
  }
}

TEST_CASE("the data path's clock follows CLOCK_MONOTONIC and never runs backwards", "[timers]") {
  Clock clock;
  Nanos last = 0;
  const Nanos start = Clock::system_now();
  while (Clock::system_now() - start < 20'000'000) {
    const Nanos before = Clock::system_now();
    const Nanos t = clock.now();
    const Nanos after = Clock::system_now();
    REQUIRE(t >= last);
    REQUIRE(t + 100'000 >= before);  // one resynchronisation interval at a badly measured rate
    REQUIRE(t <= after + 100'000);
    last = t;
  }
}
