// Forwarding, replication, source checks, bounded queues and marks of the eSwitch.
#include <poll.h>

#include <algorithm>
#include <ctime>
#include <mutex>

#include "tests/unit/switch/switch_fixture.h"

using namespace softrnic;
using namespace softrnic::test;

TEST_CASE("A frame goes to the VF that owns its destination QPN, with the sender's id", "[switch]") {
  SwitchFixture f;
  TestVf &a = f.add(), &b = f.add(), &c = f.add();
  const auto frame = make_frame({.dest_qpn = b.qpn(), .psn = 5});
  a.send(frame);
  const Received r = b.receive();
  CHECK(r.source == a.id());
  CHECK(r.bytes == frame);
  f.wait_taken(a);
  CHECK_FALSE(c.in().pending());
  const auto counters = f.eswitch().counters(a.id());
  CHECK(counters.tx_frames == 1);
  CHECK(counters.tx_bytes == frame.size());
  CHECK(f.eswitch().counters(b.id()).rx_frames == 1);
}

TEST_CASE("Frames of every size arrive with every byte, also those that had to wait for room", "[switch]") {
  SwitchFixture f;
  TestVf &a = f.add(1u << 18), &b = f.add(dp::kMinRingSize);
  std::vector<std::vector<std::uint8_t>> frames;
  for (std::uint32_t payload = 0; payload <= 4096; payload += payload < 128 ? 4 : 256) {
    auto frame = make_frame({.dest_qpn = b.qpn(), .payload = payload});
    for (std::size_t i = 54; i < frame.size(); ++i)
      frame[i] = static_cast<std::uint8_t>(7 * i + payload);  // behind BTH
    frames.push_back(std::move(frame));
  }
  for (const auto& frame : frames) a.send(frame);
  f.wait_taken(a);
  for (const auto& frame : frames) CHECK(b.receive().bytes == frame);
}

TEST_CASE("A VF may send to itself through the switch", "[switch]") {
  SwitchFixture f;
  TestVf& a = f.add();
  a.send(make_frame({.dest_qpn = a.qpn()}));
  CHECK(a.receive().source == a.id());
}

TEST_CASE("Frames arrive complete and in order, in both directions at once", "[switch]") {
  SwitchFixture f;
  TestVf &a = f.add(1u << 15), &b = f.add(1u << 15);
  constexpr std::uint32_t kCount = 5000;
  std::uint32_t sent[2] = {0, 0}, received[2] = {0, 0};
  TestVf* vf[2] = {&a, &b};
  while (received[0] < kCount || received[1] < kCount) {
    bool moved = false;
    for (int i = 0; i < 2; ++i) {
      if (sent[i] < kCount &&
          vf[i]->try_send(make_frame({.dest_qpn = vf[1 - i]->qpn(), .psn = sent[i], .payload = 4 * (sent[i] % 1000)})))
        moved = ++sent[i] != 0;
      Received r;
      while (vf[i]->try_receive(&r)) {
        REQUIRE(psn_of(r.bytes) == received[i]++);
        moved = true;
      }
    }
    if (!moved) std::this_thread::yield();
  }
  CHECK(f.eswitch().counters(a.id()).rx_out_of_buffer == 0);
}

TEST_CASE("A destination that nobody owns is counted and dropped", "[switch]") {
  SwitchFixture f;
  TestVf& a = f.add();
  for (const std::uint32_t qpn : {0u, 1u, 5u << 12, 0xFFEFFFu}) a.send(make_frame({.dest_qpn = qpn}));
  f.wait_taken(a);
  CHECK(f.eswitch().counters(a.id()).tx_unknown_destination == 4);
}

TEST_CASE("A frame with an address that is not the NIC's is counted and dropped", "[switch]") {
  SwitchFixture f;
  TestVf &a = f.add(), &b = f.add();
  Gid other = own_gid();
  other.raw[15] = 77;
  a.send(make_frame({.dest_qpn = b.qpn(), .sgid = other}));
  f.wait_taken(a);
  CHECK(f.eswitch().counters(a.id()).tx_bad_source == 1);
  CHECK_FALSE(b.in().pending());
}

