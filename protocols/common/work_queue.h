// Send and receive queues: rings of work requests with one producer (a verbs call, under the queue's
// own short lock) and one consumer (the transport, under the engine's progress lock). The two sides
// share nothing but two counters.
//
// A slot is given back when the application has *polled* the completion that covers it, as with
// hardware: a program that sizes its CQ for its queues can then never overflow the CQ.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "protocols/common/memory_port.h"
#include "protocols/common/work.h"

namespace softrnic {

// One send work request and the transport's notes on it.
struct SendWqe {
  std::uint64_t wr_id = 0;
  WrOpcode opcode = WrOpcode::send;
  std::uint8_t flags = 0;        // kSend*
  std::uint16_t num_sge = 0;     // 0 with kSendInline: the data lies in the queue itself
  std::uint32_t length = 0;      // bytes of the message (sum of the elements)
  std::uint32_t imm_or_inv = 0;  // immediate data as on the wire, or the R_Key to invalidate
  std::uint32_t rkey = 0;
  std::uint64_t remote_addr = 0;
  std::uint64_t compare = 0;      // compare value of CmpSwap
  std::uint64_t swap_or_add = 0;  // swap value, or addend of FetchAdd
  MemoryPort::MwBind bind{};      // bind_mw only
  std::uint32_t remote_qpn = 0;   // UD
  std::uint32_t remote_qkey = 0;  // UD
  std::uint32_t ah = 0;           // UD: the engine's address-handle number
  std::uint32_t first_psn = 0;    // written by the requester when it starts the request
  std::uint32_t last_psn = 0;
};

class SendQueue {
 public:
  // `depth` requests of up to `max_sge` elements or `max_inline` bytes each. All at least 1 except max_inline.
  SendQueue(std::uint32_t depth, std::uint32_t max_sge, std::uint32_t max_inline)
      : depth_(depth),
        mask_(round_up_pow2(depth) - 1),
        stride_(stride_for(max_sge, max_inline)),
        wqes_(mask_ + 1),
        data_(static_cast<std::size_t>(stride_) * (mask_ + 1)) {}

  std::uint32_t depth() const { return depth_; }

  // --- producer, under the send queue's lock ---------------------------------------------------
  // The slot `ahead` places past the last published one, or null when the queue is full.
  SendWqe* reserve(std::uint32_t ahead = 0) {
    std::uint32_t t = tail_.load(std::memory_order_relaxed) + ahead;
    if (t - freed_.load(std::memory_order_acquire) >= depth_) return nullptr;
    return &wqes_[t & mask_];
  }
  // Element list / inline bytes of a slot.
  Sge* sges(const SendWqe* w) { return reinterpret_cast<Sge*>(data(w)); }
  std::uint8_t* inline_data(const SendWqe* w) { return data(w); }
  // Makes the next `n` reserved slots visible to the transport.
  void publish(std::uint32_t n) { tail_.store(tail_.load(std::memory_order_relaxed) + n, std::memory_order_release); }

  // --- consumer, under the progress lock ---------------------------------------------------------
  // Counters run freely modulo 2^32; index n names the n-th request ever posted.
  std::uint32_t tail() const { return tail_.load(std::memory_order_acquire); }
  SendWqe& at(std::uint32_t index) { return wqes_[index & mask_]; }
  const Sge* sges_at(std::uint32_t index) { return sges(&at(index)); }
  const std::uint8_t* inline_at(std::uint32_t index) { return inline_data(&at(index)); }

