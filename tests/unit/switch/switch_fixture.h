// An eSwitch with VFs that the test plays itself: what it puts into their rings, and takes out of them.
#pragma once

#include <sys/eventfd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "engine/datapath/ring.h"
#include "engine/datapath/wakeup.h"
#include "engine/switch/eswitch.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::test {

inline constexpr std::uint8_t kRcSendOnly = 0x04;
inline constexpr std::uint8_t kUdSendOnly = 0x64;

inline Gid own_gid() {
  Gid g{};
  g.raw[10] = g.raw[11] = 0xFF;
  g.raw[12] = 10;
  g.raw[15] = 1;
  return g;
}

struct FrameSpec {
  std::uint8_t opcode = kRcSendOnly;
  std::uint32_t dest_qpn = 0;
  std::uint32_t src_qpn = 0;  // UD
  std::uint32_t psn = 0;
  std::uint32_t payload = 64;
  Gid sgid = own_gid();
  Gid dgid = own_gid();
  std::uint16_t vlan = 0xFFFF;  // untagged
};

inline std::vector<std::uint8_t> make_frame(const FrameSpec& spec) {
  roce::PathParams path;
  path.sgid = spec.sgid;
  path.dgid = spec.dgid;
  path.has_vlan = spec.vlan != 0xFFFF;
  path.vlan_id = path.has_vlan ? spec.vlan : 0;
  roce::HeaderTemplate headers(path);
  const bool ud = (spec.opcode & 0xE0) == 0x60;
  const std::uint32_t transport = 12 + (ud ? 8 : 0) + spec.payload;
  std::vector<std::uint8_t> frame(headers.size() + transport + 4);
  headers.write(frame.data(), transport);
  wire::Bth bth;
  bth.opcode = spec.opcode;
  bth.dest_qpn = spec.dest_qpn;
  bth.psn = spec.psn;
  std::uint8_t* p = frame.data() + headers.size();
  bth.write(p);
  if (ud) wire::Deth{0x11111111, spec.src_qpn}.write(p + 12);
  const std::uint32_t icrc = headers.icrc(frame.data(), transport);
  for (int i = 0; i < 4; ++i)
    frame[headers.size() + transport + static_cast<std::uint32_t>(i)] = static_cast<std::uint8_t>(icrc >> (8 * i));
  return frame;
}

inline std::uint32_t psn_of(Bytes frame) {
  roce::RxFrame rx;
  REQUIRE(roce::parse(frame, &rx) == roce::FrameError::none);
  return wire::BthView(rx.transport.data()).psn();
}

struct Received {
  std::uint16_t source = 0;
  bool is_mark = false;
  std::uint16_t mark = 0;
  std::vector<std::uint8_t> bytes;
};

// The VF's side of its channel to the eSwitch.
class TestVf {
 public:
  TestVf(sw::ESwitch& eswitch, dp::BlockTable& blocks, std::uint16_t id, std::uint32_t ring_size)
      : eswitch_(eswitch), id_(id), block_(100u + id) {
    channel_ = sw::SharedMemory::create("channel", dp::channel_bytes(ring_size));
    inbox_ = sw::SharedMemory::create("inbox", sizeof(dp::Inbox));
    status_ = sw::SharedMemory::create("status", sizeof(dp::StatusPage));
    event_ = sw::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    REQUIRE((channel_ && inbox_ && status_ && event_));
    out_.open(channel_->as<dp::RingHeader>(), channel_->as<std::uint8_t>(dp::kRingDataOffset), ring_size);
    const auto second = dp::ring_bytes(ring_size);
    in_.open(channel_->as<dp::RingHeader>(second), channel_->as<std::uint8_t>(second + dp::kRingDataOffset), ring_size);
    blocks.owner[block_] = id;
    eswitch.attach({id, ring_size, channel_, inbox_, status_, sw::UniqueFd(::dup(event_.get()))});
  }

  std::uint16_t id() const { return id_; }
  std::uint32_t qpn() const { return (block_ << dp::kQpnBlockShift) + 1; }
  dp::RingProducer& out() { return out_; }
  dp::RingConsumer& in() { return in_; }
  dp::Inbox& inbox() { return *inbox_->as<dp::Inbox>(); }
  int eventfd() const { return event_.get(); }
  dp::RingHeader* out_header() { return channel_->as<dp::RingHeader>(); }
  std::uint8_t* out_data() { return channel_->as<std::uint8_t>(dp::kRingDataOffset); }
  dp::StatusPage& status() { return *status_->as<dp::StatusPage>(); }