TEST_CASE("IBA 9.8.3: a UD source QPN that is not the sender's is counted and dropped", "[switch][ud]") {
  SwitchFixture f;
  TestVf &a = f.add(), &b = f.add(), &c = f.add();
  a.send(make_frame({.opcode = kUdSendOnly, .dest_qpn = b.qpn(), .src_qpn = c.qpn()}));
  a.send(make_frame({.opcode = kUdSendOnly, .dest_qpn = b.qpn(), .src_qpn = 1}));
  a.send(make_frame({.opcode = kUdSendOnly, .dest_qpn = b.qpn(), .src_qpn = a.qpn(), .psn = 3}));
  CHECK(psn_of(b.receive().bytes) == 3);
  CHECK(f.eswitch().counters(a.id()).tx_bad_source == 2);
}

TEST_CASE("What is no RoCE frame is counted and dropped", "[switch]") {
  SwitchFixture f;
  TestVf &a = f.add(), &b = f.add();
  auto frame = make_frame({.dest_qpn = b.qpn()});
  a.send(std::vector<std::uint8_t>(frame.begin(), frame.begin() + 30));
  frame[12] = 0x12;  // ethertype
  a.send(frame);
  a.send({1});
  a.send(make_frame({.opcode = kUdSendOnly, .dest_qpn = b.qpn(), .src_qpn = a.qpn(), .psn = 9}));
  CHECK(psn_of(b.receive().bytes) == 9);
  CHECK(f.eswitch().counters(a.id()).tx_malformed == 3);
}

TEST_CASE("Multicast goes to every other member of the group", "[switch][ud]") {
  SwitchFixture f;
  TestVf &a = f.add(), &b = f.add(), &c = f.add(), &d = f.add();
  Gid group{};
  group.raw[0] = 0xFF;
  group.raw[1] = 0x0E;
  group.raw[15] = 9;
  // RoCE v2 over IPv6 needs an IPv6 source.
  Gid source{};
  source.raw[0] = 0xFE;
  source.raw[1] = 0x80;
  source.raw[15] = 1;
  f.eswitch().set_addresses({sw::OwnGid{own_gid()}, sw::OwnGid{source}});
  for (TestVf* vf : {&a, &b, &c}) f.eswitch().set_group_member(group, vf->id(), true);
  f.settle();
  const FrameSpec spec{
      .opcode = kUdSendOnly, .dest_qpn = 0xFFFFFF, .src_qpn = a.qpn(), .psn = 1, .sgid = source, .dgid = group};
  const auto frame = make_frame(spec);
  a.send(frame);
  CHECK(b.receive().bytes == frame);
  CHECK(c.receive().bytes == frame);
  f.wait_taken(a);
  CHECK_FALSE(a.in().pending());
  CHECK_FALSE(d.in().pending());

  SECTION("a VF that is no member may send to the group") {
    FrameSpec from_d = spec;
    from_d.src_qpn = d.qpn();
    d.send(make_frame(from_d));
    CHECK(a.receive().source == d.id());
    CHECK(b.receive().source == d.id());
  }
  SECTION("who left gets nothing, and an empty group is an unknown destination") {
    for (TestVf* vf : {&b, &c}) f.eswitch().set_group_member(group, vf->id(), false);
    f.settle();
    a.send(frame);
    f.wait_taken(a);
    CHECK(f.eswitch().counters(a.id()).tx_unknown_destination == 1);
    CHECK_FALSE(b.in().pending());
  }
}

