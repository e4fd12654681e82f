#include "engine/datapath/progress_thread.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <thread>

#include <time.h>

#include "engine/nic/clock.h"
#include "engine/nic/spinlock.h"
#include "tests/unit/datapath/vf_end.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

// An engine that only receives, and has one timer.
struct TestEngine : dp::ProgressClient {
  explicit TestEngine(FakeNic& nic) : end(nic), thread(std::make_unique<dp::ProgressThread>(*end.fabric, *this)) {
    REQUIRE(thread->start() == 0);
  }
  bool try_lock() override { return lock.try_lock(); }
  void unlock() override { lock.unlock(); }
  int progress(int budget) override {
    int n = end.poll(budget);
    got = end.received;
    if (deadline != kNever && nic::Clock::system_now() >= deadline) {
      deadline = kNever;
      ++timers_run;
    }
    end.fabric->flush();
    return n;
  }
  Nanos next_deadline() override { return deadline; }

  // What ibv_poll_cq does.
  int app_poll() {
    if (!lock.try_lock()) return 0;
    thread->app_polled();
    int n = progress(16);
    thread->deadline_moved(deadline);
    lock.unlock();
    return n;
  }
  // What ibv_post_send does.
  bool app_send(dp::Path& p, std::uint16_t to) {
    SpinGuard g(lock);
    bool ok = end.send(p, to);
    end.fabric->flush();
    return ok;
  }
  void set_timer(Nanos in) {
    SpinGuard g(lock);
    deadline = nic::Clock::system_now() + in;
    thread->deadline_moved(deadline);
  }

  VfEnd end;
  SpinLock lock;
  Nanos deadline = kNever;
  std::atomic<std::uint64_t> got{0};
  std::atomic<int> timers_run{0};
  std::unique_ptr<dp::ProgressThread> thread;
};

template <class F>
void eventually(F&& f) {
  while (!f()) std::this_thread::yield();
}

}  // namespace

TEST_CASE("the helper serves a program that never polls", "[helper]") {
  FakeNic nic;
  TestEngine a(nic), b(nic);
  dp::Path& ab = a.end.path(b.end);
  for (int i = 0; i < 500; ++i) {
    REQUIRE(a.app_send(ab, b.end.id()));
    eventually([&] { return b.got == static_cast<std::uint64_t>(i) + 1; });
  }
  CHECK(b.end.wrong == 0);
  CHECK_FALSE(b.thread->app_mode());
}

TEST_CASE("a program that polls gets the channels for itself, until it stops", "[helper]") {
  FakeNic nic;
  TestEngine a(nic), b(nic);
  dp::Path& ab = a.end.path(b.end);
  eventually([&] {
    b.app_poll();
    return b.thread->app_mode();
  });
  REQUIRE(nic.switch_inbox().busy_pollers >= 1);
  REQUIRE(nic.inbox(b.end.id()).sleeping == 0);
  // Now it spins on memory: the helper takes over, and takes in what comes.
  REQUIRE(a.app_send(ab, b.end.id()));
  eventually([&] { return b.got == 1; });
  eventually([&] { return !b.thread->app_mode(); });
}

TEST_CASE("a program that spins on memory between few polls stays with the helper", "[helper]") {
  FakeNic nic;
  TestEngine a(nic), b(nic);
  dp::Path& ab = a.end.path(b.end);
  int app_modes = 0;
  for (int i = 0; i < 300; ++i) {
    REQUIRE(a.app_send(ab, b.end.id()));
    eventually([&] { return b.got == static_cast<std::uint64_t>(i) + 1; });  // ib_write_lat: waits for the bytes
    b.app_poll();
    app_modes += b.thread->app_mode();
  }
  CHECK(app_modes == 0);
}

TEST_CASE("a program that says it will wait for an event is served by the helper at once", "[helper]") {
  FakeNic nic;
  TestEngine a(nic), b(nic);
  dp::Path& ab = a.end.path(b.end);
  for (int round = 0; round < 20; ++round) {
    eventually([&] {
      b.app_poll();
      return b.thread->app_mode();
    });
    b.thread->app_waits();
    REQUIRE(a.app_send(ab, b.end.id()));
    eventually([&] { return b.got == static_cast<std::uint64_t>(round) + 1; });
  }
}

TEST_CASE("timers run without packets, whoever sets them", "[helper]") {
  FakeNic nic;
  TestEngine a(nic);
  for (int i = 1; i <= 20; ++i) {
    a.set_timer(static_cast<Nanos>(i % 4) * 2'000'000);
    eventually([&] { return a.timers_run == i; });
  }
}

TEST_CASE("an idle helper does not wake up and uses no CPU", "[helper]") {
  FakeNic nic;
  TestEngine a(nic), b(nic);
  dp::Path& ab = a.end.path(b.end);
  REQUIRE(a.app_send(ab, b.end.id()));
  eventually([&] { return b.got == 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::uint64_t before = b.thread->wakeups();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  CHECK(b.thread->wakeups() - before <= 2);  // the sleep's own back-off: after 250 ms, 500 ms, 1 s, ...
}

TEST_CASE("the helper sees notices and the end of the NIC process", "[helper]") {
  FakeNic nic;
  TestEngine a(nic), b(nic);
  a.end.path(b.end);
  nic.wait_route(nic.set_route(control::RouteMode::via_switch));
  nic.wait_route(nic.set_route(control::RouteMode::direct));
  nic.die();
  eventually([&] { return a.end.fabric->nic_process_dead() && b.end.fabric->nic_process_dead(); });
}

TEST_CASE("helpers start and end in any state", "[helper]") {
  FakeNic nic;
  for (int i = 0; i < 100; ++i) {
    TestEngine a(nic);
    for (int n = 0; n < i; ++n) a.app_poll();
  }
}
