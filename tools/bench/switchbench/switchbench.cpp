// What the eSwitch alone forwards: one VF's frames into another VF's ring. Prints frames per second, the best of
// several measurements: what other programs take from the machine does not belong to the switch.
//
//     switchbench [PAYLOAD [SECONDS]]
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/datapath/ring.h"
#include "engine/datapath/wakeup.h"
#include "engine/switch/eswitch.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/bth.h"

namespace {

using namespace softrnic;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kRing = 1u << 18;

Gid own_gid() {
  Gid g{};
  g.raw[10] = g.raw[11] = 0xFF;
  g.raw[12] = 10;
  g.raw[15] = 1;
  return g;
}

std::vector<std::uint8_t> make_frame(std::uint32_t qpn, std::uint32_t payload) {
  constexpr std::uint8_t kRcSendOnly = 0x04;
  roce::PathParams path;
  path.sgid = path.dgid = own_gid();
  roce::HeaderTemplate headers(path);
  const std::uint32_t transport = wire::kBthSize + payload;
  std::vector<std::uint8_t> frame(headers.size() + transport + 4);
  headers.write(frame.data(), transport);
  wire::Bth bth;
  bth.opcode = kRcSendOnly;
  bth.dest_qpn = qpn;
  bth.write(frame.data() + headers.size());
  return frame;
}

// A VF as the switch sees it.
class Vf {
 public:
  Vf(sw::ESwitch& eswitch, dp::BlockTable& blocks, std::uint16_t id)
      : eswitch_(eswitch),
        id_(id),
        channel_(sw::SharedMemory::create("channel", dp::channel_bytes(kRing))),
        inbox_(sw::SharedMemory::create("inbox", sizeof(dp::Inbox))),
        status_(sw::SharedMemory::create("status", sizeof(dp::StatusPage))) {
    const auto second = dp::ring_bytes(kRing);
    out.open(channel_->as<dp::RingHeader>(), channel_->as<std::uint8_t>(dp::kRingDataOffset), kRing);
    in.open(channel_->as<dp::RingHeader>(second), channel_->as<std::uint8_t>(second + dp::kRingDataOffset), kRing);
    in.set_state(dp::ConsumerState::app_polling);
    blocks.owner[id] = id;
    eswitch.attach({id, kRing, channel_, inbox_, status_, sw::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))});
  }
  std::uint32_t qpn() const { return (static_cast<std::uint32_t>(id_) << dp::kQpnBlockShift) + 1; }
  void ring_bell() { dp::ring_bell(*eswitch_.inbox().as<dp::Inbox>(), id_, eswitch_.eventfd()); }

  dp::RingProducer out;
  dp::RingConsumer in;

 private:
  sw::ESwitch& eswitch_;
  const std::uint16_t id_;
  std::shared_ptr<sw::SharedMemory> channel_, inbox_, status_;
};

// Rounds in which the switch forwards a ring full of frames. The rings are filled and emptied on the switch's own
// thread, between its turns: there is no other party whose speed would be measured, and only emptying counts.
class Experiment {
 public:
  Experiment(sw::ESwitch& eswitch, Vf& from, Vf& to, std::uint32_t payload, double seconds)
      : eswitch_(eswitch), from_(from), to_(to), frame_(make_frame(to.qpn(), payload)) {
    end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  // Nanoseconds per frame, of the best round.
  double run() {
    step();
    eswitch_.run();
    return best_;
  }
  std::size_t frame_bytes() const { return frame_.size(); }

 private:
  // Before each turn of the switch.
  void step() {
    take();
    if (waiting_ == 0) {
      if (sent_ != 0)
        best_ = std::min(best_, (Clock::now() - start_) / std::chrono::duration<double, std::nano>(1) / sent_);
      if (Clock::now() >= end_) return eswitch_.stop();
      put();
    }
    eswitch_.submit([this] { step(); });
  }
  void take() {
    dp::RingConsumer::Entry entry;
    for (; to_.in.peek(&entry); --waiting_) to_.in.pop();
    to_.in.publish_head(true);
  }
  void put() {
    const auto length = static_cast<std::uint32_t>(frame_.size());
    for (; from_.out.has_room(length); ++waiting_) {
      std::memcpy(from_.out.begin(length), frame_.data(), length);
      from_.out.commit(length);
    }
    from_.ring_bell();
    sent_ = waiting_;
    start_ = Clock::now();
  }

  sw::ESwitch& eswitch_;
  Vf &from_, &to_;
  const std::vector<std::uint8_t> frame_;
  int sent_ = 0, waiting_ = 0;
  double best_ = 1e12;
  Clock::time_point start_, end_;
};

}  // namespace

int main(int argc, char** argv) {
  const auto payload = static_cast<std::uint32_t>(argc > 1 ? std::atoi(argv[1]) : 1024);
  const double seconds = argc > 2 ? std::atof(argv[2]) : 2;
  auto blocks = std::make_unique<dp::BlockTable>();
  const auto eswitch = sw::ESwitch::create({}, *blocks);
  if (eswitch == nullptr) return std::perror("switchbench"), 1;
  std::vector<sw::OwnGid> own(1);
  own[0].gid = own_gid();
  eswitch->set_addresses(std::move(own));
  Vf from(*eswitch, *blocks, 1), to(*eswitch, *blocks, 2);
  Experiment experiment(*eswitch, from, to, payload, seconds);
  const double best = experiment.run();
  std::printf("%.0f frames/s of %zu bytes\n", 1e9 / best, experiment.frame_bytes());
  return 0;
}
