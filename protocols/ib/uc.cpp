#include "protocols/ib/uc.h"

#include "protocols/common/psn.h"
#include "protocols/ib/data_packet.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::ib {

void Uc::reset() {
  psn_ = number_ = epsn_ = 0;
  notify_drained_ = false;
  message_ = Message::none;
}

// --- sending ---------------------------------------------------------------------------------------

bool Uc::wants_transmit() const {
  if (!core_.sends() || core_.send.flushing()) return false;
  if (core_.state == QpState::sqd && number_ == 0) return false;
  return core_.send.done() != core_.init.sq->tail();
}

void Uc::drain(bool notify) {
  if (number_ != 0) {
    notify_drained_ = notify;
    return;
  }
  core_.attrs.sq_draining = false;
  if (notify) core_.raise(AsyncEvent::sq_drained);
  notify_drained_ = false;
}

bool Uc::poll_transmit(MemoryPort& mem, TxPacket* out) {
  if (!wants_transmit()) return false;
  SendWqe& w = core_.init.sq->at(core_.send.done());
  return build(mem, w, out);
}

bool Uc::build(MemoryPort& mem, SendWqe& w, TxPacket* out) {
  WcStatus status = WcStatus::success;
  if (!is_data(w.opcode) || w.opcode == WrOpcode::send_with_inv) {
    status = WcStatus::loc_qp_op_err;
  } else if (w.length > kMaxMessage) {
    status = WcStatus::loc_len_err;
  } else {
    status = build_data_packet<kTransportUc>(core_, mem, core_.send.done(), w, number_, psn_, false, out);
  }
  if (status != WcStatus::success) {
    number_ = 0;
    core_.enter_send_error(status);
    return false;
  }
  psn_ = psn_add(psn_, 1);
  if (++number_ < core_.packets(w.length)) return true;
  number_ = 0;
  core_.send.complete_to(core_.send.done() + 1);
  if (core_.state == QpState::sqd && core_.attrs.sq_draining) drain(notify_drained_);
  return true;
}

void Uc::on_gather_fault() {
  if (number_ == 0) core_.send.undo_last();
  number_ = 0;
  core_.enter_send_error(WcStatus::loc_prot_err);
}

// --- receiving -------------------------------------------------------------------------------------

// The message in progress is given up; its receive request takes the next one (IBA 9.8.2.2).
void Uc::drop_message() {
  core_.counters.drops++;
  message_ = Message::none;
  if (core_.recv.has_current()) core_.recv.rewind();
}

// A SEND that cannot be taken in. A request of an SRQ is not kept for the next message.
void Uc::reject_send(WcStatus status) {
  if (!core_.init.has_srq || !core_.recv.has_current()) {
    drop_message();
    return;
  }
  core_.counters.drops++;
  message_ = Message::none;
  core_.recv.fail(status, static_cast<std::uint32_t>(status), 0, false);
}

// An element of a receive request cannot be written: a local error, fatal on the receive queue.
void Uc::receive_fault() {
  message_ = Message::none;
  core_.recv.fail(WcStatus::loc_prot_err, static_cast<std::uint32_t>(WcStatus::loc_prot_err), 0, false);
  core_.enter_error();
}

bool Uc::payload_ok(const OpcodeInfo& info, std::uint32_t payload_len, std::uint8_t pad) const {
  const std::uint32_t mtu = core_.mtu();
  switch (info.payload) {
    case PayloadRule::empty:
      return payload_len == 0;
    case PayloadRule::full:
      return payload_len == mtu && pad == 0;
    case PayloadRule::one_to_mtu:
      return payload_len >= 1 && payload_len <= mtu;
    case PayloadRule::up_to_mtu:
      return payload_len <= mtu;
  }
  return false;
}

