// Building SEND and RDMA WRITE packets; the same on RC, UC and UD but for the transport bits and the
// DETH.
#pragma once

#include "protocols/common/psn.h"
#include "protocols/ib/opcode.h"
#include "protocols/ib/qp_core.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::ib {

// True for the requests that are a message of data packets.
constexpr bool is_data(WrOpcode op) { return op <= WrOpcode::send_with_imm || op == WrOpcode::send_with_inv; }

// What a request's packets look like.
struct DataOp {
  Op op[4];                                          // of a Middle, First, Last and Only packet
  bool reth;                                         // RETH in the first packet
  bool solicitable;                                  // SE is allowed on the last packet (IBA 9.2.3)
  enum Tail : std::uint8_t { none, imm, inv } tail;  // header of the last packet
};

// By WrOpcode; entries of others than data requests are empty.
inline constexpr DataOp kDataOps[] = {
    {{Op::write_middle, Op::write_first, Op::write_last, Op::write_only}, true, false, DataOp::none},
    {{Op::write_middle, Op::write_first, Op::write_last_imm, Op::write_only_imm}, true, true, DataOp::imm},
    {{Op::send_middle, Op::send_first, Op::send_last, Op::send_only}, false, true, DataOp::none},
    {{Op::send_middle, Op::send_first, Op::send_last_imm, Op::send_only_imm}, false, true, DataOp::imm},
    {},
    {},
    {},
    {},
    {},
    {{Op::send_middle, Op::send_first, Op::send_last_inv, Op::send_only_inv}, false, true, DataOp::inv},
};
static_assert(static_cast<int>(WrOpcode::send_with_inv) == 9 && static_cast<int>(WrOpcode::send_with_imm) == 3);

// Adds bytes [offset, offset + length) of an element list to `out`, checking the L_Key of what is
// touched. Not success: the status the request fails with.
WcStatus gather_list(const QpCore& core, MemoryPort& mem, const Sge* sges, std::uint32_t num_sge, std::uint32_t offset,
                     std::uint32_t length, PayloadRef* out);

// The same for the message of the request `w` at `index` in the send queue.
[[gnu::always_inline]] inline WcStatus gather_message(const QpCore& core, MemoryPort& mem, std::uint32_t index,
                                                      const SendWqe& w, std::uint32_t offset, std::uint32_t length,
                                                      PayloadRef* out) {
  if (length == 0) return WcStatus::success;
  SendQueue& sq = *core.init.sq;
  if (w.num_sge == 0) {
    out->add(sq.inline_at(index) + offset, length, false);
    return WcStatus::success;
  }
  const Sge* s = sq.sges_at(index);
  if (w.num_sge != 1) return gather_list(core, mem, s, w.num_sge, offset, length, out);
  std::uint8_t* src = nullptr;
  if (mem.resolve_local(core.init.pd, s->lkey, s->addr + offset, length, 0, &src) != MemStatus::ok) {
    return WcStatus::loc_prot_err;
  }
  out->add(src, length, true);
  return WcStatus::success;
}

// Packet number `number` of the message of request `w` at `index` in the send queue, sent with `psn`.
// The caller has checked that number < packets(w.length) and that `w` is a data request. Not success:
// the status the request fails with, a local key error for instance.
template <std::uint8_t kTransport>
inline WcStatus build_data_packet(QpCore& core, MemoryPort& mem, std::uint32_t index, const SendWqe& w,
                                  std::uint32_t number, std::uint32_t psn, bool ack_req, TxPacket* out) {
  constexpr bool kUd = kTransport == kTransportUd;
  const std::uint32_t offset = number << core.mtu_shift;
  const std::uint32_t rest = w.length - offset;
  const bool first = number == 0;
  const bool last = rest <= core.mtu();
  const std::uint32_t length = last ? rest : core.mtu();

  out->payload.clear();
  const WcStatus status = gather_message(core, mem, index, w, offset, length, &out->payload);
  if (status != WcStatus::success) return status;

  const DataOp& ops = kDataOps[static_cast<std::size_t>(w.opcode)];
  const Op op = ops.op[static_cast<unsigned>(first) | static_cast<unsigned>(last) << 1];
  const std::uint32_t pad = -length & 3;
  wire::Bth bth;
  bth.opcode = opcode_of(kTransport, op);
  bth.solicited = last && ops.solicitable && (w.flags & kSendSolicited) != 0;
  bth.pad_count = static_cast<std::uint8_t>(pad);
  bth.pkey = core.attrs.pkey;
  bth.dest_qpn = kUd ? w.remote_qpn & kPsnMask : core.attrs.dest_qpn;
  bth.ack_req = ack_req;
  bth.psn = psn & kPsnMask;
  bth.write(out->header);
  std::uint32_t at = wire::kBthSize;
  if constexpr (kUd) {
    // A Q_Key with the high bit set stands for the QP's own (IBA 10.2.5).
    const std::uint32_t qkey = (w.remote_qkey >> 31) != 0 ? core.attrs.qkey : w.remote_qkey;
    wire::Deth{qkey, core.init.qpn}.write(out->header + at);
    at += wire::Deth::kSize;
  }
  if (first && ops.reth) {
    wire::Reth{w.remote_addr, w.rkey, w.length}.write(out->header + at);
    at += wire::Reth::kSize;
  }
  if (last && ops.tail != DataOp::none) {
    if (ops.tail == DataOp::imm) {
      wire::ImmDt{w.imm_or_inv}.write(out->header + at);
    } else {
      wire::Ieth{w.imm_or_inv}.write(out->header + at);
    }
    at += wire::ImmDt::kSize;
  }
  out->header_len = static_cast<std::uint8_t>(at);
  out->pad = static_cast<std::uint8_t>(pad);
  out->is_request = true;
  out->dest_qpn = bth.dest_qpn;
  out->ah = w.ah;
  core.counters.sent_pkts++;
  core.counters.sent_bytes += at + length + pad;
  return WcStatus::success;
}

}  // namespace softrnic::ib
