// The two ends of a ring in shared memory (shm_layout.h). Each end keeps its own position privately and
// treats everything the other end writes as untrusted: a lie marks the end as broken and never leads
// outside the ring. Neither end is thread-safe: the owner's progress lock covers it.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "engine/datapath/shm_layout.h"

namespace softrnic::dp {

inline constexpr std::uint32_t kMinRingSize = 16384;  // two of the largest entries, and then some
inline constexpr std::uint32_t kMaxRingSize = 1u << 28;
inline constexpr std::uint32_t kMaxStaged = 4 * kEntryAlign;  // entries of up to this size go through staging
inline constexpr std::uint32_t kAhead = 4 * kEntryAlign;      // bytes behind an entry that are made ready for the next
inline constexpr std::uint32_t kStreamEntries = 8;            // entries in a row that make a stream
inline constexpr std::uint32_t kFrameGap = kFrameOffset - sizeof(EntryHeader);  // unused bytes before a frame

constexpr std::uint32_t entry_bytes(std::uint32_t length) {
  return (static_cast<std::uint32_t>(sizeof(EntryHeader)) + length + kEntryAlign - 1) & ~(kEntryAlign - 1);
}
constexpr bool valid_ring_size(std::uint32_t size) {
  return size >= kMinRingSize && size <= kMaxRingSize && (size & (size - 1)) == 0;
}

// An entry's header word, moved as one 64-bit value so that it appears at once.
std::uint64_t pack_header(EntryKind kind, std::uint32_t length, std::uint16_t aux);

class RingProducer {
 public:
  RingProducer() = default;
  // `size` is the caller's trusted copy of the data size; the ring is fresh (all zero).
  void open(RingHeader* header, std::uint8_t* data, std::uint32_t size);
  bool is_open() const { return header_ != nullptr; }

  // Room for a frame (or for `length` bytes behind an entry header)? Looks at the consumer's head only when the copy
  // of it that it keeps does not suffice.
  bool has_room(std::uint32_t frame_length) { return has_entry_room(kFrameGap + frame_length); }
  bool has_entry_room(std::uint32_t length);
  // After a failed has_room(): asks the consumer for a kick, then looks again. True: there is room after all.
  bool request_space(std::uint32_t frame_length);

  // Where a frame of up to `frame_length` bytes goes; has_room() has said yes. A short one is put together in private
  // memory and moved into the ring by commit(): the consumer polls the line where the entry begins, and would take it
  // away again and again while it is being filled.
  std::uint8_t* begin(std::uint32_t frame_length);
  // Publishes the frame begun; `frame_length` at most that of begin(). Abandoning needs no call.
  void commit(std::uint32_t frame_length, std::uint16_t aux = 0);
  // Publishes a mark with `body_length` (0 or sizeof(MarkBody)) bytes; false when there is no room.
  bool put_mark(std::uint16_t number, const void* body, std::uint32_t body_length);

  std::uint64_t tail() const { return tail_; }
  // Bytes the consumer has taken, as far as that is believable.
  std::uint64_t taken();
  bool consumer_armed() const { return header_->state.load(std::memory_order_relaxed) == 0; }
  std::uint32_t acked_mark() const { return header_->acked_epoch.load(std::memory_order_acquire); }
  bool broken() const { return broken_; }

 private:
  std::uint32_t offset() const { return static_cast<std::uint32_t>(tail_) & (size_ - 1); }
  // Bytes an entry takes, with the part of the ring's end it may have to skip and the word behind it.
  std::uint64_t needed(std::uint32_t length) const;
  bool refresh_head();
  void publish(EntryKind kind, std::uint32_t length, std::uint16_t aux);
  void move_staged(std::uint8_t* entry, std::uint32_t bytes);