  bool try_send(const std::vector<std::uint8_t>& frame) {
    const auto length = static_cast<std::uint32_t>(frame.size());
    if (!out_.has_room(length)) return false;
    std::memcpy(out_.begin(length), frame.data(), length);
    out_.commit(length);
    kick();
    return true;
  }
  void send(const std::vector<std::uint8_t>& frame) {
    while (!try_send(frame)) std::this_thread::yield();
  }
  void send_mark(std::uint16_t to, std::uint16_t number) {
    dp::MarkBody body{};
    body.vf_id = to;
    while (!out_.put_mark(number, &body, sizeof(body))) std::this_thread::yield();
    kick();
  }
  void kick() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    auto& inbox = *eswitch_.inbox().as<dp::Inbox>();
    if (out_.consumer_armed()) dp::ring_bell(inbox, id_, eswitch_.eventfd());
  }
  bool try_receive(Received* r) {
    dp::RingConsumer::Entry e;
    if (!in_.peek(&e)) return false;
    r->source = e.aux;
    r->is_mark = e.kind == dp::EntryKind::mark;
    r->mark = r->is_mark ? e.aux : 0;
    r->bytes.assign(e.data, e.data + e.length);
    if (r->is_mark) {
      dp::MarkBody body;
      REQUIRE(e.length == sizeof(body));
      std::memcpy(&body, e.data, sizeof(body));
      r->source = body.vf_id;
    }
    in_.pop();
    if (in_.publish_head(true)) dp::ring_bell(*eswitch_.inbox().as<dp::Inbox>(), id_, eswitch_.eventfd());
    return true;
  }
  Received receive() {
    Received r;
    while (!try_receive(&r)) std::this_thread::yield();
    return r;
  }

 private:
  sw::ESwitch& eswitch_;
  std::uint16_t id_;
  std::uint32_t block_;
  std::shared_ptr<sw::SharedMemory> channel_, inbox_, status_;
  sw::UniqueFd event_;
  dp::RingProducer out_;
  dp::RingConsumer in_;
};

class SwitchFixture {
 public:
  explicit SwitchFixture(sw::ESwitchOptions options = {}, std::vector<std::shared_ptr<sw::Uplink>> uplinks = {}) {
    table_ = std::make_unique<dp::BlockTable>();
    eswitch_ = sw::ESwitch::create(options, *table_);
    REQUIRE(eswitch_);
    std::vector<sw::OwnGid> own(1);
    own[0].gid = own_gid();
    if (!uplinks.empty()) own[0].uplink = 0;
    eswitch_->set_addresses(std::move(own));
    eswitch_->set_uplinks(std::move(uplinks));
    thread_ = std::thread([this] { eswitch_->run(); });
  }
  ~SwitchFixture() {
    eswitch_->stop();
    thread_.join();
  }
  TestVf& add(std::uint32_t ring_size = 1u << 16) {
    vfs_.push_back(
        std::make_unique<TestVf>(*eswitch_, *table_, static_cast<std::uint16_t>(vfs_.size() + 1), ring_size));
    // The switch knows it: what another VF sends to it from now on is not for nobody.
    std::atomic<bool> attached{false};
    eswitch_->submit([&] { attached = true; });
    while (!attached) std::this_thread::yield();
    return *vfs_.back();
  }
  sw::ESwitch& eswitch() { return *eswitch_; }
  dp::BlockTable& table() { return *table_; }
  // Waits until the switch has taken all that a VF sent.
  void wait_taken(TestVf& vf) {
    while (vf.out().taken() != vf.out().tail()) std::this_thread::yield();
  }
  // Waits until all control calls so far are in force. Nobody sees the frames any more.
  void settle() { settle_taps({}); }
  void settle_taps(std::vector<std::shared_ptr<sw::FrameTap>> taps) {
    std::atomic<bool> done{false};
    eswitch_->set_taps(std::move(taps), [&] { done = true; });
    while (!done) std::this_thread::yield();
  }

 private:
  std::unique_ptr<dp::BlockTable> table_;
  std::unique_ptr<sw::ESwitch> eswitch_;
  std::thread thread_;
  std::vector<std::unique_ptr<TestVf>> vfs_;
};

}  // namespace softrnic::test
