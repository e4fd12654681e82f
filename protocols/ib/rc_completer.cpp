// RcRequester, receiving side: acknowledgements, READ responses and atomic acknowledgements
// (IBA 9.7.5.1.2, 9.7.5.2, 9.7.7.2).
#include <cstring>

#include "protocols/ib/aeth_codes.h"
#include "protocols/ib/rc_requester.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::ib {
namespace {

bool is_rd_atomic(WrOpcode op) {
  return op == WrOpcode::rdma_read || op == WrOpcode::atomic_cmp_and_swp || op == WrOpcode::atomic_fetch_and_add;
}
bool has_packets(WrOpcode op) { return op != WrOpcode::local_inv && op != WrOpcode::bind_mw; }

}  // namespace

void RcRequester::on_response(Nanos now, MemoryPort& mem, const OpcodeInfo& info, const RxPacket& packet,
                              std::uint32_t payload_len) {
  if (!core_.sends()) {
    core_.counters.drops++;
    return;
  }
  const std::uint8_t* p = packet.bth.data();
  const std::int32_t ahead = psn_diff(wire::BthView(p).psn(), una_psn_ & kPsnMask);
  const std::uint32_t psn = una_psn_ + static_cast<std::uint32_t>(ahead);
  wire::Aeth aeth;
  if (info.aeth != 0) aeth = wire::Aeth::read(p + info.aeth);
  const bool is_ack = info.aeth != 0 && (aeth.syndrome & kSyndromeTypeMask) == kSyndromeAck;
  // A PSN never sent ("ghost") is not ours to answer; an old one only brings credits (IBA 9.7.5.1).
  if (static_cast<std::int32_t>(psn - max_psn_) >= 0) {
    core_.counters.drops++;
    return;
  }
  if (is_ack) update_credits(aeth.syndrome, aeth.msn);
  if (ahead < 0) {
    if (info.kind != OpKind::ack) core_.counters.drops++;
    return;
  }
  if (info.kind == OpKind::ack) {
    on_ack(now, psn, aeth.syndrome);
    return;
  }
  if (info.aeth != 0 && !is_ack) {
    // A response that is at once a NAK does not exist (IBA 9.7.5.1).
    core_.counters.drops++;
    return;
  }
  if (info.kind == OpKind::read_response) {
    on_read_response(now, mem, info, psn, Bytes(p + info.header_len, payload_len));
  } else {
    on_atomic_ack(now, mem, psn, wire::AtomicAckEth::read(p + info.atomic_ack_eth).original);
  }
}

// LSN = MSN + credits; it never moves back, as acknowledgements may overtake each other (IBA 9.7.7.2).
void RcRequester::update_credits(std::uint8_t syndrome, std::uint32_t msn) {
  if (unlimited_credits_) return;
  const std::uint8_t code = syndrome & kSyndromeValueMask;
  if (code == kCreditsUnlimited) {
    unlimited_credits_ = true;
    blocked_ = false;
    return;
  }
  const std::uint32_t lsn = psn_add(msn, decode_credits(code));
  if (psn_diff(lsn, lsn_) <= 0) return;
  lsn_ = lsn;
  blocked_ = false;
}

void RcRequester::on_ack(Nanos now, std::uint32_t psn, std::uint8_t syndrome) {
  switch (syndrome & kSyndromeTypeMask) {
    case kSyndromeAck:
      if (!acknowledge_below(now, psn + 1)) retry_from_nak();
      return;
    case kSyndromeRnr:
      on_rnr_nak(now, psn, syndrome & kSyndromeValueMask);
      return;
    case kSyndromeNak:
      on_nak(now, psn, kSyndromeNak | (syndrome & kSyndromeValueMask));
      return;
    default:
      core_.counters.drops++;
  }
}

// A NAK acknowledges all requests before its PSN (IBA 9.7.5.1.2).
void RcRequester::on_nak(Nanos now, std::uint32_t psn, std::uint8_t syndrome) {
  if (!acknowledge_below(now, psn)) {
    // A READ before it has not been answered: that one first.
    retry_from_nak();
    return;
  }
  switch (syndrome) {
    case kNakPsnSequence:
      core_.counters.rcvd_seq_err++;
      retry_from_nak();
      return;
    case kNakInvalidRequest:
      fail(WcStatus::rem_inv_req_err);
      return;
    case kNakRemoteAccess:
      fail(WcStatus::rem_access_err);
      return;
    case kNakRemoteOperational:
      fail(WcStatus::rem_op_err);
      return;
    default:
      fail(WcStatus::bad_resp_err);
  }
}

// IBA 9.7.5.2.8: wait at least the time of the code, then go on at the PSN that was refused.
void RcRequester::on_rnr_nak(Nanos now, std::uint32_t psn, std::uint8_t code) {
  core_.counters.rcvd_rnr_err++;
  if (!acknowledge_below(now, psn)) {
    retry_from_nak();
    return;
  }
  if (rnr_until_ != kNever) return;  // a copy of the one being waited for
  if (rnr_retries_left_ == 0) {
    core_.counters.retry_rnr_exceeded_err++;
    fail(WcStatus::rnr_retry_exc_err);
    return;
  }
  if (core_.attrs.rnr_retry != 7) --rnr_retries_left_;
  go_back();
  rnr_until_ = now + rnr_timer_ns(code);
}

