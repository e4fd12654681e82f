#include "protocols/ib/rc_requester.h"

#include "protocols/ib/data_packet.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::ib {
namespace {

// IBA 9.7.1: everything outstanding lies within half of the PSN space.
constexpr std::uint32_t kPsnHalf = 1u << 23;

bool is_local(WrOpcode op) { return op == WrOpcode::local_inv || op == WrOpcode::bind_mw; }
bool is_atomic(WrOpcode op) { return op == WrOpcode::atomic_cmp_and_swp || op == WrOpcode::atomic_fetch_and_add; }
// Messages that take a receive request at the responder, and so a credit (IBA 9.7.7.2).
bool takes_credit(WrOpcode op) { return op != WrOpcode::rdma_write && is_data(op); }

// A READ or atomic request packet in `out`; the extended header is written behind the BTH by the caller.
void write_request_bth(QpCore& core, Op op, std::uint32_t psn, std::uint8_t header_len, TxPacket* out) {
  wire::Bth bth;
  bth.opcode = opcode_of(kTransportRc, op);
  bth.pkey = core.attrs.pkey;
  bth.dest_qpn = core.attrs.dest_qpn;
  bth.ack_req = true;
  bth.psn = psn & kPsnMask;
  bth.write(out->header);
  out->header_len = header_len;
  out->pad = 0;
  out->is_request = true;
  out->dest_qpn = bth.dest_qpn;
  out->ah = 0;
  out->payload.clear();
  core.counters.sent_pkts++;
  core.counters.sent_bytes += header_len;
}

}  // namespace

void RcRequester::start() {
  una_psn_ = cur_psn_ = max_psn_ = core_.attrs.sq_psn & kPsnMask;
  retries_left_ = core_.attrs.retry_cnt;
  rnr_retries_left_ = core_.attrs.rnr_retry;
  blocked_ = false;
}

void RcRequester::reset() {
  cur_ = started_ = 0;
  una_psn_ = cur_psn_ = max_psn_ = 0;
  read_extra_ = 0;
  rd_outstanding_ = 0;
  blocked_ = nak_retry_ = stalled_ = notify_drained_ = unlimited_credits_ = false;
  lsn_ = ssn_ = 0;
  deadline_ = rnr_until_ = kNever;
}

void RcRequester::drain(bool notify) {
  notify_drained_ = notify;
  check_drained();
}

bool RcRequester::poll_transmit(Nanos now, MemoryPort& mem, TxPacket* out) {
  if (!core_.sends() || blocked_) return false;
  if (rnr_until_ != kNever) {
    if (now < rnr_until_) return false;
    rnr_until_ = kNever;
  }
  SendQueue& sq = *core_.init.sq;
  for (;;) {
    if (cur_ == started_ && cur_ == sq.tail()) return false;
    SendWqe& w = sq.at(cur_);
    if (stalled_ && static_cast<std::int32_t>(cur_ - stall_index_) >= 0) {
      blocked_ = true;
      return false;
    }
    if (cur_ == started_) {
      const Start s = try_start(mem, w);
      if (s == Start::executed) continue;
      if (s != Start::go) return false;
    } else if (is_local(w.opcode)) {
      ++cur_;  // went before, in the order of the queue; never again
      continue;
    }
    // READs need no room for what they bring back, only for the request.
    if (in_flight() >= kWindow || cur_psn_ - una_psn_ >= kPsnHalf) {
      blocked_ = true;
      return false;
    }
    last_sent_ = cur_;
    bool finished = true;
    if (is_data(w.opcode)) {
      if (!send_data(mem, w, out)) return false;
      finished = cur_psn_ == w.last_psn + 1;
    } else if (w.opcode == WrOpcode::rdma_read) {
      send_read(w, out);
    } else {
      send_atomic(w, out);
    }
    after_send(now, finished);
    out->more = cur_ != sq.tail();  // the responder owes nothing, or it would have been its turn
    return true;
  }
}

