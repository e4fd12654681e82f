#include "engine/datapath/fabric.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <thread>

#include "engine/datapath/ring.h"
#include "tests/unit/datapath/vf_end.h"

using namespace softrnic;
using namespace softrnic::test;
using dp::kNoVf;

namespace {

template <class F>
void eventually(F&& f) {  // fails by the test's time-out only
  while (!f()) std::this_thread::yield();
}

}  // namespace

TEST_CASE("attach tells what is wrong when nobody listens", "[fabric]") {
  std::unique_ptr<dp::Fabric> f;
  std::string why;
  REQUIRE(dp::Fabric::attach("/nonexistent/control.sock", &f, &why) == ENOENT);
  REQUIRE(why.find("/nonexistent/control.sock") != std::string::npos);
  REQUIRE(f == nullptr);
}

TEST_CASE("two VFs exchange frames over their direct channel", "[fabric]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  REQUIRE(a.id() != b.id());
  dp::Path& ab = a.path(b);
  REQUIRE(dp::Fabric::peer(ab) == b.id());
  REQUIRE(&a.path(b) == &ab);
  REQUIRE(a.send(ab, b.id(), 100));  // before b knows of the channel
  a.fabric->flush();
  eventually([&] { return b.fabric->poll_control() || b.poll() > 0; });
  eventually([&] { return b.poll() > 0 || b.received == 1; });
  dp::Path& ba = b.path(a);
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(a.send(ab, b.id(), 16 + static_cast<std::uint32_t>(i)));
    REQUIRE(b.send(ba, a.id(), 4000));
    a.fabric->flush();
    b.fabric->flush();
    b.poll();
    a.poll();
  }
  REQUIRE(a.received == 1000);
  REQUIRE(b.received == 1001);
  REQUIRE(a.wrong + b.wrong == 0);
  int before = nic.requests();
  a.path(b);
  b.path(a);
  REQUIRE(nic.requests() == before);  // known paths need no round trip
}

TEST_CASE("frames to this process loop back inside", "[fabric]") {
  FakeNic nic;
  VfEnd a(nic);
  dp::Path& self = a.path(a);
  for (int i = 0; i < 3000; ++i) {
    REQUIRE(a.send(self, a.id(), 3000));
    a.fabric->flush();
    REQUIRE(a.poll() == 1);
  }
  REQUIRE(a.wrong == 0);
}

TEST_CASE("frames through the eSwitch carry the ingress VF", "[fabric]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  REQUIRE(a.fabric->path_for_qpn(0x900000) == a.fabric->switch_path());
  REQUIRE(dp::Fabric::peer(*a.fabric->switch_path()) == kNoVf);
  for (int i = 0; i < 100; ++i) REQUIRE(a.send(*a.fabric->switch_path(), b.id(), 500));
  a.fabric->flush();
  eventually([&] {
    b.poll();
    return b.received == 100;
  });
  REQUIRE(b.wrong == 0);
  REQUIRE(b.next_from[a.id()] == 100);
}

TEST_CASE("poll honours its budget and is fair to all channels", "[fabric]") {
  FakeNic nic(1u << 18);
  VfEnd a(nic), b(nic), c(nic);
  dp::Path& ac = a.path(c);
  dp::Path& bc = b.path(c);
  for (int i = 0; i < 600; ++i) {
    REQUIRE(a.send(ac, c.id()));
    REQUIRE(b.send(bc, c.id()));
  }
  eventually([&] {
    c.fabric->poll_control();
    return c.poll(1) == 1;
  });
  eventually([&] {
    c.fabric->poll_control();
    return c.next_from.count(a.id()) + c.next_from.count(b.id()) == 2 || (c.poll(1), false);
  });
  while (c.received < 200) REQUIRE(c.poll(7) <= 7);
  std::uint64_t from_a = c.next_from[a.id()], from_b = c.next_from[b.id()];
  CHECK(from_a > 40);
  CHECK(from_b > 40);
}

TEST_CASE("what the consumer has taken is visible to the sender", "[fabric]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  dp::Path& ab = a.path(b);
  eventually([&] { return b.fabric->poll_control(); });
  REQUIRE(a.send(ab, b.id()));
  dp::PathPosition first = a.fabric->position(ab);
  REQUIRE(a.send(ab, b.id()));
  dp::PathPosition second = a.fabric->position(ab);
  REQUIRE_FALSE(a.fabric->taken(ab, first));
  REQUIRE(b.poll(1) == 1);
  REQUIRE(a.fabric->taken(ab, first));
  REQUIRE_FALSE(a.fabric->taken(ab, second));
  REQUIRE(b.poll(1) == 1);
  REQUIRE(a.fabric->taken(ab, second));
}

TEST_CASE("a stopped consumer is a full path, not an error", "[fabric]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  dp::Path& ab = a.path(b);
  std::uint64_t sent = 0;
  while (a.send(ab, b.id(), 1000)) ++sent;
  dp::PathPosition last = a.fabric->position(ab);
  for (int i = 0; i < 100; ++i) REQUIRE_FALSE(a.fabric->has_room(ab, 1000));
  REQUIRE_FALSE(a.fabric->taken(ab, last));
  eventually([&] {
    b.fabric->poll_control();
    b.poll();
    return a.fabric->taken(ab, last);
  });
  REQUIRE(b.received == sent);
  REQUIRE(a.send(ab, b.id(), 1000));
}