  // --- any thread ----------------------------------------------------------------------------------
  // All slots before `index` may be used again: the completion covering them was polled.
  void free_up_to(std::uint32_t index) {
    std::uint32_t f = freed_.load(std::memory_order_relaxed);
    while (static_cast<std::int32_t>(index - f) > 0 &&
           !freed_.compare_exchange_weak(f, index, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  // Empties the queue (transition to RESET). Under both locks.
  void reset() {
    tail_.store(0, std::memory_order_relaxed);
    freed_.store(0, std::memory_order_relaxed);
  }

  static std::uint32_t round_up_pow2(std::uint32_t v) {
    std::uint32_t p = 1;
    while (p < v) p <<= 1;
    return p;
  }

 private:
  static std::uint32_t stride_for(std::uint32_t max_sge, std::uint32_t max_inline) {
    std::uint32_t s = max_sge * static_cast<std::uint32_t>(sizeof(Sge));
    if (max_inline > s) s = max_inline;
    return (s + 15u) & ~15u;
  }
  std::uint8_t* data(const SendWqe* w) { return data_.data() + static_cast<std::size_t>(w - wqes_.data()) * stride_; }

  const std::uint32_t depth_, mask_, stride_;
  std::vector<SendWqe> wqes_;
  std::vector<std::uint8_t> data_;
  alignas(64) std::atomic<std::uint32_t> tail_{0};
  alignas(64) std::atomic<std::uint32_t> freed_{0};
};

// A receive queue, private to a QP or shared (SRQ). All QPs of an SRQ belong to one engine and are
// driven under one progress lock, so there is one consumer in both cases.
class RecvQueue {
 public:
  RecvQueue(std::uint32_t depth, std::uint32_t max_sge)
      : depth_(depth),
        mask_(SendQueue::round_up_pow2(depth) - 1),
        max_sge_(max_sge),
        wqes_(mask_ + 1),
        sges_(static_cast<std::size_t>(max_sge) * (mask_ + 1)) {}

  std::uint32_t depth() const { return depth_; }
  std::uint32_t max_sge() const { return max_sge_; }

  // --- producer, under the receive queue's lock ---------------------------------------------------
  // Adds a request of at most max_sge elements. False when the queue is full.
  bool post(std::uint64_t wr_id, std::span<const Sge> sges) {
    std::uint32_t t = tail_.load(std::memory_order_relaxed);
    if (t - polled_.load(std::memory_order_acquire) >= depth_) return false;
    Slot& s = wqes_[t & mask_];
    s.wr_id = wr_id;
    s.num_sge = static_cast<std::uint32_t>(sges.size());
    Sge* d = &sges_[static_cast<std::size_t>(t & mask_) * max_sge_];
    for (const Sge& e : sges) *d++ = e;
    tail_.store(t + 1, std::memory_order_release);
    return true;
  }

  // --- consumer, under the progress lock -----------------------------------------------------------
  // Requests posted and not yet taken.
  std::uint32_t available() const { return tail_.load(std::memory_order_acquire) - head_; }
  // Requests taken so far, modulo 2^32 (since the last reset).
  std::uint32_t taken() const { return head_; }
  // Takes the oldest request: its wr_id and a copy of its elements (`sges_out` has max_sge places).
  // Returns the number of elements, or -1 when the queue is empty.
  int take(std::uint64_t* wr_id, Sge* sges_out) {
    if (available() == 0) return -1;
    const Slot& s = wqes_[head_ & mask_];
    *wr_id = s.wr_id;
    const Sge* d = &sges_[static_cast<std::size_t>(head_ & mask_) * max_sge_];
    for (std::uint32_t i = 0; i < s.num_sge; ++i) sges_out[i] = d[i];
    ++head_;
    return static_cast<int>(s.num_sge);
  }

  // --- any thread ------------------------------------------------------------------------------------
  // The completion of one taken request was polled (or discarded): its place may be used again.
  void release_one() { polled_.fetch_add(1, std::memory_order_release); }
  // Changes the depth to `depth` (at least 1). False when more requests than that are in use. Under both locks.
  bool resize(std::uint32_t depth) {
    const std::uint32_t t = tail_.load(std::memory_order_relaxed);
    if (t - polled_.load(std::memory_order_acquire) > depth) return false;
    const std::uint32_t mask = SendQueue::round_up_pow2(depth) - 1;
    std::vector<Slot> wqes(mask + 1);
    std::vector<Sge> sges(static_cast<std::size_t>(max_sge_) * (mask + 1));
    for (std::uint32_t i = head_; i != t; ++i) {
      wqes[i & mask] = wqes_[i & mask_];
      const Sge* from = &sges_[static_cast<std::size_t>(i & mask_) * max_sge_];
      Sge* to = &sges[static_cast<std::size_t>(i & mask) * max_sge_];
      for (std::uint32_t k = 0; k < wqes[i & mask].num_sge; ++k) to[k] = from[k];
    }
    wqes_.swap(wqes);
    sges_.swap(sges);
    depth_ = depth;
    mask_ = mask;
    return true;
  }
  // Empties the queue (transition to RESET, or destruction). Under both locks.
  void reset() {
    head_ = 0;
    tail_.store(0, std::memory_order_relaxed);
    polled_.store(0, std::memory_order_relaxed);
  }

 private:
  struct Slot {
    std::uint64_t wr_id;
    std::uint32_t num_sge;
  };
  std::uint32_t depth_, mask_;
  const std::uint32_t max_sge_;
  std::vector<Slot> wqes_;
  std::vector<Sge> sges_;
  std::uint32_t head_ = 0;
  alignas(64) std::atomic<std::uint32_t> tail_{0};
  alignas(64) std::atomic<std::uint32_t> polled_{0};
};

}  // namespace softrnic
