// The eSwitch between VFs and a network.
#include <poll.h>
#include <sys/eventfd.h>

#include <mutex>

#include "engine/observe/fault_injector.h"
#include "engine/observe/fault_parser.h"
#include "tests/unit/switch/switch_fixture.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

constexpr std::uint32_t kMulticastQpn = 0xFFFFFF;

Gid address(std::uint8_t last) {
  Gid g = own_gid();
  g.raw[15] = last;
  return g;
}
Gid group() {
  Gid g = own_gid();
  g.raw[12] = 239;
  return g;
}

// A network that the test plays: what it sends in, and what came out.
class FakeUplink final : public sw::Uplink {
 public:
  FakeUplink() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void arrive(std::vector<std::uint8_t> frame) {
    {
      std::lock_guard lock(mutex_);
      in_.push_back(std::move(frame));
    }
    raw_eventfd_write(event_.get());
  }
  struct Sent {
    Gid dgid{};
    std::uint16_t vlan = 0;
    std::vector<std::uint8_t> frame;
  };
  std::vector<Sent> wait_sent(std::size_t count) {
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        if (sent_.size() >= count) return sent_;
      }
      std::this_thread::yield();
    }
  }
  std::size_t sent() {
    std::lock_guard lock(mutex_);
    return sent_.size();
  }
  std::atomic<bool> full{false};
  std::atomic<bool> flushed{true};
  std::atomic<int> flushes{0};
  std::atomic<int> members{0};
  std::atomic<Nanos> timer{kNever};
  std::atomic<int> timeouts{0};

  int receive(Nanos, int budget, OnFrame on_frame, void* ctx) override {
    std::vector<std::vector<std::uint8_t>> now;
    {
      std::lock_guard lock(mutex_);
      while (!in_.empty() && static_cast<int>(now.size()) < budget) {
        now.push_back(std::move(in_.front()));
        in_.pop_front();
      }
    }
    for (const auto& f : now) on_frame(ctx, f);
    return static_cast<int>(now.size());
  }
  bool has_room() override { return !full; }
  void send(Nanos, const Gid& dgid, std::uint16_t vlan, MutableBytes frame) override {
    std::lock_guard lock(mutex_);
    sent_.push_back({dgid, vlan, {frame.begin(), frame.end()}});
  }
  bool flush() override {
    ++flushes;
    return flushed;
  }
  void set_group_member(Nanos, const Gid&, bool member) override { members += member ? 1 : -1; }
  Nanos next_timeout() const override { return timer; }
  void on_timeout(Nanos) override {
    timer = kNever;
    ++timeouts;
  }
  int wakeup_fd() const override { return event_.get(); }
  bool drain_wakeup() override {
    std::uint64_t n = 0;
    return ::read(event_.get(), &n, sizeof(n)) == static_cast<ssize_t>(sizeof(n));
  }

 private:
  sw::UniqueFd event_;
  std::mutex mutex_;
  std::deque<std::vector<std::uint8_t>> in_;
  std::vector<Sent> sent_;
};

struct Networked {
  std::shared_ptr<FakeUplink> net = std::make_shared<FakeUplink>();
  SwitchFixture f{{}, {net}};
  TestVf &a = f.add(), &b = f.add();

  sw::PortCounters counters() { return f.eswitch().uplink_counters(0); }
  template <class F>
  void wait(F&& condition) {
    while (!condition()) std::this_thread::yield();
  }
};

}  // namespace

TEST_CASE("A frame to an address of somebody else leaves by the uplink", "[uplink]") {
  Networked n;
  // The queue pair number is another host's: that a VF here has the same one means nothing.
  const auto frame = make_frame({.dest_qpn = n.b.qpn(), .dgid = address(9)});
  n.a.send(frame);
  const auto sent = n.net->wait_sent(1);
  CHECK(sent[0].dgid == address(9));
  CHECK(sent[0].vlan == 0xFFFF);
  CHECK(sent[0].frame == frame);
  n.f.wait_taken(n.a);
  CHECK_FALSE(n.b.in().pending());
  CHECK(n.counters().rx_frames == 1);
}

TEST_CASE("A frame to an own address stays in the host", "[uplink]") {
  Networked n;
  n.a.send(make_frame({.dest_qpn = n.b.qpn()}));
  CHECK(n.b.receive().source == n.a.id());
  CHECK(n.net->sent() == 0);
}