// Books the packet just built: PSNs were advanced by the send_ function.
void RcRequester::after_send(Nanos now, bool finished) {
  if (cur_ == started_) {
    ++started_;
    ssn_ = (ssn_ + 1) & kPsnMask;
    if (!is_data(core_.init.sq->at(cur_).opcode)) ++rd_outstanding_;
  }
  if (finished) ++cur_;
  if (static_cast<std::int32_t>(cur_psn_ - max_psn_) > 0) max_psn_ = cur_psn_;
  // The timer runs from the first unacknowledged packet (IBA 9.7.6.1.3).
  if (deadline_ == kNever && core_.attrs.timeout != 0) deadline_ = now + ack_timeout();
}

// Decides whether the request at cur_, the first never started, may start.
RcRequester::Start RcRequester::try_start(MemoryPort& mem, SendWqe& w) {
  auto blocked = [this] {
    blocked_ = true;
    return Start::blocked;
  };
  if (core_.state == QpState::sqd) return blocked();
  // IBA 10.8.3.3: a fenced request waits for earlier READs and atomics.
  if ((w.flags & kSendFence) != 0 && rd_outstanding_ != 0) return blocked();
  if (is_data(w.opcode)) {
    if (w.length > kMaxMessage) {
      local_error(cur_, WcStatus::loc_len_err);
      return Start::failed;
    }
    // IBA 9.7.7.2: one message may go beyond the credits, as a probe.
    if (takes_credit(w.opcode) && !unlimited_credits_ && psn_diff(ssn_, lsn_) > 0) return blocked();
    w.first_psn = cur_psn_;
    w.last_psn = cur_psn_ + core_.packets(w.length) - 1;
    return Start::go;
  }
  return is_local(w.opcode) ? run_local(mem, w) : start_packets(w);
}

// READ and atomics.
RcRequester::Start RcRequester::start_packets(SendWqe& w) {
  const bool read = w.opcode == WrOpcode::rdma_read;
  if (!read && !is_atomic(w.opcode)) {
    local_error(cur_, WcStatus::loc_qp_op_err);
    return Start::failed;
  }
  if (read ? w.length > kMaxMessage : w.length < 8) {
    local_error(cur_, WcStatus::loc_len_err);
    return Start::failed;
  }
  if (core_.attrs.max_rd_atomic == 0) {
    local_error(cur_, WcStatus::loc_qp_op_err);
    return Start::failed;
  }
  const std::uint32_t packets = read ? core_.packets(w.length) : 1;
  if (rd_outstanding_ >= core_.attrs.max_rd_atomic || cur_psn_ - una_psn_ + packets > kPsnHalf) {
    blocked_ = true;
    return Start::blocked;
  }
  w.first_psn = cur_psn_;
  w.last_psn = cur_psn_ + packets - 1;
  return Start::go;
}

// Requests without packets. An invalidation waits for all earlier requests, which may use the key
// (IBA 10.8.3.3); a bind only keeps the order.
RcRequester::Start RcRequester::run_local(MemoryPort& mem, const SendWqe& w) {
  MemStatus status = MemStatus::ok;
  WcStatus failure = WcStatus::mw_bind_err;
  if (w.opcode == WrOpcode::local_inv) {
    if (core_.send.done() != cur_) {
      blocked_ = true;
      return Start::blocked;
    }
    failure = WcStatus::loc_qp_op_err;
    status = mem.invalidate(core_.init.pd, core_.init.qpn, w.imm_or_inv);
  } else {
    status = mem.bind_mw(core_.init.pd, core_.init.qpn, w.bind);
  }
  if (status != MemStatus::ok) {
    local_error(cur_, failure);
    return Start::failed;
  }
  started_ = ++cur_;
  complete_requests();
  return Start::executed;
}

