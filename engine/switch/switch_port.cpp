#include "engine/switch/switch_port.h"

#include <cstring>

#include "engine/datapath/fences.h"
#include "engine/datapath/wakeup.h"

namespace softrnic::sw {
namespace {

constexpr std::uint32_t kSwitchSlot = 0;  // the eSwitch's, in every VF's inbox

std::uint16_t mark_source(const FrameQueue::Item& item) {
  dp::MarkBody body{};
  std::memcpy(&body, item.data.data(), sizeof(body));
  return body.vf_id;
}

}  // namespace

SwitchPort::SwitchPort(ESwitch::Port memory, std::size_t queue_limit, std::shared_ptr<AtomicPortCounters> counters)
    : memory_(std::move(memory)),
      queue_limit_(queue_limit),
      counters_(std::move(counters)),
      inbox_(*memory_.inbox->as<dp::Inbox>()) {
  const std::uint64_t second = dp::ring_bytes(memory_.ring_size);
  in_.open(memory_.channel->as<dp::RingHeader>(), memory_.channel->as<std::uint8_t>(dp::kRingDataOffset),
           memory_.ring_size);
  out_.open(memory_.channel->as<dp::RingHeader>(second),
            memory_.channel->as<std::uint8_t>(second + dp::kRingDataOffset), memory_.ring_size);
}

void SwitchPort::publish_head(bool idle) {
  if (in_.publish_head(idle)) dp::ring_bell(inbox_, kSwitchSlot, memory_.eventfd.get());
}

bool SwitchPort::arm() {
  publish_head(true);
  in_.set_state(dp::ConsumerState::armed);
  dp::consumer_fence();
  if (!in_.pending()) return true;
  set_polling();
  return false;
}

bool SwitchPort::put(const FrameQueue::Item& item) {
  const auto length = static_cast<std::uint32_t>(item.size());
  if (item.kind == dp::EntryKind::mark) {
    if (!out_.put_mark(item.aux, item.data.data(), length)) return false;
  } else {
    if (!out_.has_room(length)) return false;
    std::uint8_t* to = out_.begin(length);
    std::memcpy(to, item.data.data(), item.data.size());
    if (!item.rest.empty()) std::memcpy(to + item.data.size(), item.rest.data(), item.rest.size());
    out_.commit(length, item.aux);
    add(counters_->rx_frames, 1);
    add(counters_->rx_bytes, length);
  }
  return true;
}

SwitchPort::Delivery SwitchPort::deliver(const FrameQueue::Item& item) {
  if (queue_.empty()) {
    if (put(item)) return Delivery::accepted;
    const bool room = out_.request_space(static_cast<std::uint32_t>(item.size()));
    if (room && put(item)) return Delivery::accepted;
  }
  if (item.kind == dp::EntryKind::mark) {
    if (mark_waiting_.test(mark_source(item))) return Delivery::full;
    mark_waiting_.set(mark_source(item));
  } else if (congested()) {
    return Delivery::full;
  }
  queue_.push(item);
  return Delivery::accepted;
}

bool SwitchPort::drain() {
  bool moved = false;
  while (!queue_.empty()) {
    const FrameQueue::Item item = queue_.front();
    if (!put(item)) {
      if (out_.broken() || !out_.request_space(static_cast<std::uint32_t>(item.size()))) break;
      continue;
    }
    if (item.kind == dp::EntryKind::mark) mark_waiting_.reset(mark_source(item));
    queue_.pop();
    moved = true;
  }
  if (!congested()) blocked_ = false;
  return moved;
}

bool SwitchPort::stalled(Nanos now, Nanos timeout) {
  const std::uint64_t taken = out_.taken();
  if (!blocked_ || taken != taken_then_) {
    blocked_ = true;
    blocked_since_ = now;
    taken_then_ = taken;
  }
  return now - blocked_since_ >= timeout;
}

void SwitchPort::notify_if_armed() {
  if (out_.consumer_armed()) dp::ring_bell(inbox_, kSwitchSlot, memory_.eventfd.get());
}

bool SwitchPort::counted_as_polling() const {
  return memory_.status->as<dp::StatusPage>()->polling.load(std::memory_order_relaxed) != 0;
}

}  // namespace softrnic::sw