TEST_CASE("A frame from the network goes to the owner of its queue pair, as from nobody here", "[uplink]") {
  Networked n;
  const auto frame = make_frame({.dest_qpn = n.b.qpn(), .sgid = address(9)});
  n.net->arrive(frame);
  const Received r = n.b.receive();
  CHECK(r.source == dp::kNoVf);
  CHECK(r.bytes == frame);
  CHECK_FALSE(n.a.in().pending());
}

TEST_CASE("From the network: own source addresses, other destinations, unknown queue pairs and rubbish are counted",
          "[uplink]") {
  Networked n;
  n.net->arrive(make_frame({.dest_qpn = n.b.qpn()}));                                          // claims to be us
  n.net->arrive(make_frame({.dest_qpn = n.b.qpn(), .sgid = address(9), .dgid = address(8)}));  // for another host
  n.net->arrive(make_frame({.dest_qpn = 0x777000, .sgid = address(9)}));                       // nobody's
  n.net->arrive(make_frame({.dest_qpn = 1, .sgid = address(9)}));                              // the NIC process's
  n.net->arrive(std::vector<std::uint8_t>(60, 0x55));
  n.net->arrive(std::vector<std::uint8_t>(dp::kMaxFrame + 1, 0x55));
  n.wait([&] { return n.counters().tx_frames == 6; });
  n.f.settle();
  const auto c = n.counters();
  CHECK(c.tx_bad_source == 1);
  CHECK(c.tx_unknown_destination == 2);
  CHECK(c.tx_management == 1);
  CHECK(c.tx_malformed == 2);
  CHECK_FALSE(n.b.in().pending());
}

TEST_CASE("Multicast goes to the other members here and to the network; joins are reported there", "[uplink]") {
  Networked n;
  n.f.eswitch().set_group_member(group(), n.a.id(), true);
  n.f.eswitch().set_group_member(group(), n.b.id(), true);
  n.f.settle();
  CHECK(n.net->members == 2);
  n.a.send(make_frame({.opcode = kUdSendOnly, .dest_qpn = kMulticastQpn, .src_qpn = n.a.qpn(), .dgid = group()}));
  CHECK(n.b.receive().source == n.a.id());
  CHECK(n.net->wait_sent(1)[0].dgid == group());
  n.net->arrive(make_frame(
      {.opcode = kUdSendOnly, .dest_qpn = kMulticastQpn, .src_qpn = 5, .sgid = address(9), .dgid = group()}));
  CHECK(n.a.receive().source == dp::kNoVf);
  CHECK(n.b.receive().source == dp::kNoVf);
  n.f.eswitch().set_group_member(group(), n.a.id(), false);
  n.f.eswitch().set_group_member(group(), n.a.id(), false);  // it has left already
  n.f.settle();
  CHECK(n.net->members == 1);
  n.f.eswitch().detach(n.b.id(), {});  // a process that ends leaves its groups
  n.f.settle();
  CHECK(n.net->members == 0);
}

TEST_CASE("IEEE 802.1Q: an address belongs to the network of its VLAN", "[uplink][vlan]") {
  Networked n;
  sw::OwnGid untagged, tagged;
  untagged.gid = own_gid();
  tagged.gid = address(7);
  tagged.vlan = 7;
  untagged.uplink = tagged.uplink = 0;
  n.f.eswitch().set_addresses({untagged, tagged});
  n.f.settle();
  n.a.send(make_frame({.dest_qpn = 17, .sgid = address(7), .dgid = address(9), .vlan = 7}));
  CHECK(n.net->wait_sent(1)[0].vlan == 7);
  n.a.send(make_frame({.dest_qpn = 17, .sgid = address(7), .dgid = address(9)}));
  n.a.send(make_frame({.dest_qpn = 17, .dgid = address(9), .vlan = 7}));
  n.f.wait_taken(n.a);
  n.f.settle();
  CHECK(n.f.eswitch().counters(n.a.id()).tx_bad_source == 2);
  CHECK(n.net->sent() == 1);

  n.net->arrive(make_frame({.dest_qpn = n.b.qpn(), .psn = 1, .sgid = address(9), .dgid = address(7)}));
  n.net->arrive(make_frame({.dest_qpn = n.b.qpn(), .psn = 2, .sgid = address(9), .vlan = 7}));
  n.net->arrive(make_frame({.dest_qpn = n.b.qpn(), .psn = 3, .sgid = address(9), .dgid = address(7), .vlan = 8}));
  n.net->arrive(make_frame({.dest_qpn = n.b.qpn(), .psn = 4, .sgid = address(9), .dgid = address(7), .vlan = 7}));
  n.net->arrive(make_frame({.dest_qpn = n.b.qpn(), .psn = 5, .sgid = address(9), .vlan = 0}));  // only a priority
  CHECK(psn_of(n.b.receive().bytes) == 4);
  CHECK(psn_of(n.b.receive().bytes) == 5);
  CHECK(n.counters().tx_unknown_destination == 3);
}

