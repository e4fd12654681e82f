#include "protocols/ib/rc_responder.h"

#include "protocols/common/psn.h"
#include "protocols/ib/aeth_codes.h"
#include "protocols/wire/bth.h"

namespace softrnic::ib {

void RcResponder::start() {
  reset();
  epsn_ = core_.attrs.rq_psn & kPsnMask;
  resize();
}

void RcResponder::reset() {
  msn_ = 0;
  message_ = Message::none;
  nak_sent_ = ack_owed_ = fatal_event_due_ = last_was_response_ = false;
  nak_ = 0;
  resource_head_ = tx_cursor_ = pending_ = 0;
  resources_.reset();
}

void RcResponder::resize() {
  std::uint32_t size = 1;
  while (size < core_.attrs.max_dest_rd_atomic) size *= 2;
  if (resources_ != nullptr && size <= resource_mask_ + 1) return;
  auto bigger = std::make_unique<Resource[]>(size);
  if (resources_ != nullptr) {
    const std::uint32_t old = resource_mask_ + 1;
    const std::uint32_t kept = resource_head_ < old ? resource_head_ : old;
    for (std::uint32_t i = resource_head_ - kept; i != resource_head_; ++i) bigger[i & (size - 1)] = resource(i);
  }
  resources_ = std::move(bigger);
  resource_mask_ = size - 1;
}

void RcResponder::on_request(Nanos, MemoryPort& mem, const OpcodeInfo& info, const RxPacket& packet,
                             std::uint32_t payload_len) {
  const std::uint8_t* p = packet.bth.data();
  const wire::BthView bth(p);
  const std::uint32_t psn = bth.psn();
  const std::int32_t ahead = psn_diff(psn, epsn_);
  if (ahead < 0) {
    on_duplicate(info, p, psn);
    return;
  }
  if (ahead > 0) {
    // IBA 9.7.5.2.4: one sequence error NAK until the expected packet arrives.
    core_.counters.out_of_seq_request++;
    if (nak_sent_) return;
    nak_sent_ = true;
    nak_ = kNakPsnSequence;
    nak_psn_ = epsn_;
    return;
  }
  nak_sent_ = false;
  nak_ = 0;  // one not handed out yet is void
  execute(mem, {info, p, p + info.header_len, payload_len, psn, bth.opcode(), bth.ack_req(), bth.solicited()});
}

// IBA 9.7.4.1: opcode sequence, operation enabled, resources, length, R_Key, execution, in this order.
void RcResponder::execute(MemoryPort& mem, const Request& r) {
  if (!sequence_ok(r.info)) {
    fatal(kNakInvalidRequest, r.psn, WcStatus::rem_inv_req_err, AsyncEvent::qp_req_err);
    return;
  }
  switch (r.info.kind) {
    case OpKind::send:
      on_send(mem, r);
      return;
    case OpKind::write:
      on_write(mem, r);
      return;
    case OpKind::read_request:
      on_read(mem, r);
      return;
    case OpKind::atomic:
      on_atomic(mem, r);
      return;
    default:
      core_.counters.drops++;
  }
}

// IBA 9.7.4.1.2: a Middle or Last packet continues a message of its kind, all others need none open.
bool RcResponder::sequence_ok(const OpcodeInfo& info) const {
  if (info.first) return message_ == Message::none;
  return message_ == (info.kind == OpKind::send ? Message::send : Message::write);
}

// IBA 9.7.4.1.6: First and Middle packets are full, Last ones hold 1..MTU bytes, Only ones 0..MTU.
bool RcResponder::length_ok(const Request& r) const {
  const std::uint32_t mtu = core_.mtu();
  switch (r.info.payload) {
    case PayloadRule::empty:
      return r.payload_len == 0;
    case PayloadRule::full:
      return r.payload_len == mtu && wire::BthView(r.bytes).pad_count() == 0;
    case PayloadRule::one_to_mtu:
      return r.payload_len >= 1 && r.payload_len <= mtu;
    case PayloadRule::up_to_mtu:
      return r.payload_len <= mtu;
  }
  return false;
}

// The packet is executed: PSNs advance, and a message that ends counts.
void RcResponder::accept(const Request& r, std::uint32_t packets) {
  epsn_ = psn_add(epsn_, packets);
  if (r.info.last) msn_ = psn_add(msn_, 1);
  if (r.ack_req) ack_owed_ = true;
}

void RcResponder::on_send(MemoryPort& mem, const Request& r) {
  RecvSide& recv = core_.recv;
  if (r.info.first && !recv.take()) {
    rnr();
    return;
  }
  if (!length_ok(r)) {
    fatal(kNakInvalidRequest, r.psn, WcStatus::rem_inv_req_err, AsyncEvent::qp_req_err);
    return;
  }
  if (recv.placed() + r.payload_len > recv.capacity()) {
    fatal(kNakInvalidRequest, r.psn, WcStatus::loc_len_err, AsyncEvent::qp_req_err);
    return;
  }
  if (!recv.place(mem, r.payload, r.payload_len)) {
    fatal(kNakRemoteOperational, r.psn, WcStatus::loc_prot_err, AsyncEvent::qp_fatal);
    return;
  }
  if (!r.info.last) {
    message_ = Message::send;
    accept(r, 1);
    return;
  }
  if (r.info.inv &&
      mem.invalidate(core_.init.pd, core_.init.qpn, wire::Ieth::read(r.bytes + r.info.ieth).rkey) != MemStatus::ok) {
    fatal(kNakRemoteAccess, r.psn, WcStatus::rem_inv_req_err, AsyncEvent::qp_access_err);
    return;
  }
  message_ = Message::none;
  accept(r, 1);
  complete_recv(r, WcOpcode::recv, static_cast<std::uint32_t>(recv.placed()));
}

void RcResponder::on_write(MemoryPort& mem, const Request& r) {
  if ((core_.attrs.access_flags & kAccessRemoteWrite) == 0) {
    fatal(kNakInvalidRequest, r.psn, WcStatus::rem_inv_req_err, AsyncEvent::qp_req_err);
    return;
  }
  // Immediate data takes a receive request, with its packet (IBA 9.7.4.1.4).
  if (r.info.imm && !core_.recv.available()) {
    rnr();
    return;
  }
  if (r.info.first) {
    const auto reth = wire::Reth::read(r.bytes + r.info.reth);
    write_va_ = reth.va;
    write_rkey_ = reth.rkey;
    write_left_ = write_total_ = reth.length;
  }
  const bool fits = r.info.last ? r.payload_len == write_left_ : r.payload_len < write_left_;
  if (!length_ok(r) || write_total_ > kMaxMessage || !fits) {
    fatal(kNakInvalidRequest, r.psn, WcStatus::rem_inv_req_err, AsyncEvent::qp_req_err);
    return;
  }
  if (r.payload_len != 0 && !place_write(mem, r)) return;
  message_ = r.info.last ? Message::none : Message::write;
  accept(r, 1);
  if (r.info.imm) {
    core_.recv.take();
    complete_recv(r, WcOpcode::recv_rdma_with_imm, write_total_);
  }
}

// The first packet checks the whole range, every packet its own part again. False: the QP has failed.
bool RcResponder::place_write(MemoryPort& mem, const Request& r) {
  const std::uint32_t checked = r.info.first ? write_total_ : r.payload_len;
  std::uint8_t* dst = nullptr;
  if (mem.resolve_remote(core_.init.pd, core_.init.qpn, write_rkey_, write_va_, checked, kAccessRemoteWrite, &dst) !=
      MemStatus::ok) {
    fatal(kNakRemoteAccess, r.psn, WcStatus::rem_access_err, AsyncEvent::qp_access_err);
    return false;
  }
  if (!mem.copy_to_app(dst, r.payload, r.payload_len)) {
    fatal(kNakRemoteOperational, r.psn, WcStatus::rem_op_err, AsyncEvent::qp_fatal);
    return false;
  }
  write_va_ += r.payload_len;
  write_left_ -= r.payload_len;
  return true;
}

void RcResponder::on_read(MemoryPort& mem, const Request& r) {
  const auto reth = wire::Reth::read(r.bytes + r.info.reth);
  Resource* res = nullptr;
  if ((core_.attrs.access_flags & kAccessRemoteRead) == 0 || !length_ok(r) || reth.length > kMaxMessage ||
      (res = new_resource()) == nullptr) {
    fatal(kNakInvalidRequest, r.psn, WcStatus::rem_inv_req_err, AsyncEvent::qp_req_err);
    return;
  }
  std::uint8_t* src = nullptr;
  if (reth.length != 0 && mem.resolve_remote(core_.init.pd, core_.init.qpn, reth.rkey, reth.va, reth.length,
                                             kAccessRemoteRead, &src) != MemStatus::ok) {
    fatal(kNakRemoteAccess, r.psn, WcStatus::rem_access_err, AsyncEvent::qp_access_err);
    return;
  }
  const std::uint32_t packets = core_.packets(reth.length);
  accept(r, packets);
  ack_owed_ = false;  // the response acknowledges all before it
  *res = Resource();
  res->op = static_cast<std::uint8_t>(Op::read_request);
  res->first_psn = r.psn;
  res->last_psn = psn_add(r.psn, packets - 1);
  res->rkey = reth.rkey;
  res->va = reth.va;
  res->length = reth.length;
  res->msn = msn_;
  begin_read(*res, r.psn, reth);
  set_pending(resource_head_++);
}

void RcResponder::on_atomic(MemoryPort& mem, const Request& r) {
  const auto eth = wire::AtomicEth::read(r.bytes + r.info.atomic_eth);
  Resource* res = nullptr;
  if ((core_.attrs.access_flags & kAccessRemoteAtomic) == 0 || !length_ok(r) || (eth.va & 7) != 0 ||
      (res = new_resource()) == nullptr) {
    fatal(kNakInvalidRequest, r.psn, WcStatus::rem_inv_req_err, AsyncEvent::qp_req_err);
    return;
  }
  std::uint8_t* target = nullptr;
  if (mem.resolve_remote(core_.init.pd, core_.init.qpn, eth.rkey, eth.va, 8, kAccessRemoteAtomic, &target) !=
      MemStatus::ok) {
    fatal(kNakRemoteAccess, r.psn, WcStatus::rem_access_err, AsyncEvent::qp_access_err);
    return;
  }
  const Op op = static_cast<Op>(r.opcode);
  std::uint64_t original = 0;
  if (!mem.atomic64(target, op == Op::cmp_swap, eth.compare, eth.swap_or_add, &original)) {
    fatal(kNakRemoteOperational, r.psn, WcStatus::rem_op_err, AsyncEvent::qp_fatal);
    return;
  }
  accept(r, 1);
  ack_owed_ = false;
  *res = Resource();
  res->op = static_cast<std::uint8_t>(op);
  res->first_psn = res->last_psn = res->tx_psn = r.psn;
  res->original = original;
  res->msn = msn_;
  set_pending(resource_head_++);
}

void RcResponder::complete_recv(const Request& r, WcOpcode opcode, std::uint32_t byte_len) {
  Completion& wc = core_.recv.complete(opcode, r.psn, r.ack_req);
  wc.byte_len = byte_len;
  wc.src_qp = core_.attrs.dest_qpn;
  wc.solicited = r.solicited;
  if (r.info.imm) {
    wc.wc_flags = kWcWithImm;
    wc.imm_or_rkey = wire::ImmDt::read(r.bytes + r.info.imm_dt).raw;
  } else if (r.info.inv) {
    wc.wc_flags = kWcWithInv;
    wc.imm_or_rkey = wire::Ieth::read(r.bytes + r.info.ieth).rkey;
  }
}

// IBA 9.7.5.2.8: the packet is refused for now, nothing else changes.
void RcResponder::rnr() {
  core_.counters.send_rnr_err++;
  nak_ = static_cast<std::uint8_t>(kSyndromeRnr | (core_.attrs.min_rnr_timer & kSyndromeValueMask));
  nak_psn_ = epsn_;
  nak_sent_ = true;
}

void RcResponder::fatal(std::uint8_t syndrome, std::uint32_t psn, WcStatus recv_status, AsyncEvent event) {
  nak_ = syndrome;
  nak_psn_ = psn;
  core_.nak_draining = true;
  core_.enter_error();
  if (core_.recv.has_current()) {
    core_.recv.fail(recv_status, syndrome, psn, true);
  } else {
    fatal_event_ = event;
    fatal_event_due_ = true;
  }
}

}  // namespace softrnic::ib