  RingHeader* header_ = nullptr;
  std::uint8_t* data_ = nullptr;
  std::uint32_t size_ = 0;
  std::uint32_t skip_ = 0;  // bytes at the ring's end that the entry begun skips
  bool staged_ = false;     // the entry begun is in staging_
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;  // the consumer's, when last looked at
  bool broken_ = false;
  alignas(kEntryAlign) std::uint8_t staging_[kMaxStaged];
};

class RingConsumer {
 public:
  struct Entry {
    EntryKind kind;  // frame or mark
    std::uint16_t aux;
    std::uint32_t length;      // of the frame, or of the mark's body
    const std::uint8_t* data;  // in shared memory: a hostile producer may change it at any time
  };

  RingConsumer() = default;
  void open(RingHeader* header, const std::uint8_t* data, std::uint32_t size);
  bool is_open() const { return header_ != nullptr; }

  // Something is there (perhaps malformed).
  bool pending() const { return !broken_ && load_word() != 0; }
  // The next entry, or false: nothing there, or broken(). It stays valid until pop().
  bool peek(Entry* out);
  void pop() {
    position_ += current_;
    ++in_a_row_;
  }

  // Tells the producer what was taken. True when the producer waits for space and must be notified; that question
  // is asked only often enough that a waiting producer is never forgotten (see the comment in ring.cpp), and
  // always when `idle`.
  bool publish_head(bool idle);
  void set_state(ConsumerState s) { header_->state.store(static_cast<std::uint32_t>(s), std::memory_order_relaxed); }
  void ack_mark(std::uint16_t number) { header_->acked_epoch.store(number, std::memory_order_release); }
  std::uint64_t position() const { return position_; }
  bool broken() const { return broken_; }

 private:
  std::uint32_t offset() const { return static_cast<std::uint32_t>(position_) & (size_ - 1); }
  std::uint64_t load_word() const;
  void prefetch_ahead(std::uint32_t at) const {
    for (std::uint32_t i = 0; i < kAhead; i += kEntryAlign) __builtin_prefetch(data_ + ((at + i) & (size_ - 1)));
  }

  RingHeader* header_ = nullptr;
  const std::uint8_t* data_ = nullptr;
  std::uint32_t size_ = 0;
  std::uint32_t current_ = 0;   // bytes of the entry peeked at
  std::uint32_t in_a_row_ = 0;  // entries taken since there was none
  std::uint64_t position_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t asked_ = 0;  // position when want_space was last looked at
  bool broken_ = false;
};

// ---- the hot parts ---------------------------------------------------------------------------------------

inline std::uint64_t pack_header(EntryKind kind, std::uint32_t length, std::uint16_t aux) {
  EntryHeader h{length, static_cast<std::uint8_t>(kind), 0, aux};
  std::uint64_t word;
  std::memcpy(&word, &h, sizeof word);
  return word;
}

inline std::uint64_t RingProducer::needed(std::uint32_t length) const {
  std::uint64_t bytes = entry_bytes(length);
  std::uint64_t to_end = size_ - offset();
  return (bytes > to_end ? to_end : 0) + bytes + kEntryAlign;
}

inline bool RingProducer::has_entry_room(std::uint32_t length) {
  // Enough wherever the entry begins: what is skipped is shorter than the entry.
  const std::uint64_t most = 2 * std::uint64_t{entry_bytes(length)} + kEntryAlign;
  if (static_cast<std::int64_t>(head_ + size_ - tail_ - most) >= 0) [[likely]]
    return true;
  std::uint64_t limit = tail_ + needed(length) - size_;  // the head needed; may wrap below zero
  if (static_cast<std::int64_t>(head_ - limit) >= 0) return true;
  return refresh_head() && static_cast<std::int64_t>(head_ - limit) >= 0;
}

inline std::uint8_t* RingProducer::begin(std::uint32_t frame_length) {
  std::uint32_t at = offset();
  skip_ = 0;
  if (entry_bytes(kFrameGap + frame_length) > size_ - at) {
    skip_ = size_ - at;
    at = 0;
  }
  const std::uint32_t bytes = entry_bytes(kFrameGap + frame_length);
  staged_ = bytes <= kMaxStaged;
  if (!staged_) return data_ + at + kFrameOffset;
  // The lines of the entry that nobody polls come here meanwhile, and in a stream those of the entries after it.
  for (std::uint32_t i = kEntryAlign; i <= bytes + kAhead; i += kEntryAlign) {
    __builtin_prefetch(data_ + ((at + i) & (size_ - 1)), 1);
  }
  return staging_ + kFrameOffset;
}

// All but the header word, backwards: the first line, which the consumer polls, is touched once, at the end.
inline void RingProducer::move_staged(std::uint8_t* entry, std::uint32_t bytes) {
  for (std::uint32_t i = bytes - kEntryAlign; i != 0; i -= kEntryAlign)
    std::memcpy(entry + i, staging_ + i, kEntryAlign);
  constexpr std::uint32_t kWord = sizeof(EntryHeader);
  std::memcpy(entry + kWord, staging_ + kWord, kEntryAlign - kWord);
  staged_ = false;
}

inline void RingProducer::publish(EntryKind kind, std::uint32_t length, std::uint16_t aux) {
  std::uint32_t first = offset();
  std::uint32_t at = skip_ != 0 ? 0 : first;
  std::uint32_t bytes = entry_bytes(length);
  std::uint32_t behind = (at + bytes) & (size_ - 1);
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(data_ + behind)).store(0, std::memory_order_relaxed);
  if (staged_) move_staged(data_ + at, bytes);
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(data_ + at))
      .store(pack_header(kind, length, aux), std::memory_order_release);
  if (skip_ != 0) {
    // The consumer still waits here: the entry at the start becomes visible with this word.
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(data_ + first))
        .store(pack_header(EntryKind::wrap, skip_ - static_cast<std::uint32_t>(sizeof(EntryHeader)), 0),
               std::memory_order_release);
  }
  tail_ += skip_ + bytes;
  skip_ = 0;
}

