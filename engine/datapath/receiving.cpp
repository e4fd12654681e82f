// Taking frames out of the channels: the hot ones at every poll, the others when their inbox bit says so, and all of
// them now and then.
#include "engine/datapath/fabric_impl.h"
#include "engine/datapath/fences.h"

#include <algorithm>

#include "engine/nic/clock.h"

namespace softrnic::dp {
namespace {

constexpr int kQuantum = 32;                // frames of one channel before the next one's turn
constexpr std::uint32_t kIdlePolls = 256;   // empty polls after which a channel is no longer hot...
constexpr std::size_t kAlwaysHot = 4;       // ...if there are more hot ones than this
constexpr std::uint32_t kClockPolls = 256;  // polls between two looks at the clock
constexpr Nanos kScanInterval = 10'000'000;

}  // namespace

int Fabric::poll(int budget, OnFrame on_frame, void* ctx) {
  Impl& f = *impl_;
  f.housekeeping();
  int taken = 0;
  bool stop = false;
  for (bool some = true; some && taken < budget && !stop;) {
    some = false;
    const std::size_t n = f.hot.size();
    std::size_t at = f.turn < n ? f.turn : 0;
    f.turn = at + 1;
    for (std::size_t i = 0; i < n; ++i, ++at) {
      if (at >= f.hot.size()) at = 0;
      Channel& ch = *f.hot[at];
      if (!ch.rx.pending()) {
        if (n > kAlwaysHot && ++ch.idle_polls > kIdlePolls) f.cool(ch);
        if (f.hot.empty()) break;
        continue;
      }
      int got = f.poll_channel(ch, std::min(kQuantum, budget - taken), on_frame, ctx, &stop);
      taken += got;
      some |= got == kQuantum;
      if (taken >= budget || stop || f.hot.empty()) break;
    }
  }
  if (taken != 0) f.active_since_wait.store(true, std::memory_order_relaxed);
  return taken;
}

void Fabric::Impl::housekeeping() {
  if (has_newcomers.load(std::memory_order_relaxed)) adopt_new_paths();
  if (link.has_notices()) apply_notices();
  if (inbox_pending(*inbox)) take_own_inbox();
  if (!barriers.empty()) advance_barriers();  // after the inbox: the bit of an acknowledgement may just have gone
  if (closing != 0) close_drained_channels();
  if (++polls % kClockPolls != 0 && !scan_due.load(std::memory_order_relaxed)) return;
  scan_due.store(false, std::memory_order_relaxed);
  Nanos now = nic::Clock::system_now();
  if (now - last_scan < kScanInterval) return;
  last_scan = now;
  slow_scan();
  link.drain();
  if (link.has_notices()) apply_notices();
}

int Fabric::Impl::poll_channel(Channel& ch, int budget, OnFrame on_frame, void* ctx, bool* stop) {
  int frames = 0, entries = 0;
  RingConsumer::Entry e;
  while (entries < budget && ch.rx.peek(&e)) {
    ++entries;
    if (e.kind == EntryKind::mark) {
      mark_received(ch, e);
      ch.rx.pop();
      continue;
    }
    VfId ingress = ch.peer == kNoVf ? e.aux : ch.peer;
    bool more = on_frame(ctx, ingress, Bytes(e.data, e.length));
    ch.rx.pop();
    ++frames;
    if (!more) {
      *stop = true;
      break;
    }
  }
  if (entries != 0) {
    ch.idle_polls = 0;
    if (ch.rx.publish_head(false)) ch.ring_peer();
  } else if (ch.rx.broken()) {
    break_channel(ch);
  }
  return frames;
}

void Fabric::Impl::take_own_inbox() {
  take_inbox(*inbox, [this](std::uint32_t slot) {
    if (Channel* ch = by_slot[slot]; ch != nullptr) heat(*ch);
    if (slot == 0 && loopback != nullptr) heat(*loopback);
  });
}

void Fabric::Impl::heat(Channel& ch) {
  ch.idle_polls = 0;
  if (ch.hot || ch.rx.broken()) return;
  ch.hot = true;
  hot.push_back(&ch);
  set_state(ch, state != ConsumerState::armed);
}

void Fabric::Impl::cool(Channel& ch) {
  ch.idle_polls = 0;
  if (ch.rx.publish_head(true)) ch.ring_peer();
  set_state(ch, false);
  consumer_fence();
  if (ch.rx.pending()) {
    set_state(ch, state != ConsumerState::armed);
    return;
  }
  drop_from_hot(ch);
}

void Fabric::Impl::drop_from_hot(Channel& ch) {
  ch.hot = false;
  std::erase(hot, &ch);
}

// Finds what a scribbled inbox or a sender that died between publishing and ringing has hidden.
void Fabric::Impl::slow_scan() {
  for (const auto& ch : channels) {
    if (!ch->hot && ch->rx.pending()) heat(*ch);
  }
  if (!to_switch.hot && to_switch.rx.pending()) heat(to_switch);
}

}  // namespace softrnic::dp
