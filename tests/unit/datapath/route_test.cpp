#include <catch2/catch.hpp>

#include <atomic>
#include <thread>

#include "engine/datapath/paths.h"
#include "engine/nic/clock.h"
#include "tests/unit/datapath/vf_end.h"

using namespace softrnic;
using namespace softrnic::test;
using control::RouteMode;

namespace {

template <class F>
void eventually(F&& f) {
  while (!f()) std::this_thread::yield();
}

}  // namespace

TEST_CASE("no frame is lost or overtaken while the route changes under load", "[route][stress]") {
#ifdef SOFTRNIC_SANITIZED
  constexpr int kFlips = 100;
#else
  constexpr int kFlips = 1000;
#endif
  FakeNic nic;
  VfEnd a(nic), b(nic);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> a_sent{0}, b_sent{0}, a_got{0}, b_got{0};
  auto run = [&](VfEnd& me, VfEnd& other, std::atomic<std::uint64_t>& sent, std::atomic<std::uint64_t>& got,
                 std::atomic<std::uint64_t>& others_sent) {
    dp::Path& p = me.path(other);
    dp::Path& self = me.path(me);
    std::uint64_t n = 0, looped = 0;
    for (;;) {
      bool some = false;
      if (!stop) {
        for (int i = 0; i < 8 && me.send(p, other.id(), 16 + n % 2000); ++i) ++n;
        if (n % 4 == 0) looped += me.send(self, me.id());
        sent = n;
      }
      me.fabric->flush();
      me.fabric->poll_control();
      some = me.poll() > 0;
      got = me.next_from[other.id()];
      if (!some) std::this_thread::yield();
      if (stop && me.next_from[other.id()] == others_sent && me.next_from[me.id()] == looped) break;
    }
  };
  std::thread ta([&] { run(a, b, a_sent, a_got, b_sent); });
  std::thread tb([&] { run(b, a, b_sent, b_got, a_sent); });
  for (int flip = 0; flip < kFlips; ++flip) {
    std::uint64_t before = a_got;
    nic.wait_route(nic.set_route(flip % 2 == 0 ? RouteMode::via_switch : RouteMode::direct));
    if (flip % 8 == 0) eventually([&] { return a_got > before + 20; });
  }
  // Changes that overtake each other.
  std::uint32_t last = 0;
  for (int flip = 0; flip < 20; ++flip) last = nic.set_route(flip % 2 == 0 ? RouteMode::via_switch : RouteMode::direct);
  nic.wait_route(last);
  stop = true;
  ta.join();
  tb.join();
  CHECK(a.wrong == 0);
  CHECK(b.wrong == 0);
  CHECK(a_sent > 1000);
  CHECK(nic.status(a.id()).route_epoch_done == last);
}

TEST_CASE("a path is closed until the receiver has taken the mark", "[route]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  dp::Path& ab = a.path(b);
  REQUIRE(a.send(ab, b.id()));
  dp::PathPosition before = a.fabric->position(ab);
  std::uint32_t epoch = nic.set_route(RouteMode::via_switch);
  eventually([&] { return a.fabric->poll_control(); });
  for (int i = 0; i < 1000; ++i) {
    a.poll();
    REQUIRE_FALSE(a.fabric->has_room(ab, 16));
  }
  REQUIRE_FALSE(a.fabric->taken(ab, before));
  REQUIRE_FALSE(nic.route_reached(epoch));
  eventually([&] {
    b.fabric->poll_control();
    b.poll();
    a.poll();
    return a.fabric->has_room(ab, 16);
  });
  REQUIRE(a.fabric->taken(ab, before));
  REQUIRE(a.send(ab, b.id()));
  a.fabric->flush();
  eventually([&] { return b.poll() == 1; });
  REQUIRE(b.wrong == 0);
  nic.wait_route(epoch);
}

