#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "engine/datapath/paths.h"
#include "engine/datapath/wakeup.h"
#include "engine/nic/clock.h"
#include "tests/unit/datapath/vf_end.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

#ifdef SOFTRNIC_SANITIZED
constexpr int kSleeps = 2000;
#else
constexpr int kSleeps = 100000;
#endif

// Sleeps as the helper thread does until something was received.
void receive_asleep(VfEnd& e) {
  std::uint64_t before = e.received;
  while (e.received == before) {
    if (e.poll() > 0) continue;
    if (e.fabric->arm()) e.fabric->wait(kNever);
  }
}

void pause_randomly(std::mt19937& rng) {
  std::uint64_t until = nic::Clock::system_now() + rng() % 4000;
  while (nic::Clock::system_now() < until) {
  }
}

void connect(VfEnd& a, VfEnd& b) {
  a.path(b);
  while (b.path(a), b.fabric->poll_control()) {
  }
}

}  // namespace

// The fabric's own timer behind the sleep would hide a lost wake-up as a pause of 250 ms: so time is looked at, with a
// margin of thousands of sleeps.
TEST_CASE("no wake-up is lost in many sleeps at random moments", "[wakeup][stress]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  connect(a, b);
  dp::Path& ab = a.path(b);
  dp::Path& ba = b.path(a);
  std::atomic<int> lost{0};
  // Arming after having polled is the other half of the handshake: senders leave out their fences then.
  const bool polls_first = GENERATE(false, true);
  auto receive = [&](VfEnd& e) {
    Nanos start = nic::Clock::system_now();
    if (polls_first) e.fabric->set_polling(dp::ConsumerState::app_polling);
    receive_asleep(e);
    if (nic::Clock::system_now() - start > 240'000'000) ++lost;
  };
  std::thread other([&] {
    std::mt19937 rng(1);
    for (int i = 0; i < kSleeps; ++i) {
      receive(b);
      pause_randomly(rng);
      b.send(ba, a.id());
      b.fabric->flush();
    }
  });
  std::mt19937 rng(2);
  for (int i = 0; i < kSleeps; ++i) {
    pause_randomly(rng);
    a.send(ab, b.id());
    a.fabric->flush();
    receive(a);
  }
  other.join();
  CHECK(a.wrong + b.wrong == 0);
  CHECK(lost < 3);  // a machine that stops for a quarter of a second is no lost wake-up
}

TEST_CASE("a receiver that polls is not kicked, one that sleeps is", "[wakeup]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  connect(a, b);
  dp::Path& ab = a.path(b);
  b.poll();
  b.fabric->set_polling(dp::ConsumerState::app_polling);
  REQUIRE(nic.direct_ring(a.id(), b.id())->state == static_cast<std::uint32_t>(dp::ConsumerState::app_polling));
  REQUIRE(a.send(ab, b.id()));
  a.fabric->flush();
  REQUIRE(nic.inbox(b.id()).groups == 0);
  REQUIRE_FALSE(b.fabric->arm());  // a frame waits
  REQUIRE(b.poll() == 1);
  while (!b.fabric->arm()) b.poll();
  REQUIRE(nic.inbox(b.id()).sleeping == 1);
  REQUIRE(a.send(ab, b.id()));
  REQUIRE(nic.inbox(b.id()).sleeping == 1);  // commit publishes, flush wakes
  a.fabric->flush();
  REQUIRE(nic.inbox(b.id()).sleeping == 0);
  REQUIRE(nic.inbox(b.id()).groups != 0);
  b.fabric->wait(kNever);  // returns at once
  REQUIRE(b.poll() == 1);
}

