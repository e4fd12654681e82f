#include "protocols/ib/ud.h"

#include "protocols/common/psn.h"
#include "protocols/ib/data_packet.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::ib {

void Ud::drain(bool notify) {
  core_.attrs.sq_draining = false;
  if (notify) core_.raise(AsyncEvent::sq_drained);
}

bool Ud::poll_transmit(MemoryPort& mem, TxPacket* out) {
  if (!wants_transmit()) return false;
  const std::uint32_t index = core_.send.done();
  SendWqe& w = core_.init.sq->at(index);
  WcStatus status = WcStatus::success;
  if (w.opcode != WrOpcode::send && w.opcode != WrOpcode::send_with_imm) {
    status = WcStatus::loc_qp_op_err;
  } else if (w.length > core_.mtu()) {
    status = WcStatus::loc_len_err;  // IBA 9.8.3.1: a message is one packet
  } else {
    status = build_data_packet<kTransportUd>(core_, mem, index, w, 0, psn_, false, out);
  }
  if (status != WcStatus::success) {
    core_.enter_send_error(status);
    return false;
  }
  psn_ = psn_add(psn_, 1);
  core_.send.complete_to(index + 1);
  return true;
}

void Ud::on_gather_fault() {
  core_.send.undo_last();
  core_.enter_send_error(WcStatus::loc_prot_err);
}

void Ud::on_packet(MemoryPort& mem, const OpcodeInfo& info, const RxPacket& packet, std::uint32_t payload_len) {
  const std::uint8_t* p = packet.bth.data();
  const auto deth = wire::Deth::read(p + info.deth);
  // IBA 10.2.5: silently dropped without the right Q_Key.
  if (deth.qkey != core_.attrs.qkey || payload_len > core_.mtu() || !core_.recv.take()) {
    core_.counters.drops++;
    return;
  }
  RecvSide& recv = core_.recv;
  if (recv.capacity() < std::uint64_t{kGrhArea} + payload_len) {
    // The QP stays usable: anyone could send a datagram that is too long.
    recv.fail(WcStatus::loc_len_err, static_cast<std::uint32_t>(WcStatus::loc_len_err), 0, false);
    return;
  }
  static constexpr std::uint8_t kNoGrh[kGrhArea] = {};
  if (!recv.place(mem, packet.grh != nullptr ? packet.grh : kNoGrh, kGrhArea) ||
      !recv.place(mem, p + info.header_len, payload_len)) {
    recv.fail(WcStatus::loc_prot_err, static_cast<std::uint32_t>(WcStatus::loc_prot_err), 0, false);
    core_.enter_error();
    return;
  }
  Completion& wc = recv.complete(WcOpcode::recv, 0, false);
  wc.byte_len = kGrhArea + payload_len;
  wc.src_qp = deth.src_qpn;
  wc.sl = packet.sl;
  wc.solicited = wire::BthView(p).solicited();
  if (packet.has_grh) wc.wc_flags |= kWcGrh;
  if (info.imm) {
    wc.wc_flags |= kWcWithImm;
    wc.imm_or_rkey = wire::ImmDt::read(p + info.imm_dt).raw;
  }
}

}  // namespace softrnic::ib
