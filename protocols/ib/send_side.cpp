#include "protocols/ib/send_side.h"

namespace softrnic::ib {
namespace {

WcOpcode wc_opcode(WrOpcode op) {
  switch (op) {
    case WrOpcode::rdma_write:
    case WrOpcode::rdma_write_with_imm:
      return WcOpcode::rdma_write;
    case WrOpcode::rdma_read:
      return WcOpcode::rdma_read;
    case WrOpcode::atomic_cmp_and_swp:
      return WcOpcode::comp_swap;
    case WrOpcode::atomic_fetch_and_add:
      return WcOpcode::fetch_add;
    case WrOpcode::local_inv:
      return WcOpcode::local_inv;
    case WrOpcode::bind_mw:
      return WcOpcode::bind_mw;
    case WrOpcode::send:
    case WrOpcode::send_with_imm:
    case WrOpcode::send_with_inv:
      break;
  }
  return WcOpcode::send;
}

}  // namespace

void SendSide::begin_flush(WcStatus status) {
  if (flushing_) {
    // An unfinished flush of SQE goes on in ERR; now it covers everything posted.
    flush_open_ = true;
    return;
  }
  flushing_ = true;
  flush_open_ = true;
  fail_index_ = done_;
  fail_status_ = status;
}

void SendSide::end_flush(std::uint32_t tail) {
  flush_open_ = false;
  flush_end_ = tail;
  done_ = tail;
  if (reported_ == tail) flushing_ = false;
}

bool SendSide::poll(const QpInit& init, bool may_flush, QpEvent* out) {
  for (;;) {
    const std::uint32_t limit = flushing_ ? fail_index_ : done_;
    while (static_cast<std::int32_t>(limit - reported_) > 0) {
      const SendWqe& w = init.sq->at(reported_++);
      if (!init.sq_sig_all && (w.flags & kSendSignaled) == 0) continue;
      fill(init, w, WcStatus::success, out);
      return true;
    }
    if (!flushing_ || !may_flush) return false;
    const std::uint32_t end = flush_open_ ? init.sq->tail() : flush_end_;
    if (reported_ != end) {
      const WcStatus status = reported_ == fail_index_ ? fail_status_ : WcStatus::wr_flush_err;
      fill(init, init.sq->at(reported_++), status, out);
      return true;
    }
    if (flush_open_) return false;
    flushing_ = false;
  }
}

void SendSide::fill(const QpInit& init, const SendWqe& w, WcStatus status, QpEvent* out) const {
  out->kind = QpEvent::Kind::send_completion;
  out->sq_free_to = reported_;
  out->wc = Completion();
  out->wc.wr_id = w.wr_id;
  out->wc.qp_num = init.qpn;
  out->wc.status = status;
  out->wc.opcode = wc_opcode(w.opcode);
  if (status != WcStatus::success) {
    out->wc.solicited = true;
    // Ours to choose; the status repeated, so that it is never 0 on an error.
    out->wc.vendor_err = static_cast<std::uint32_t>(status);
    return;
  }
  if (w.opcode == WrOpcode::rdma_read) out->wc.byte_len = w.length;
  if (w.opcode == WrOpcode::atomic_cmp_and_swp || w.opcode == WrOpcode::atomic_fetch_and_add) out->wc.byte_len = 8;
}

}  // namespace softrnic::ib