inline void RingProducer::commit(std::uint32_t frame_length, std::uint16_t aux) {
  publish(EntryKind::frame, kFrameGap + frame_length, aux);
}

inline std::uint64_t RingConsumer::load_word() const {
  // atomic_ref wants a non-const object; only loaded.
  auto* word = reinterpret_cast<std::uint64_t*>(const_cast<std::uint8_t*>(data_ + offset()));
  return std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_acquire);
}

inline bool RingConsumer::peek(Entry* out) {
  if (broken_) return false;
  for (;;) {
    std::uint64_t word = load_word();
    if (word == 0) {
      in_a_row_ = 0;
      return false;
    }
    EntryHeader h;
    std::memcpy(&h, &word, sizeof h);
    std::uint32_t at = offset();
    if (h.kind == static_cast<std::uint8_t>(EntryKind::frame) && h.length > kFrameGap &&
        h.length <= kFrameGap + kMaxFrame && entry_bytes(h.length) <= size_ - at) [[likely]] {
      __builtin_prefetch(data_ + at + kEntryAlign);
      if (in_a_row_ >= kStreamEntries) prefetch_ahead(at + entry_bytes(h.length));
      current_ = entry_bytes(h.length);
      *out = {EntryKind::frame, h.aux, h.length - kFrameGap, data_ + at + kFrameOffset};
      return true;
    }
    if (h.kind == static_cast<std::uint8_t>(EntryKind::wrap) && at != 0 &&
        h.length == size_ - at - sizeof(EntryHeader)) {
      position_ += size_ - at;  // at most once in a row: the next word is at offset 0
      continue;
    }
    if (h.kind == static_cast<std::uint8_t>(EntryKind::mark) && (h.length == 0 || h.length == sizeof(MarkBody))) {
      current_ = kEntryAlign;
      *out = {EntryKind::mark, h.aux, h.length, data_ + at + sizeof(EntryHeader)};
      return true;
    }
    broken_ = true;
    return false;
  }
}

}  // namespace softrnic::dp
