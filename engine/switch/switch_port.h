// A VF's two rings as the eSwitch sees them, with the queue of what waits for the VF. Used by the switch's thread only,
// counters excepted.
#pragma once

#include <atomic>
#include <bitset>
#include <memory>

#include "engine/datapath/ring.h"
#include "engine/switch/eswitch.h"
#include "engine/switch/frame_queue.h"

namespace softrnic::sw {

struct AtomicPortCounters {
  std::atomic<std::uint64_t> tx_frames{0}, tx_bytes{0}, rx_frames{0}, rx_bytes{0};
  std::atomic<std::uint64_t> rx_out_of_buffer{0}, tx_malformed{0}, tx_bad_source{0}, tx_unknown_destination{0},
      tx_management{0};
};
// One writer: no need for a locked instruction.
inline void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

class SwitchPort {
 public:
  enum class Delivery { accepted, full };

  SwitchPort(ESwitch::Port memory, std::size_t queue_limit, std::shared_ptr<AtomicPortCounters> counters);

  std::uint16_t vf_id() const { return memory_.vf_id; }
  AtomicPortCounters& counters() { return *counters_; }

  // --- from the VF ---
  dp::RingConsumer& ring_in() { return in_; }
  std::uint32_t ring_size() const { return memory_.ring_size; }
  // Says what was taken, and wakes the VF when it waits for space.
  void publish_head(bool idle);
  // Stops polling: the VF sets our inbox bit from now on. False when something has come meanwhile (still polling then).
  bool arm();
  void set_polling() { in_.set_state(dp::ConsumerState::helper_polling); }

  // --- to the VF ---
  // Puts an entry into the VF's ring, or behind those that wait. Marks are exempt from the queue's bound; of each
  // source one may wait, as the protocol says, and a second one is refused.
  Delivery deliver(const FrameQueue::Item& item);
  // Moves waiting entries to the ring as far as there is room. True when it moved some.
  bool drain();
  bool has_waiting() const { return !queue_.empty(); }
  // The queue is full and the VF took nothing for `timeout`.
  bool stalled(Nanos now, Nanos timeout);
  bool congested() const { return queue_.bytes() >= queue_limit_; }
  // Entries were put into the ring, and a full fence has passed: wakes the VF if it does not poll.
  void notify_if_armed();

  bool broken() const { return in_.broken() || out_.broken(); }
  // The VF counted itself among the inbox's busy_pollers.
  bool counted_as_polling() const;

  // Membership of the switch's lists.
  bool hot = false;       // ports to poll
  bool dirty = false;     // ports with entries that the VF may have to be woken for
  Nanos last_active = 0;  // when it last had a frame

 private:
  bool put(const FrameQueue::Item& item);

  const ESwitch::Port memory_;
  const std::size_t queue_limit_;
  std::shared_ptr<AtomicPortCounters> counters_;
  dp::Inbox& inbox_;
  dp::RingConsumer in_;
  dp::RingProducer out_;
  FrameQueue queue_;
  std::bitset<dp::kInboxSlots> mark_waiting_;  // by source VF
  bool blocked_ = false;                       // `blocked_since_` and `taken_then_` count
  Nanos blocked_since_ = 0;
  std::uint64_t taken_then_ = 0;
};

}  // namespace softrnic::sw