TEST_CASE("a sender that waits for space is woken by the consumer", "[wakeup]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  connect(a, b);
  dp::Path& ab = a.path(b);
  std::atomic<bool> stop{false};
  std::thread consumer([&] {
    b.fabric->set_polling(dp::ConsumerState::app_polling);
    while (!stop) {
      if (b.poll() == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  constexpr int kFrames = 20000;
  int sleeps = 0;
  for (int i = 0; i < kFrames;) {
    if (a.send(ab, b.id(), 4000)) {
      ++i;
      continue;
    }
    a.fabric->flush();
    a.poll();
    if (a.fabric->has_room(ab, 4000)) continue;
    if (a.fabric->arm()) {
      a.fabric->wait(kNever);
      ++sleeps;
    }
  }
  a.fabric->flush();
  while (!a.fabric->taken(ab, a.fabric->position(ab))) std::this_thread::yield();
  stop = true;
  consumer.join();
  CHECK(sleeps > 0);
  CHECK(b.received == kFrames);
  CHECK(b.wrong == 0);
}

TEST_CASE("frames hidden by a scribbled inbox are found by the slow scan", "[wakeup][hostile]") {
  FakeNic nic;
  VfEnd b(nic);
  std::vector<std::unique_ptr<VfEnd>> senders;
  for (int i = 0; i < 8; ++i) senders.push_back(std::make_unique<VfEnd>(nic));
  for (auto& s : senders) s->path(b);
  std::size_t added = 0;
  while (added < senders.size()) {
    b.fabric->poll_control();
    b.poll();
    added = 0;
    for (auto& s : senders) added += dp::Fabric::peer(b.path(*s)) == s->id();
  }
  for (int i = 0; i < 5000; ++i) b.poll();  // more channels than are always hot: some have cooled down
  for (auto& s : senders) {
    REQUIRE(s->send(s->path(b), b.id()));
    s->fabric->flush();
  }
  nic.inbox(b.id()).groups = 0;
  for (auto& bits : nic.inbox(b.id()).bits) bits = 0;
  while (b.received < senders.size()) b.poll();
  CHECK(b.wrong == 0);

  // The same asleep: somebody clears `sleeping`, so that no kick comes.
  std::thread sleeper([&] {
    while (b.received < 2 * senders.size()) {
      if (b.poll() == 0 && b.fabric->arm()) {
        nic.inbox(b.id()).sleeping = 0;
        b.fabric->wait(kNever);
      }
    }
  });
  for (auto& s : senders) {
    s->send(s->path(b), b.id());
    s->fabric->flush();
  }
  sleeper.join();
  CHECK(b.wrong == 0);
}

TEST_CASE("a channel without traffic cools down and is armed", "[wakeup]") {
  FakeNic nic;
  VfEnd b(nic);
  std::vector<std::unique_ptr<VfEnd>> senders;
  for (int i = 0; i < 8; ++i) senders.push_back(std::make_unique<VfEnd>(nic));
  for (auto& s : senders) b.path(*s);
  b.fabric->set_polling(dp::ConsumerState::app_polling);
  auto polled = [&] {
    int n = 0;
    for (auto& s : senders) n += nic.direct_ring(s->id(), b.id())->state != 0;
    return n;
  };
  b.poll();
  REQUIRE(polled() == 8);
  for (int i = 0; i < 5000; ++i) b.poll();
  REQUIRE(polled() <= 4);
  for (auto& s : senders) {
    REQUIRE(s->send(s->path(b), b.id()));
    s->fabric->flush();
  }
  b.poll();
  REQUIRE(b.received == 8);
  REQUIRE(polled() == 8);
  while (!b.fabric->arm()) b.poll();
  REQUIRE(polled() == 0);
}

TEST_CASE("pollers are counted", "[wakeup]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  std::atomic<std::uint32_t>& pollers = nic.switch_inbox().busy_pollers;
  REQUIRE(pollers == 0);
  a.fabric->set_polling(dp::ConsumerState::app_polling);
  a.fabric->set_polling(dp::ConsumerState::helper_polling);
  REQUIRE(pollers == 1);
  REQUIRE(nic.status(a.id()).polling == 1);
  b.fabric->set_polling(dp::ConsumerState::app_polling);
  REQUIRE(pollers == 2);
  while (!a.fabric->arm()) a.poll();
  REQUIRE(pollers == 1);
  REQUIRE(nic.status(a.id()).polling == 0);
  REQUIRE_FALSE(a.fabric->crowded());
  pollers = 1000;
  REQUIRE(a.fabric->crowded());
  b.fabric.reset();
  REQUIRE(pollers == 999);
}

TEST_CASE("wake() from another thread ends a wait", "[wakeup]") {
  FakeNic nic;
  VfEnd a(nic);
  for (int i = 0; i < 200; ++i) {
    while (!a.fabric->arm()) a.poll();
    std::thread other([&] { a.fabric->wake(); });
    a.fabric->wait(kNever);
    other.join();
  }
}

TEST_CASE("a sender asks for the helper of a peer that counts as polling and leaves its frames alone", "[wakeup]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  connect(a, b);
  dp::Path& ab = a.path(b);
  constexpr Nanos kLate = 1'000'000;
  b.fabric->set_polling(dp::ConsumerState::app_polling);
  REQUIRE(a.send(ab, b.id()));
  a.poll();
  a.fabric->nudge_slow_peers(kLate);
  CHECK_FALSE(b.fabric->take_nudge());  // it waits only from now on
  a.fabric->nudge_slow_peers(kLate + 1000);
  CHECK_FALSE(b.fabric->take_nudge());
  a.fabric->nudge_slow_peers(2 * kLate);
  b.fabric->wait(kNever);  // the descriptor was written
  CHECK(b.fabric->take_nudge());
  CHECK_FALSE(b.fabric->take_nudge());
  SECTION("what moves is not slow") {
    REQUIRE(a.send(ab, b.id()));
    b.poll(1);
    b.fabric->arm();
    b.fabric->set_polling(dp::ConsumerState::app_polling);
    a.fabric->nudge_slow_peers(3 * kLate);
    CHECK_FALSE(b.fabric->take_nudge());
  }
  SECTION("nothing waits") {
    b.poll();
    b.fabric->arm();
    b.fabric->set_polling(dp::ConsumerState::app_polling);
    a.fabric->nudge_slow_peers(3 * kLate);
    a.fabric->nudge_slow_peers(4 * kLate);
    CHECK_FALSE(b.fabric->take_nudge());
  }
  SECTION("who sleeps was kicked") {
    b.poll();
    REQUIRE(b.fabric->arm());
    REQUIRE(a.send(ab, b.id()));
    a.fabric->flush();
    a.fabric->nudge_slow_peers(3 * kLate);
    a.fabric->nudge_slow_peers(4 * kLate);
    CHECK_FALSE(b.fabric->take_nudge());
  }
}