TEST_CASE("A VF that takes nothing loses frames beyond its queue and holds up nobody", "[switch]") {
  sw::ESwitchOptions options;
  options.queue_limit = 64 * 1024;
  options.stall_timeout = 1'000'000;
  SwitchFixture f(options);
  TestVf &a = f.add(), &stopped = f.add(), &b = f.add();
  constexpr std::uint32_t kCount = 1000;
  std::uint32_t received = 0;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    a.send(make_frame({.dest_qpn = stopped.qpn(), .psn = i, .payload = 1024}));
    a.send(make_frame({.dest_qpn = b.qpn(), .psn = i}));
    Received r;
    while (b.try_receive(&r)) REQUIRE(psn_of(r.bytes) == received++);
  }
  while (received < kCount) REQUIRE(psn_of(b.receive().bytes) == received++);
  f.wait_taken(a);
  const auto dropped = f.eswitch().counters(stopped.id()).rx_out_of_buffer;
  CHECK(dropped > 0);

  // What was not dropped arrives in order when the VF goes on, and later frames pass again.
  std::uint32_t got = 0, last = 0;
  while (got < kCount - dropped) {
    const std::uint32_t psn = psn_of(stopped.receive().bytes);
    CHECK((got == 0 || psn > last));
    last = psn;
    ++got;
  }
  a.send(make_frame({.dest_qpn = stopped.qpn(), .psn = 5000}));
  CHECK(psn_of(stopped.receive().bytes) == 5000);
}

TEST_CASE("A VF that is slow but goes on loses nothing: its senders wait", "[switch]") {
  sw::ESwitchOptions options;
  options.queue_limit = 32 * 1024;
  options.stall_timeout = kNever;
  SwitchFixture f(options);
  TestVf &a = f.add(), &b = f.add();
  constexpr std::uint32_t kCount = 2000;
  std::uint32_t sent = 0, received = 0;
  while (received < kCount) {
    while (sent < kCount && a.try_send(make_frame({.dest_qpn = b.qpn(), .psn = sent, .payload = 1024}))) ++sent;
    REQUIRE(psn_of(b.receive().bytes) == received++);
  }
  CHECK(f.eswitch().counters(b.id()).rx_out_of_buffer == 0);
}

TEST_CASE("Rule 5: a mark arrives behind the frames that were sent before it, from whom it came", "[switch][barrier]") {
  SwitchFixture f;
  TestVf &a = f.add(1u << 15), &b = f.add(1u << 15), &c = f.add(1u << 15);
  // More than the ring takes: the mark waits in the queue behind them.
  constexpr std::uint32_t kCount = 100;
  for (std::uint32_t i = 0; i < kCount; ++i) a.send(make_frame({.dest_qpn = b.qpn(), .psn = i, .payload = 1024}));
  a.send_mark(b.id(), 7);
  f.wait_taken(a);
  c.send_mark(b.id(), 300);
  f.wait_taken(c);
  for (std::uint32_t i = 0; i < kCount; ++i) REQUIRE(psn_of(b.receive().bytes) == i);
  Received r = b.receive();
  CHECK(r.is_mark);
  CHECK(r.source == a.id());
  CHECK(r.mark == 7);
  r = b.receive();
  CHECK(r.is_mark);
  CHECK(r.source == c.id());
  CHECK(r.mark == 300);
}

TEST_CASE("A flood of marks for a VF that takes nothing is refused", "[switch][barrier]") {
  SwitchFixture f;
  TestVf &a = f.add(1u << 15), &b = f.add(1u << 15);
  constexpr int kMarks = 5000;
  for (int i = 0; i < kMarks; ++i) a.send_mark(b.id(), 1);
  f.wait_taken(a);
  int arrived = 0;
  Received r;
  while (b.try_receive(&r)) ++arrived;
  CHECK(arrived < kMarks);
  CHECK(f.eswitch().counters(a.id()).tx_malformed + static_cast<unsigned>(arrived) >= kMarks - 1u);
}

TEST_CASE("A mark for a VF that is gone or never was is dropped", "[switch][barrier]") {
  SwitchFixture f;
  TestVf &a = f.add(), &b = f.add();
  f.eswitch().detach(b.id(), nullptr);
  a.send_mark(b.id(), 1);
  a.send_mark(4000, 1);
  a.send_mark(65535, 1);
  a.send(make_frame({.dest_qpn = a.qpn(), .psn = 2}));
  CHECK(psn_of(a.receive().bytes) == 2);
}

