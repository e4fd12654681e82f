// RcResponder, sending side: duplicates, READ responses, acknowledgements and NAKs
// (IBA 9.7.4.4, 9.7.5.1).
#include "protocols/common/psn.h"
#include "protocols/ib/aeth_codes.h"
#include "protocols/ib/rc_responder.h"
#include "protocols/wire/bth.h"

namespace softrnic::ib {
namespace {

void start_response(QpCore& core, Op op, std::uint32_t psn, std::uint8_t pad, TxPacket* out) {
  wire::Bth bth;
  bth.opcode = opcode_of(kTransportRc, op);
  bth.pkey = core.attrs.pkey;
  bth.dest_qpn = core.attrs.dest_qpn;
  bth.pad_count = pad;
  bth.psn = psn;
  bth.write(out->header);
  out->header_len = wire::kBthSize;
  out->pad = pad;
  out->is_request = false;
  out->dest_qpn = bth.dest_qpn;
  out->ah = 0;
}

void add_aeth(std::uint8_t syndrome, std::uint32_t msn, TxPacket* out) {
  wire::Aeth{syndrome, msn}.write(out->header + out->header_len);
  out->header_len += wire::Aeth::kSize;
}

void count_sent(QpCore& core, const TxPacket& p) {
  core.counters.sent_pkts++;
  core.counters.sent_bytes += static_cast<std::uint64_t>(p.header_len) + p.payload.length + p.pad;
}

}  // namespace

// IBA 9.7.4.4: SENDs and WRITEs are acknowledged again; READs are executed again from where they ask;
// atomics get the saved result. What does not fit a saved request is dropped.
void RcResponder::on_duplicate(const OpcodeInfo& info, const std::uint8_t* bytes, std::uint32_t psn) {
  core_.counters.duplicate_request++;
  if (info.kind == OpKind::send || info.kind == OpKind::write) {
    ack_owed_ = true;
    return;
  }
  std::uint32_t index = 0;
  if (!find_resource(psn, &index) || !prepare_replay(resource(index), info, bytes, psn)) {
    core_.counters.drops++;
    return;
  }
  set_pending(index);
}

// True when the duplicate request is the saved one, or a part of the saved READ.
bool RcResponder::prepare_replay(Resource& res, const OpcodeInfo& info, const std::uint8_t* bytes, std::uint32_t psn) {
  if (res.op != static_cast<std::uint8_t>(wire::BthView(bytes).opcode())) return false;
  if (info.kind == OpKind::atomic) return true;
  const auto reth = wire::Reth::read(bytes + info.reth);
  const std::uint64_t skipped = reth.va - res.va;
  if (reth.rkey != res.rkey || skipped > res.length || reth.length > res.length - skipped) return false;
  if (psn_diff(psn_add(psn, core_.packets(reth.length) - 1), res.last_psn) > 0) return false;
  begin_read(res, psn, reth);
  return true;
}

// The response of `res` starts (again) at `psn`.
void RcResponder::begin_read(Resource& res, std::uint32_t psn, const wire::Reth& reth) {
  res.tx_first = true;
  res.tx_psn = psn;
  res.tx_va = reth.va;
  res.tx_left = reth.length;
}

// The saved request that `psn` belongs to, of the last max_dest_rd_atomic ones.
bool RcResponder::find_resource(std::uint32_t psn, std::uint32_t* index) {
  const std::uint32_t max = core_.attrs.max_dest_rd_atomic;
  const std::uint32_t kept = resource_head_ < max ? resource_head_ : max;
  for (std::uint32_t i = resource_head_; i != resource_head_ - kept;) {
    const Resource& res = resource(--i);
    if (psn_diff(psn, res.first_psn) < 0 || psn_diff(psn, res.last_psn) > 0) continue;
    *index = i;
    return true;
  }
  return false;
}

// Place for a new request, which takes that of the oldest. Null when the requester has more requests
// open than allowed: the oldest has not been answered (IBA 9.7.4.1.5).
RcResponder::Resource* RcResponder::new_resource() {
  const std::uint32_t max = core_.attrs.max_dest_rd_atomic;
  if (max == 0) return nullptr;
  if (resource_head_ >= max && !resource(resource_head_ - max).answered) return nullptr;
  Resource& res = resource(resource_head_);
  if (res.pending) {
    // A replay of an answered request that the requester has given up.
    res.pending = false;
    --pending_;
  }
  return &res;
}

void RcResponder::set_pending(std::uint32_t index) {
  Resource& res = resource(index);
  if (!res.pending) {
    res.pending = true;
    if (pending_++ == 0) tx_cursor_ = index;
  }
  if (static_cast<std::int32_t>(index - tx_cursor_) < 0) tx_cursor_ = index;
}

bool RcResponder::poll_transmit(MemoryPort& mem, TxPacket* out) {
  last_was_response_ = false;
  if (!owes()) return false;
  if (pending_ != 0 && send_response(mem, out)) return true;
  if (ack_owed_) {
    ack_owed_ = false;
    const std::uint32_t psn = psn_add(epsn_, kPsnMask);  // epsn_ - 1: all that was executed
    send_ack(kSyndromeAck | credits(), psn, out);
    core_.recv.release_to(psn);
    return true;
  }
  if (nak_ == 0) return false;
  send_ack(nak_, nak_psn_, out);
  nak_ = 0;
  core_.recv.release_to(nak_psn_);
  if (core_.nak_draining) {
    core_.nak_draining = false;
    if (fatal_event_due_) core_.raise(fatal_event_);
  }
  return true;
}

// The next packet of the first response in PSN order. False when it turned into a NAK.
bool RcResponder::send_response(MemoryPort& mem, TxPacket* out) {
  const std::uint32_t oldest = resource_head_ - (resource_mask_ + 1);
  if (static_cast<std::int32_t>(tx_cursor_ - oldest) < 0) tx_cursor_ = oldest;  // its place was taken
  while (!resource(tx_cursor_).pending) ++tx_cursor_;
  Resource& res = resource(tx_cursor_);
  core_.recv.release_to(res.tx_psn);
  if (res.op == static_cast<std::uint8_t>(Op::read_request)) {
    if (!send_read_response(mem, res, out)) return false;
  } else {
    send_atomic_ack(res, out);
  }
  count_sent(core_, *out);
  return true;
}

bool RcResponder::send_read_response(MemoryPort& mem, Resource& res, TxPacket* out) {
  const bool last = res.tx_left <= core_.mtu();
  const std::uint32_t length = last ? res.tx_left : core_.mtu();
  out->payload.clear();
  if (length != 0) {
    std::uint8_t* src = nullptr;
    if (mem.resolve_remote(core_.init.pd, core_.init.qpn, res.rkey, res.tx_va, length, kAccessRemoteRead, &src) !=
        MemStatus::ok) {
      // The region went away since the request was accepted.
      pending_ = 0;
      ack_owed_ = false;
      fatal(kNakRemoteAccess, res.tx_psn, WcStatus::rem_access_err, AsyncEvent::qp_access_err);
      return false;
    }
    out->payload.add(src, length, true);
  }
  const Op op = res.tx_first ? (last ? Op::read_resp_only : Op::read_resp_first)
                             : (last ? Op::read_resp_last : Op::read_resp_middle);
  start_response(core_, op, res.tx_psn, static_cast<std::uint8_t>(-length & 3), out);
  if (op != Op::read_resp_middle) add_aeth(kSyndromeAck | credits(), res.msn, out);
  last_response_psn_ = res.tx_psn;
  last_was_response_ = true;
  if (res.tx_psn == res.last_psn) res.answered = true;
  res.tx_first = false;
  res.tx_psn = psn_add(res.tx_psn, 1);
  res.tx_va += length;
  res.tx_left -= length;
  if (last) {
    res.pending = false;
    --pending_;
  }
  return true;
}

void RcResponder::send_atomic_ack(Resource& res, TxPacket* out) {
  out->payload.clear();
  start_response(core_, Op::atomic_ack, res.tx_psn, 0, out);
  add_aeth(kSyndromeAck | credits(), res.msn, out);
  wire::AtomicAckEth{res.original}.write(out->header + out->header_len);
  out->header_len += wire::AtomicAckEth::kSize;
  res.answered = true;
  res.pending = false;
  --pending_;
}

void RcResponder::send_ack(std::uint8_t syndrome, std::uint32_t psn, TxPacket* out) {
  out->payload.clear();
  start_response(core_, Op::acknowledge, psn, 0, out);
  add_aeth(syndrome, msn_, out);
  count_sent(core_, *out);
}

// IBA 9.7.7.2: a QP with a shared receive queue gives no credits.
std::uint8_t RcResponder::credits() const {
  return core_.init.has_srq ? kCreditsUnlimited : encode_credits(core_.init.rq->available());
}

bool RcResponder::on_gather_fault() {
  if (!last_was_response_) return false;
  last_was_response_ = false;
  pending_ = 0;
  ack_owed_ = false;
  fatal(kNakRemoteOperational, last_response_psn_, WcStatus::rem_op_err, AsyncEvent::qp_fatal);
  return true;
}

}  // namespace softrnic::ib
