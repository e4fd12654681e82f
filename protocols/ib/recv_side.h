// The receive queue as seen by one QP: the request being filled, placement of data into its elements,
// and completions on their way to poll_event.
//
// A completion whose message asked for an acknowledgement is held until that acknowledgement has been
// handed out, so that a program which sees the completion and dies has acknowledged the message.
#pragma once

#include <memory>

#include "protocols/common/memory_port.h"
#include "protocols/common/work_queue.h"
#include "protocols/ib/qp.h"

namespace softrnic::ib {

class RecvSide {
 public:
  explicit RecvSide(const QpInit& init);

  // True when take() will succeed.
  bool available() { return init_.rq->available() != 0 && (pushed_ - popped_ <= ring_mask_ || grow()); }
  // Takes the next request as the current one. False when there is none, or no memory for its completion.
  bool take();
  bool has_current() const { return has_current_; }
  // Places the next bytes from the start of the current request again (the message was dropped).
  void rewind();
  // Bytes placed so far, and room of the current request.
  std::uint64_t placed() const { return placed_; }
  std::uint64_t capacity() const { return capacity_; }
  // Appends `length` bytes to what the current request holds; the caller has checked the capacity.
  // False when an element fails its L_Key check or the memory is gone.
  bool place(MemoryPort& mem, const std::uint8_t* src, std::uint32_t length) {
    if (length == 0) return true;
    const Sge& s = sges_[sge_];
    if (length > s.length - sge_offset_) return place_over(mem, src, length);
    std::uint8_t* dst = nullptr;
    if (mem.resolve_local(init_.pd, s.lkey, s.addr + sge_offset_, length, kAccessLocalWrite, &dst) != MemStatus::ok) {
      return false;
    }
    sge_offset_ += length;
    placed_ += length;
    return mem.copy_to_app(dst, src, length);
  }

  // Completes the current request; the caller fills in what it knows besides opcode, wr_id and qp_num.
  // With `hold` it stays until released; one without waits only for held ones before it.
  Completion& complete(WcOpcode opcode, std::uint32_t psn, bool hold);
  // Completes the current request with an error.
  void fail(WcStatus status, std::uint32_t vendor_err, std::uint32_t psn, bool hold);
  // Releases held completions of packets up to `psn`.
  void release_to(std::uint32_t psn);
  void release_all() { released_ = pushed_; }

  bool poll(QpEvent* out) {
    if (popped_ == released_) return false;
    out->kind = QpEvent::Kind::recv_completion;
    out->wc = ring_[popped_++ & ring_mask_].wc;
    return true;
  }
  // ERR: the next request that ends without data, as a flushed completion. The current one first; of
  // an SRQ only that.
  bool poll_flush(QpEvent* out);

  // Forgets everything. Places of an SRQ that this QP holds are given back.
  void reset();

 private:
  struct Entry {
    Completion wc;
    std::uint32_t psn;
  };
  bool place_over(MemoryPort& mem, const std::uint8_t* src, std::uint32_t length);
  bool grow();
  void fill_flush(std::uint64_t wr_id, QpEvent* out) const;

  const QpInit& init_;
  // Current request.
  bool has_current_ = false;
  std::uint32_t num_sge_ = 0, sge_ = 0, sge_offset_ = 0;
  std::uint64_t wr_id_ = 0, placed_ = 0, capacity_ = 0;
  std::unique_ptr<Sge[]> sges_;
  // Ring of completions; counters run freely. It grows to what the receive queue's depth needs, then
  // never allocates again.
  std::unique_ptr<Entry[]> ring_;
  std::uint32_t ring_mask_ = 0;
  std::uint32_t pushed_ = 0, released_ = 0, popped_ = 0;
};

}  // namespace softrnic::ib