TEST_CASE("What a device does not take at once is offered again while the switch has nothing else to do", "[uplink]") {
  Networked n;
  n.net->flushed = false;
  n.a.send(make_frame({.dest_qpn = 17, .dgid = address(9)}));
  n.net->wait_sent(1);
  timespec pause{0, 20'000'000};
  ::nanosleep(&pause, nullptr);  // long after it would sleep
  const int before = n.net->flushes;
  n.wait([&] { return n.net->flushes > before + 2; });
}

TEST_CASE("While the network takes nothing, its senders wait and nothing is lost", "[uplink]") {
  Networked n;
  n.net->full = true;
  constexpr std::uint32_t kCount = 20;
  for (std::uint32_t i = 0; i < kCount; ++i) n.a.send(make_frame({.dest_qpn = 17, .psn = i, .dgid = address(9)}));
  // Others go on meanwhile.
  n.b.send(make_frame({.dest_qpn = n.b.qpn()}));
  n.b.receive();
  CHECK(n.net->sent() == 0);
  n.net->full = false;
  const auto sent = n.net->wait_sent(kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) CHECK(psn_of(sent[i].frame) == i);
}

TEST_CASE("A VF that takes nothing loses what comes for it from the network, and is counted", "[uplink]") {
  auto net = std::make_shared<FakeUplink>();
  sw::ESwitchOptions options;
  options.queue_limit = 1u << 16;
  SwitchFixture f(options, {net});
  TestVf& a = f.add(1u << 13);
  constexpr std::uint64_t kCount = 200;
  for (std::uint64_t i = 0; i < kCount; ++i)
    net->arrive(
        make_frame({.dest_qpn = a.qpn(), .psn = static_cast<std::uint32_t>(i), .payload = 1024, .sgid = address(9)}));
  while (f.eswitch().uplink_counters(0).tx_frames < kCount) std::this_thread::yield();
  f.settle();
  std::uint64_t got = 0;
  Received r;
  const std::uint64_t lost = f.eswitch().counters(a.id()).rx_out_of_buffer;
  CHECK(lost > 0);
  while (got < kCount - lost) {
    r = a.receive();
    CHECK(psn_of(r.bytes) == got++);
  }
}

TEST_CASE("A frame from the network and a timer wake the sleeping switch", "[uplink]") {
  Networked n;
  timespec pause{0, 20'000'000};
  ::nanosleep(&pause, nullptr);  // it sleeps by now, or soon: both must work
  n.net->arrive(make_frame({.dest_qpn = n.a.qpn(), .sgid = address(9)}));
  n.a.receive();
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  n.net->timer = static_cast<Nanos>(ts.tv_sec) * 1'000'000'000u + static_cast<Nanos>(ts.tv_nsec);
  n.f.settle();  // a new deadline is seen when the switch next turns
  n.wait([&] { return n.net->timeouts == 1; });
}

TEST_CASE("Faults disturb what comes from the network and what goes there", "[uplink][fault]") {
  sw::ESwitchOptions options;
  auto faults = std::make_shared<observe::FaultInjector>();
  options.disturber = faults;
  auto net = std::make_shared<FakeUplink>();
  SwitchFixture f(options, {net});
  TestVf& a = f.add();
  for (const char* text :
       {"set bth.psn=+1 if from=port0", "duplicate if to=port0", "delay 1ms if to=port0", "drop if from=port1"}) {
    observe::FaultRule rule;
    std::string why;
    REQUIRE(observe::parse_fault_rule(text, &rule, &why));
    faults->add(std::move(rule));
  }
  net->arrive(make_frame({.dest_qpn = a.qpn(), .psn = 7, .sgid = address(9)}));
  CHECK(psn_of(a.receive().bytes) == 8);
  const auto frame = make_frame({.dest_qpn = 5, .psn = 1, .dgid = address(9)});
  a.send(frame);
  const auto sent = net->wait_sent(2);
  CHECK(sent[0].frame == frame);
  CHECK(sent[1].frame == frame);
  CHECK(sent[1].dgid == address(9));
}