TEST_CASE("the path of a dead peer swallows frames and counts them as taken", "[fabric]") {
  FakeNic nic;
  auto a = std::make_unique<VfEnd>(nic);
  VfEnd b(nic);
  dp::Path& ba = b.path(*a);
  dp::Path& ab = a->path(b);
  for (int i = 0; i < 10; ++i) REQUIRE(a->send(ab, b.id()));  // its last words
  while (b.send(ba, a->id(), 2000)) {
  }
  dp::PathPosition last = b.fabric->position(ba);
  REQUIRE_FALSE(b.fabric->taken(ba, last));
  a.reset();
  eventually([&] {
    b.fabric->poll_control();
    return b.fabric->taken(ba, last);
  });
  eventually([&] {
    b.poll();
    return b.received == 10;
  });
  for (int i = 0; i < 100000; ++i) REQUIRE(b.send(ba, 1, 4000));
  b.fabric->flush();
  REQUIRE(b.fabric->taken(ba, b.fabric->position(ba)));
  REQUIRE(b.fabric->path_for_qpn(FakeNic::qpn(1)) == b.fabric->switch_path());
}

TEST_CASE("both sides may open the channel at once", "[fabric]") {
  for (int round = 0; round < 50; ++round) {
    FakeNic nic;
    VfEnd a(nic), b(nic);
    dp::Path *ab = nullptr, *ba = nullptr;
    std::thread other([&] { ab = &a.path(b); });
    ba = &b.path(a);
    other.join();
    REQUIRE(a.send(*ab, b.id()));
    REQUIRE(b.send(*ba, a.id()));
    a.fabric->flush();
    b.fabric->flush();
    eventually([&] { return a.poll() > 0; });
    eventually([&] { return b.poll() > 0; });
  }
}

TEST_CASE("the end of the NIC process is noticed and leaves only sinks", "[fabric]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  dp::Path& ab = a.path(b);
  REQUIRE_FALSE(a.fabric->nic_process_dead());
  nic.die();
  eventually([&] {
    a.fabric->poll_control();
    return a.fabric->nic_process_dead();
  });
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(a.send(ab, b.id(), 4000));
    REQUIRE(a.send(*a.fabric->switch_path(), b.id(), 4000));
  }
  REQUIRE(a.fabric->get_block() == a.id());  // the one that came with attach
  REQUIRE(a.fabric->get_block() == -1);
  REQUIRE(a.fabric->mcast(Gid{}, true) == EPIPE);
  REQUIRE(a.fabric->path_for_qpn(FakeNic::qpn(77)) == a.fabric->switch_path());
}

TEST_CASE("requests work from several threads while another one waits", "[fabric][control]") {
  FakeNic nic;
  VfEnd a(nic);
  REQUIRE(a.fabric->get_block() == a.id());
  std::atomic<bool> stop{false};
  std::thread helper([&] {
    while (!stop) {
      a.fabric->wait(50'000'000);
      a.fabric->poll_control();
    }
  });
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> sum{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) sum += static_cast<std::uint64_t>(a.fabric->get_block());
    });
  }
  for (std::thread& t : threads) t.join();
  stop = true;
  a.fabric->wake();
  helper.join();
  REQUIRE(sum == 800u * 2000 + 799u * 800 / 2);
}

TEST_CASE("a malformed entry turns the channel into a sink", "[fabric][hostile]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  dp::Path& ba = b.path(a);
  dp::Path& ab = a.path(b);
  REQUIRE(a.send(ab, b.id()));
  REQUIRE(b.poll() == 1);
  std::uint64_t word = dp::pack_header(dp::EntryKind::frame, 1u << 30, 0);
  std::memcpy(nic.direct_data(a.id(), b.id()) + 64, &word, sizeof word);
  for (int i = 0; i < 10; ++i) REQUIRE(b.poll() == 0);
  for (int i = 0; i < 10000; ++i) REQUIRE(b.send(ba, a.id(), 1000));
  REQUIRE(b.fabric->taken(ba, b.fabric->position(ba)));
  REQUIRE(a.send(*a.fabric->switch_path(), b.id()));  // the others are not concerned
  a.fabric->flush();
  eventually([&] { return b.poll() == 1; });
}

TEST_CASE("a lying head turns the channel into a sink", "[fabric][hostile]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  dp::Path& ab = a.path(b);
  while (a.send(ab, b.id(), 1000)) {
  }
  nic.direct_ring(a.id(), b.id())->head = 1ull << 50;
  for (int i = 0; i < 1000; ++i) REQUIRE(a.send(ab, b.id(), 1000));
}

TEST_CASE("after fork nothing of the parent's VF is touched", "[fabric]") {
  FakeNic nic;
  VfEnd a(nic), b(nic);
  dp::Path& ab = a.path(b);
  a.fabric->set_polling(dp::ConsumerState::app_polling);
  REQUIRE(a.send(ab, b.id()));
  std::uint32_t pollers = nic.switch_inbox().busy_pollers;
  a.fabric->abandon_after_fork();  // the same calls as in a child
  for (int i = 0; i < 1000; ++i) REQUIRE(a.send(ab, b.id(), 4000));
  a.fabric->flush();
  REQUIRE(a.poll() == 0);
  REQUIRE(a.fabric->get_block() == -1);
  a.fabric->status().qps = 5;
  a.fabric.reset();
  REQUIRE(nic.switch_inbox().busy_pollers == pollers);
  eventually([&] {
    b.fabric->poll_control();
    b.poll();
    return b.received == 1;
  });
}