TEST_CASE("a sleeping sender is woken when the barrier opens", "[route][wakeup]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  dp::Path& ab = a.path(b);
  eventually([&] { return b.fabric->poll_control(); });
  int slow = 0;
  for (int flip = 0; flip < 50; ++flip) {
    std::uint32_t epoch = nic.set_route(flip % 2 == 0 ? RouteMode::via_switch : RouteMode::direct);
    std::thread other([&] {
      eventually([&] {
        b.fabric->poll_control();
        b.poll();
        return nic.route_reached(epoch);
      });
    });
    Nanos start = nic::Clock::system_now();
    while (a.fabric->status().route_epoch_done != epoch) {
      a.poll();
      if (a.fabric->status().route_epoch_done != epoch && a.fabric->arm()) a.fabric->wait(kNever);
    }
    slow += nic::Clock::system_now() - start > 240'000'000;  // the fabric's own timer, not a kick
    eventually([&] {
      a.poll();  // b has a barrier too
      return nic.route_reached(epoch);
    });
    other.join();
    REQUIRE(a.send(ab, b.id()));
    a.fabric->flush();
    eventually([&] { return b.poll() == 1; });
  }
  REQUIRE(b.wrong == 0);
  REQUIRE(slow < 3);
}

TEST_CASE("a mark that waits for room goes out when the consumer makes some", "[route]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  dp::Path& ab = a.path(b);
  while (a.send(ab, b.id(), 16)) {
  }
  std::uint32_t epoch = nic.set_route(RouteMode::via_switch);
  eventually([&] { return a.fabric->poll_control(); });
  a.poll();
  REQUIRE_FALSE(a.fabric->has_room(ab, 16));
  eventually([&] {
    b.fabric->poll_control();
    b.poll();
    a.poll();
    return nic.route_reached(epoch);
  });
  REQUIRE(a.send(ab, b.id()));
  a.fabric->flush();
  eventually([&] { return b.poll() == 1; });
  REQUIRE(b.wrong == 0);
}

TEST_CASE("the barrier towards a dead peer completes at once", "[route]") {
  FakeNic nic;
  VfEnd a(nic);
  auto b = std::make_unique<VfEnd>(nic);
  dp::Path& ab = a.path(*b);
  REQUIRE(a.send(ab, b->id()));
  std::uint32_t epoch = nic.set_route(RouteMode::via_switch);
  eventually([&] { return a.fabric->poll_control(); });
  a.poll();
  REQUIRE_FALSE(a.fabric->has_room(ab, 16));
  std::uint16_t gone = b->id();
  b.reset();
  eventually([&] {
    a.fabric->poll_control();
    a.poll();
    return a.fabric->has_room(ab, 16);
  });
  eventually([&] {
    a.poll();
    return nic.route_reached(epoch);
  });
  REQUIRE(a.send(ab, gone));
  REQUIRE(a.fabric->taken(ab, a.fabric->position(ab)));
}

TEST_CASE("the NIC process's end opens every barrier", "[route]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  dp::Path& ab = a.path(b);
  REQUIRE(a.send(ab, b.id()));
  nic.set_route(RouteMode::via_switch);
  eventually([&] { return a.fabric->poll_control(); });
  nic.die();
  eventually([&] {
    a.fabric->poll_control();
    return a.fabric->has_room(ab, 16);
  });
}

TEST_CASE("VFs that attach while everything passes the eSwitch use it", "[route]") {
  FakeNic nic;
  nic.set_route(RouteMode::via_switch);
  VfEnd a(nic), b(nic);
  dp::Path& ab = a.path(b);
  nic.pause_switch(true);
  REQUIRE(a.send(ab, b.id()));
  a.fabric->flush();
  for (int i = 0; i < 100; ++i) REQUIRE(b.poll() == 0);
  nic.pause_switch(false);
  eventually([&] { return b.poll() == 1; });
  REQUIRE(b.wrong == 0);
}

TEST_CASE("a direct path that opens after frames went through the eSwitch keeps their order", "[route]") {
  for (int round = 0; round < 20; ++round) {
    FakeNic nic;
    // The mark may reach b before the notice about the channel does.
    nic.delay_peer_added(round % 2 == 0 ? 3 : 0);
    VfEnd a(nic), b(nic);
    for (int i = 0; i < 200; ++i) REQUIRE(a.send(*a.fabric->switch_path(), b.id()));
    a.fabric->flush();
    dp::Path& ab = a.path(b);
    std::thread receiver([&] {
      eventually([&] {
        b.fabric->poll_control();
        b.poll();
        return b.received == 400;
      });
    });
    for (int i = 0; i < 200;) {
      a.poll();
      if (a.send(ab, b.id())) {
        ++i;
        a.fabric->flush();
      } else {
        std::this_thread::yield();
      }
    }
    receiver.join();
    REQUIRE(b.wrong == 0);
    REQUIRE(ab.active == RouteMode::direct);
  }
}