TEST_CASE("A VF with a corrupt ring is cut off; the others go on", "[switch]") {
  std::atomic<int> broken{0};
  sw::ESwitchOptions options;
  options.on_broken = [&](std::uint16_t id) { broken = id; };
  SwitchFixture f(options);
  TestVf &bad = f.add(), &a = f.add(), &b = f.add();
  f.settle();
  const std::uint64_t lie = GENERATE(
      dp::pack_header(dp::EntryKind::frame, 1u << 30, 0), dp::pack_header(dp::EntryKind::frame, 0, 0),
      dp::pack_header(dp::EntryKind::wrap, 0, 0), dp::pack_header(dp::EntryKind::mark, 3, 0), ~std::uint64_t{0});
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(bad.out_data())).store(lie);
  bad.kick();
  dp::ring_bell(*f.eswitch().inbox().as<dp::Inbox>(), bad.id(), f.eswitch().eventfd());
  while (broken == 0) std::this_thread::yield();
  CHECK(broken == bad.id());
  a.send(make_frame({.dest_qpn = bad.qpn()}));
  a.send(make_frame({.dest_qpn = b.qpn(), .psn = 4}));
  CHECK(psn_of(b.receive().bytes) == 4);
}

TEST_CASE("A sleeping VF is woken by a frame and by space in its ring", "[switch]") {
  SwitchFixture f;
  TestVf &a = f.add(1u << 14), &b = f.add(1u << 14);
  auto wait_for_bell = [](TestVf& vf) {
    dp::prepare_sleep(vf.inbox());
    pollfd p{vf.eventfd(), POLLIN, 0};
    if (!dp::inbox_pending(vf.inbox())) REQUIRE(::poll(&p, 1, 30000) == 1);
    dp::end_sleep(vf.inbox());
    dp::drain_eventfd(vf.eventfd());
    std::uint32_t slot = 99;
    dp::take_inbox(vf.inbox(), [&](std::uint32_t s) { slot = s; });
    CHECK(slot == 0);
  };
  std::thread sender([&] { a.send(make_frame({.dest_qpn = b.qpn()})); });
  wait_for_bell(b);
  sender.join();
  CHECK(b.receive().source == a.id());
}

TEST_CASE("The switch sleeps when there is nothing to do, and wakes for the next frame", "[switch]") {
  SwitchFixture f;
  TestVf &a = f.add(), &b = f.add();
  auto& inbox = *f.eswitch().inbox().as<dp::Inbox>();
  for (std::uint32_t i = 0; i < 50; ++i) {
    while (inbox.sleeping == 0) std::this_thread::yield();
    CHECK(inbox.busy_pollers == 0);
    a.send(make_frame({.dest_qpn = b.qpn(), .psn = i}));
    CHECK(psn_of(b.receive().bytes) == i);
  }
}

TEST_CASE("A VF that dies while it polls no longer counts as a poller", "[switch]") {
  SwitchFixture f;
  TestVf& a = f.add();
  auto& inbox = *f.eswitch().inbox().as<dp::Inbox>();
  a.status().polling = 1;
  inbox.busy_pollers.fetch_add(1);
  f.eswitch().detach(a.id(), nullptr);
  while (inbox.busy_pollers != 0) std::this_thread::yield();
}

TEST_CASE("Rule 10: what a dead VF had sent still arrives", "[switch]") {
  SwitchFixture f;
  TestVf &a = f.add(1u << 15), &b = f.add(1u << 15);
  f.settle();
  // Without a kick: the switch has not seen them when it learns of the death.
  std::uint32_t sent = 0;
  for (;; ++sent) {
    const auto frame = make_frame({.dest_qpn = b.qpn(), .psn = sent, .payload = 512});
    const auto length = static_cast<std::uint32_t>(frame.size());
    if (!a.out().has_room(length)) break;
    std::memcpy(a.out().begin(length), frame.data(), length);
    a.out().commit(length);
  }
  f.eswitch().detach(a.id(), nullptr);
  for (std::uint32_t i = 0; i < sent; ++i) REQUIRE(psn_of(b.receive().bytes) == i);
}