// Takes all requests before `psn` as acknowledged. False when a READ or atomic among them has not been
// answered: its response was lost, and only what lies before it is acknowledged (IBA 9.7.5.1.2).
bool RcRequester::acknowledge_below(Nanos now, std::uint32_t psn) {
  bool complete = true;
  if (rd_outstanding_ != 0) {
    for (std::uint32_t i = core_.send.done(); i != started_; ++i) {
      const SendWqe& w = core_.init.sq->at(i);
      if (!has_packets(w.opcode)) continue;
      if (is_rd_atomic(w.opcode)) {
        const std::uint32_t missing = i == core_.send.done() ? una_psn_ : w.first_psn;
        complete = static_cast<std::int32_t>(psn - missing) <= 0;
        if (!complete) psn = missing;
        break;
      }
      if (static_cast<std::int32_t>(w.last_psn + 1 - psn) >= 0) break;
    }
  }
  if (static_cast<std::int32_t>(psn - una_psn_) > 0) progress(now, psn);
  return complete;
}

// una_psn_ moves forward: retry counters are reloaded, the timer restarts (IBA 9.7.6.1.3).
void RcRequester::progress(Nanos now, std::uint32_t una_psn) {
  una_psn_ = una_psn;
  nak_retry_ = false;
  blocked_ = false;
  retries_left_ = core_.attrs.retry_cnt;
  rnr_retries_left_ = core_.attrs.rnr_retry;
  rnr_until_ = kNever;
  complete_requests();
  if (static_cast<std::int32_t>(cur_psn_ - una_psn_) <= 0) {
    // Nothing open; or a retry was under way for packets that had arrived after all.
    if (cur_psn_ != una_psn_ || static_cast<std::int32_t>(cur_ - core_.send.done()) < 0) cur_ = core_.send.done();
    cur_psn_ = una_psn_;
    read_extra_ = 0;
    deadline_ = kNever;
  } else if (core_.attrs.timeout != 0) {
    deadline_ = now + ack_timeout();
  }
}

// Moves send.done() over the requests that una_psn_ covers, and over executed local ones.
void RcRequester::complete_requests() {
  std::uint32_t i = core_.send.done();
  while (i != started_) {
    const SendWqe& w = core_.init.sq->at(i);
    if (has_packets(w.opcode)) {
      if (static_cast<std::int32_t>(w.last_psn - una_psn_) >= 0) break;
      if (is_rd_atomic(w.opcode)) --rd_outstanding_;
    }
    ++i;
  }
  core_.send.complete_to(i);
  if (stalled_ && i == stall_index_) fail(stall_status_);
  check_drained();
}

void RcRequester::on_read_response(Nanos now, MemoryPort& mem, const OpcodeInfo& info, std::uint32_t psn,
                                   Bytes payload) {
  // It acknowledges what lies before it. After that it must be the one expected next.
  if (!acknowledge_below(now, psn)) {
    core_.counters.drops++;
    retry_from_nak();
    return;
  }
  if (!core_.sends()) return;
  const SendWqe& w = oldest();
  const std::uint32_t offset = (psn - w.first_psn) << core_.mtu_shift;
  const bool last = psn == w.last_psn;
  const std::uint32_t expected = last ? w.length - offset : core_.mtu();
  if (w.opcode != WrOpcode::rdma_read || info.last != last || payload.size() != expected) {
    fail(WcStatus::bad_resp_err);  // IBA 9.7.5.3, bad response
    return;
  }
  if (!payload.empty()) {
    const WcStatus status = scatter(mem, offset, payload.data(), static_cast<std::uint32_t>(payload.size()));
    if (status != WcStatus::success) {
      fail(status);
      return;
    }
  }
  if (!last && static_cast<std::int32_t>(cur_psn_ - psn) > 0) --read_extra_;
  progress(now, psn + 1);
}

void RcRequester::on_atomic_ack(Nanos now, MemoryPort& mem, std::uint32_t psn, std::uint64_t original) {
  if (!acknowledge_below(now, psn)) {
    core_.counters.drops++;
    retry_from_nak();
    return;
  }
  if (!core_.sends()) return;
  const SendWqe& w = oldest();
  if (w.opcode != WrOpcode::atomic_cmp_and_swp && w.opcode != WrOpcode::atomic_fetch_and_add) {
    fail(WcStatus::bad_resp_err);
    return;
  }
  std::uint8_t host_order[8];
  std::memcpy(host_order, &original, sizeof host_order);
  const WcStatus status = scatter(mem, 0, host_order, sizeof host_order);
  if (status != WcStatus::success) {
    fail(status);
    return;
  }
  progress(now, psn + 1);
}

// Places bytes of a response into the elements of the oldest request.
WcStatus RcRequester::scatter(MemoryPort& mem, std::uint32_t offset, const std::uint8_t* src, std::uint32_t length) {
  const Sge* s = core_.init.sq->sges_at(core_.send.done());
  const Sge* end = s + oldest().num_sge;
  while (length != 0) {
    while (s != end && offset >= s->length) offset -= s++->length;
    if (s == end) return WcStatus::loc_len_err;
    const std::uint32_t room = s->length - offset;
    const std::uint32_t n = length < room ? length : room;
    std::uint8_t* dst = nullptr;
    if (mem.resolve_local(core_.init.pd, s->lkey, s->addr + offset, n, kAccessLocalWrite, &dst) != MemStatus::ok ||
        !mem.copy_to_app(dst, src, n)) {
      return WcStatus::loc_prot_err;
    }
    offset += n;
    src += n;
    length -= n;
  }
  return WcStatus::success;
}

}  // namespace softrnic::ib
