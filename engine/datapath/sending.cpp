// Putting frames into paths.
#include "engine/datapath/fabric_impl.h"
#include "engine/datapath/fences.h"

namespace softrnic::dp {

Path* Fabric::switch_path() { return &impl_->switch_path; }
VfId Fabric::peer(const Path& p) { return p.peer; }

bool Fabric::has_room(Path& p, std::uint32_t length) {
  Impl& f = *impl_;
  if (f.has_newcomers.load(std::memory_order_relaxed)) f.adopt_new_paths();
  if (p.sink) return true;
  if (p.barrier != Path::Barrier::none || length > kMaxFrame) return false;
  Channel& ch = p.route(f.to_switch);
  return ch.tx.has_room(length) || f.make_room(p, ch, length);
}

bool Fabric::Impl::make_room(Path& p, Channel& ch, std::uint32_t length) {
  if (!ch.tx.broken() && ch.tx.request_space(length)) return true;
  if (!ch.tx.broken()) return false;
  break_channel(ch);
  return p.sink;
}

std::uint8_t* Fabric::begin(Path& p, std::uint32_t length) {
  if (p.sink) return impl_->scratch + kFrameOffset;
  return p.route(impl_->to_switch).tx.begin(length);
}

void Fabric::commit(Path& p, std::uint32_t length) {
  if (p.sink) return;
  Impl& f = *impl_;
  Channel& ch = p.route(f.to_switch);
  ch.tx.commit(length);
  if (&ch == &f.to_switch) f.switch_used = true;
  if (!ch.dirty) {
    ch.dirty = true;
    f.dirty.push_back(&ch);
  }
}

void Fabric::flush() { impl_->flush(); }

void Fabric::Impl::flush() {
  if (dirty.empty()) return;
  for (Channel* ch : dirty) {
    ch->dirty = false;
    // Either we see the ring armed, or its consumer sees our frames when it looks again before it sleeps.
    producer_fence(registered, *ch->peer_inbox);
    if (ch->tx.consumer_armed()) ch->ring_peer();
  }
  dirty.clear();
}

PathPosition Fabric::position(const Path& p) const {
  if (p.sink) return {0, p.generation};
  return {const_cast<Path&>(p).route(impl_->to_switch).tx.tail(), p.generation};
}

bool Fabric::taken(const Path& p, PathPosition pos) const {
  if (p.sink || pos.route_generation != p.generation) return true;
  RingProducer& tx = const_cast<Path&>(p).route(impl_->to_switch).tx;
  return tx.taken() >= pos.bytes || tx.broken();
}

}  // namespace softrnic::dp
