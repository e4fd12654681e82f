// Faults in the switch: between what a VF sent and what another gets.
#include <mutex>

#include "engine/observe/fault_injector.h"
#include "engine/observe/fault_parser.h"
#include "tests/unit/switch/switch_fixture.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

struct Seen {
  std::uint16_t source;
  std::uint32_t psn;
  std::string comment;
};

struct Watcher final : sw::FrameTap {
  void on_frame(std::uint16_t source, Bytes frame, std::string_view comment) override {
    roce::RxFrame rx;
    const bool whole = roce::parse(frame, &rx) == roce::FrameError::none;
    std::lock_guard lock(mutex);
    seen.push_back({source, whole ? wire::BthView(rx.transport.data()).psn() : 0, std::string(comment)});
  }
  std::vector<Seen> take() {
    std::lock_guard lock(mutex);
    return seen;
  }
  std::mutex mutex;
  std::vector<Seen> seen;
};

struct FaultFixture {
  explicit FaultFixture(sw::ESwitchOptions options = {}) : f(with_faults(std::move(options))) {
    f.settle_taps({watcher});
  }

  std::uint32_t add(const std::string& text) {
    observe::FaultRule r;
    std::string why;
    REQUIRE(observe::parse_fault_rule(text, &r, &why));
    return faults->add(std::move(r));
  }
  sw::ESwitchOptions with_faults(sw::ESwitchOptions options) {
    options.disturber = faults;
    return options;
  }

  std::shared_ptr<observe::FaultInjector> faults = std::make_shared<observe::FaultInjector>();
  std::shared_ptr<Watcher> watcher = std::make_shared<Watcher>();
  SwitchFixture f;
};

}  // namespace

TEST_CASE("A dropped packet is shown with a comment and does not arrive", "[switch][fault]") {
  FaultFixture t;
  TestVf &a = t.f.add(), &b = t.f.add();
  t.add("drop if psn=2");
  for (std::uint32_t psn = 1; psn <= 3; ++psn) a.send(make_frame({.dest_qpn = b.qpn(), .psn = psn}));
  CHECK(psn_of(b.receive().bytes) == 1);
  CHECK(psn_of(b.receive().bytes) == 3);
  const auto seen = t.watcher->take();
  REQUIRE(seen.size() == 3);
  CHECK(seen[0].comment.empty());
  CHECK(seen[1].psn == 2);
  CHECK(seen[1].comment == "fault 1: dropped");
  CHECK(seen[1].source == a.id());
  CHECK(t.f.eswitch().counters(b.id()).rx_frames == 2);
  std::uint64_t lost = 0;
  const auto events = t.faults->take_events(&lost);
  REQUIRE(events.size() == 1);
  CHECK(events[0].from.vf == a.id());
  CHECK(lost == 0);
}

TEST_CASE("Copies and changed packets arrive from the VF that sent them", "[switch][fault]") {
  FaultFixture t;
  TestVf &a = t.f.add(), &b = t.f.add();
  t.add("duplicate");
  t.add("set bth.psn=+7");
  a.send(make_frame({.dest_qpn = b.qpn(), .psn = 1}));
  for (int i = 0; i < 2; ++i) {
    const Received r = b.receive();
    CHECK(psn_of(r.bytes) == 8);
    CHECK(r.source == a.id());
    roce::RxFrame rx;
    REQUIRE(roce::parse(r.bytes, &rx) == roce::FrameError::none);
    CHECK(roce::icrc_ok(rx));
  }
}

TEST_CASE("A cut packet still gets to its receiver", "[switch][fault]") {
  FaultFixture t;
  TestVf &a = t.f.add(), &b = t.f.add();
  t.add("truncate 60 if once");
  a.send(make_frame({.dest_qpn = b.qpn(), .psn = 1}));
  CHECK(b.receive().bytes.size() == 60);
  CHECK(t.f.eswitch().counters(a.id()).tx_malformed == 0);
}

TEST_CASE("A delayed packet arrives although the switch sleeps, a removed rule's at once", "[switch][fault]") {
  FaultFixture t;
  TestVf &a = t.f.add(), &b = t.f.add();
  t.add("delay 20ms if psn=1");
  const std::uint32_t id = t.add("delay 60s if psn=2");
  a.send(make_frame({.dest_qpn = b.qpn(), .psn = 2}));
  a.send(make_frame({.dest_qpn = b.qpn(), .psn = 1}));
  CHECK(psn_of(b.receive().bytes) == 1);
  REQUIRE(t.faults->remove(id));
  t.f.eswitch().wake();
  CHECK(psn_of(b.receive().bytes) == 2);
}

TEST_CASE("Rule 5: marks pass every fault, and nothing of it", "[switch][fault]") {
  FaultFixture t;
  TestVf &a = t.f.add(), &b = t.f.add();
  t.add("drop");
  a.send(make_frame({.dest_qpn = b.qpn(), .psn = 1}));
  a.send_mark(b.id(), 42);
  const Received r = b.receive();
  CHECK(r.is_mark);
  CHECK(r.mark == 42);
}

TEST_CASE("What is on its way to a VF that is gone goes nowhere", "[switch][fault]") {
  FaultFixture t;
  TestVf &a = t.f.add(), &b = t.f.add(), &c = t.f.add();
  const std::uint32_t id = t.add("delay 60s if qp=" + std::to_string(b.qpn()));
  a.send(make_frame({.dest_qpn = b.qpn(), .psn = 1}));
  a.send(make_frame({.dest_qpn = c.qpn(), .psn = 2}));
  CHECK(psn_of(c.receive().bytes) == 2);
  std::atomic<bool> gone{false};
  t.f.eswitch().detach(b.id(), [&] { gone = true; });
  while (!gone) std::this_thread::yield();
  REQUIRE(t.faults->remove(id));
  CHECK_FALSE(t.faults->active());
}
