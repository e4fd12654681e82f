#include "engine/datapath/ring.h"

namespace softrnic::dp {

static_assert(entry_bytes(kFrameGap + kMaxFrame) * 2 + kEntryAlign <= kMinRingSize);

void RingProducer::open(RingHeader* header, std::uint8_t* data, std::uint32_t size) {
  *this = RingProducer{};
  header_ = header;
  data_ = data;
  size_ = size;
}

bool RingProducer::refresh_head() {
  std::uint64_t head = header_->head.load(std::memory_order_acquire);
  if (head < head_ || head > tail_) {  // moved back, or beyond what was sent
    broken_ = true;
    return false;
  }
  head_ = head;
  return true;
}

std::uint64_t RingProducer::taken() {
  if (head_ != tail_) refresh_head();
  return head_;
}

bool RingProducer::request_space(std::uint32_t frame_length) {
  // Pairs with publish_head(): either the consumer sees the wish or we see its head.
  header_->want_space.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!has_room(frame_length)) return false;
  return true;  // the wish stays: at worst one kick too many
}

bool RingProducer::put_mark(std::uint16_t number, const void* body, std::uint32_t body_length) {
  if (!has_entry_room(body_length)) return false;
  skip_ = 0;  // one entry unit always fits before the end
  staged_ = false;
  if (body_length != 0) std::memcpy(data_ + offset() + sizeof(EntryHeader), body, body_length);
  publish(EntryKind::mark, body_length, number);
  return true;
}

void RingConsumer::open(RingHeader* header, const std::uint8_t* data, std::uint32_t size) {
  *this = RingConsumer{};
  header_ = header;
  data_ = data;
  size_ = size;
}

// A producer asks for space only when the ring is all but full. So from then until the ring is empty the consumer
// takes more than an eighth of it, and looking at want_space once per eighth is often enough; it saves the full
// fence for all other batches. `idle` (before going to sleep) looks in any case.
bool RingConsumer::publish_head(bool idle) {
  if (position_ != published_) {
    header_->head.store(position_, std::memory_order_release);
    published_ = position_;
  }
  if (position_ - asked_ < size_ / 8 && !(idle && position_ != asked_)) return false;
  asked_ = position_;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (header_->want_space.load(std::memory_order_relaxed) == 0) return false;
  header_->want_space.store(0, std::memory_order_relaxed);
  return true;
}

}  // namespace softrnic::dp