void Uc::on_packet(MemoryPort& mem, const OpcodeInfo& info, const RxPacket& packet, std::uint32_t payload_len) {
  const std::uint8_t* p = packet.bth.data();
  const wire::BthView bth(p);
  const bool in_sequence = bth.psn() == epsn_;
  epsn_ = psn_add(bth.psn(), 1);
  if (!in_sequence) {
    core_.counters.out_of_seq_request++;
    if (message_ != Message::none) drop_message();
  }
  const Message kind = info.kind == OpKind::send ? Message::send : Message::write;
  if (info.first) {
    if (message_ != Message::none) drop_message();
  } else if (message_ != kind) {
    // The rest of a message whose beginning was lost, or of another kind.
    core_.counters.drops++;
    if (message_ != Message::none) drop_message();
    return;
  }
  const bool well_formed = payload_ok(info, payload_len, bth.pad_count());
  if (info.kind == OpKind::write) {
    if (!well_formed || !on_write(mem, info, p, payload_len)) drop_message();
  } else if (!well_formed) {
    reject_send(WcStatus::rem_inv_req_err);
  } else {
    on_send(mem, info, p, payload_len);
  }
}

void Uc::on_send(MemoryPort& mem, const OpcodeInfo& info, const std::uint8_t* p, std::uint32_t payload_len) {
  RecvSide& recv = core_.recv;
  if (info.first && !recv.has_current() && !recv.take()) {
    core_.counters.drops++;
    return;
  }
  if (recv.placed() + payload_len > recv.capacity()) {
    reject_send(WcStatus::loc_len_err);
    return;
  }
  if (!recv.place(mem, p + info.header_len, payload_len)) {
    receive_fault();
    return;
  }
  message_ = info.last ? Message::none : Message::send;
  if (info.last) complete_recv(info, p, WcOpcode::recv, static_cast<std::uint32_t>(recv.placed()));
}

// False: the message is dropped.
bool Uc::on_write(MemoryPort& mem, const OpcodeInfo& info, const std::uint8_t* p, std::uint32_t payload_len) {
  if (info.first) {
    const auto reth = wire::Reth::read(p + info.reth);
    write_va_ = reth.va;
    write_rkey_ = reth.rkey;
    write_left_ = write_total_ = reth.length;
  }
  const bool fits = info.last ? payload_len == write_left_ : payload_len < write_left_;
  if ((core_.attrs.access_flags & kAccessRemoteWrite) == 0 || write_total_ > kMaxMessage || !fits) return false;
  // Without a receive request for the immediate data the message is dropped (IBA 9.8.2.2).
  if (info.imm && !core_.recv.has_current() && !core_.recv.available()) return false;
  if (payload_len != 0) {
    std::uint8_t* dst = nullptr;
    const std::uint32_t checked = info.first ? write_total_ : payload_len;
    if (mem.resolve_remote(core_.init.pd, core_.init.qpn, write_rkey_, write_va_, checked, kAccessRemoteWrite, &dst) !=
            MemStatus::ok ||
        !mem.copy_to_app(dst, p + info.header_len, payload_len)) {
      return false;
    }
    write_va_ += payload_len;
    write_left_ -= payload_len;
  }
  message_ = info.last ? Message::none : Message::write;
  if (!info.imm) return true;
  if (!core_.recv.has_current()) core_.recv.take();
  complete_recv(info, p, WcOpcode::recv_rdma_with_imm, write_total_);
  return true;
}

void Uc::complete_recv(const OpcodeInfo& info, const std::uint8_t* p, WcOpcode opcode, std::uint32_t byte_len) {
  Completion& wc = core_.recv.complete(opcode, 0, false);
  wc.byte_len = byte_len;
  wc.src_qp = core_.attrs.dest_qpn;
  wc.solicited = wire::BthView(p).solicited();
  if (info.imm) {
    wc.wc_flags = kWcWithImm;
    wc.imm_or_rkey = wire::ImmDt::read(p + info.imm_dt).raw;
  }
}

}  // namespace softrnic::ib
