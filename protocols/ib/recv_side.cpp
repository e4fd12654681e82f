#include "protocols/ib/recv_side.h"

#include <new>
#include <utility>

#include "protocols/common/psn.h"

namespace softrnic::ib {
namespace {
constexpr std::uint32_t kFirstRingSize = 16;
}

RecvSide::RecvSide(const QpInit& init)
    : init_(init),
      sges_(std::make_unique<Sge[]>(init.rq != nullptr ? init.rq->max_sge() : 1)),
      ring_(std::make_unique<Entry[]>(kFirstRingSize)),
      ring_mask_(kFirstRingSize - 1) {}

bool RecvSide::take() {
  if (!available()) return false;
  num_sge_ = static_cast<std::uint32_t>(init_.rq->take(&wr_id_, sges_.get()));
  capacity_ = 0;
  for (std::uint32_t i = 0; i < num_sge_; ++i) capacity_ += sges_[i].length;
  has_current_ = true;
  rewind();
  return true;
}

void RecvSide::rewind() {
  sge_ = 0;
  sge_offset_ = 0;
  placed_ = 0;
}

// place() for bytes that do not fit the rest of the current element.
bool RecvSide::place_over(MemoryPort& mem, const std::uint8_t* src, std::uint32_t length) {
  while (length > 0) {
    const std::uint32_t room = sges_[sge_].length - sge_offset_;
    const std::uint32_t n = length < room ? length : room;
    if (!place(mem, src, n)) return false;
    src += n;
    length -= n;
    if (n == room && length > 0) {
      ++sge_;
      sge_offset_ = 0;
    }
  }
  return true;
}

Completion& RecvSide::complete(WcOpcode opcode, std::uint32_t psn, bool hold) {
  Entry& e = ring_[pushed_ & ring_mask_];
  e.wc = Completion();
  e.wc.wr_id = wr_id_;
  e.wc.qp_num = init_.qpn;
  e.wc.opcode = opcode;
  e.psn = psn;
  has_current_ = false;
  const bool none_held = released_ == pushed_;
  ++pushed_;
  if (!hold && none_held) released_ = pushed_;
  return e.wc;
}

void RecvSide::fail(WcStatus status, std::uint32_t vendor_err, std::uint32_t psn, bool hold) {
  Completion& wc = complete(WcOpcode::recv, psn, hold);
  wc.status = status;
  wc.vendor_err = vendor_err;
  wc.solicited = true;
}

void RecvSide::release_to(std::uint32_t psn) {
  while (released_ != pushed_ && psn_diff(ring_[released_ & ring_mask_].psn, psn) <= 0) ++released_;
}

bool RecvSide::poll_flush(QpEvent* out) {
  if (has_current_) {
    has_current_ = false;
    fill_flush(wr_id_, out);
    return true;
  }
  if (init_.has_srq || init_.rq == nullptr) return false;
  std::uint64_t wr_id = 0;
  if (init_.rq->take(&wr_id, sges_.get()) < 0) return false;
  fill_flush(wr_id, out);
  return true;
}

void RecvSide::reset() {
  if (init_.has_srq) {
    for (std::uint32_t n = pushed_ - popped_ + (has_current_ ? 1 : 0); n > 0; --n) init_.rq->release_one();
  }
  has_current_ = false;
  pushed_ = released_ = popped_ = 0;
}

bool RecvSide::grow() {
  const std::uint32_t old_size = ring_mask_ + 1;
  std::unique_ptr<Entry[]> bigger(new (std::nothrow) Entry[std::size_t{old_size} * 2]);
  if (bigger == nullptr) return false;
  const std::uint32_t new_mask = old_size * 2 - 1;
  for (std::uint32_t i = popped_; i != pushed_; ++i) bigger[i & new_mask] = ring_[i & ring_mask_];
  ring_ = std::move(bigger);
  ring_mask_ = new_mask;
  return true;
}

void RecvSide::fill_flush(std::uint64_t wr_id, QpEvent* out) const {
  out->kind = QpEvent::Kind::recv_completion;
  out->wc = Completion();
  out->wc.wr_id = wr_id;
  out->wc.qp_num = init_.qpn;
  out->wc.opcode = WcOpcode::recv;
  out->wc.status = WcStatus::wr_flush_err;
  out->wc.vendor_err = static_cast<std::uint32_t>(WcStatus::wr_flush_err);
  out->wc.solicited = true;
}

}  // namespace softrnic::ib