bool RcRequester::send_data(MemoryPort& mem, const SendWqe& w, TxPacket* out) {
  const std::uint32_t number = cur_psn_ - w.first_psn;
  const bool ack_req = cur_psn_ == w.last_psn || (number & (kAckInterval - 1)) == kAckInterval - 1;
  const WcStatus status = build_data_packet<kTransportRc>(core_, mem, cur_, w, number, cur_psn_, ack_req, out);
  if (status != WcStatus::success) {
    local_error(cur_, status);
    return false;
  }
  ++cur_psn_;
  return true;
}

// A READ request for all that has not arrived yet (IBA 9.7.5.3).
void RcRequester::send_read(const SendWqe& w, TxPacket* out) {
  const std::uint32_t offset = (cur_psn_ - w.first_psn) << core_.mtu_shift;
  write_request_bth(core_, Op::read_request, cur_psn_, wire::kBthSize + wire::Reth::kSize, out);
  wire::Reth{w.remote_addr + offset, w.rkey, w.length - offset}.write(out->header + wire::kBthSize);
  read_extra_ += static_cast<std::int32_t>(w.last_psn - cur_psn_);
  cur_psn_ = w.last_psn + 1;
}

void RcRequester::send_atomic(const SendWqe& w, TxPacket* out) {
  const bool swap = w.opcode == WrOpcode::atomic_cmp_and_swp;
  write_request_bth(core_, swap ? Op::cmp_swap : Op::fetch_add, cur_psn_, wire::kBthSize + wire::AtomicEth::kSize, out);
  wire::AtomicEth{w.remote_addr, w.rkey, w.swap_or_add, swap ? w.compare : 0}.write(out->header + wire::kBthSize);
  ++cur_psn_;
}

void RcRequester::on_timeout(Nanos now) {
  if (!core_.sends()) return;
  if (rnr_until_ <= now) {
    rnr_until_ = kNever;
    blocked_ = false;
  }
  if (deadline_ > now) return;
  deadline_ = kNever;
  core_.counters.local_ack_timeout_err++;
  nak_retry_ = false;
  if (retries_left_ == 0) {
    core_.counters.retry_exceeded_err++;
    fail(WcStatus::retry_exc_err);
    return;
  }
  --retries_left_;
  go_back();
}

void RcRequester::postpone_timeout(Nanos now) {
  if (deadline_ != kNever) deadline_ = now + ack_timeout();
}

// Continues sending at the oldest PSN that is not acknowledged (go-back-N).
void RcRequester::go_back() {
  core_.counters.completer_retry_err++;
  cur_ = core_.send.done();
  cur_psn_ = una_psn_;
  read_extra_ = 0;
  deadline_ = kNever;
  blocked_ = false;
}

// A retry because something is known to be missing. While such a retry has brought nothing, further
// NAKs are about the same loss and the timer takes over; the same when a retry is about to begin.
void RcRequester::retry_from_nak() {
  if (nak_retry_ || cur_psn_ == una_psn_) return;
  if (retries_left_ == 0) {
    core_.counters.retry_exceeded_err++;
    fail(WcStatus::retry_exc_err);
    return;
  }
  --retries_left_;
  nak_retry_ = true;
  go_back();
}

// A request cannot be carried out for a local reason. It fails when all before it are complete, so
// that those keep their own status.
void RcRequester::local_error(std::uint32_t index, WcStatus status) {
  if (core_.send.done() == index) {
    fail(status);
    return;
  }
  if (stalled_ && static_cast<std::int32_t>(index - stall_index_) >= 0) return;
  stalled_ = true;
  stall_index_ = index;
  stall_status_ = status;
  blocked_ = true;
}

void RcRequester::fail(WcStatus status) {
  deadline_ = rnr_until_ = kNever;
  core_.enter_error(status);
}

void RcRequester::check_drained() {
  if (core_.state != QpState::sqd || core_.send.done() != started_ || !core_.attrs.sq_draining) return;
  core_.attrs.sq_draining = false;
  if (notify_drained_) core_.raise(AsyncEvent::sq_drained);
  notify_drained_ = false;
}

}  // namespace softrnic::ib
