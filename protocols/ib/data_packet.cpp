#include "protocols/ib/data_packet.h"

#include "protocols/common/psn.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::ib {
namespace {

// First, middle, last and only opcode of a request.
struct OpSet {
  Op first, middle, last, only;
};

constexpr OpSet ops_of(WrOpcode op) {
  switch (op) {
    case WrOpcode::rdma_write: return {Op::write_first, Op::write_middle, Op::write_last, Op::write_only};
    case WrOpcode::rdma_write_with_imm:
      return {Op::write_first, Op::write_middle, Op::write_last_imm, Op::write_only_imm};
    case WrOpcode::send_with_imm: return {Op::send_first, Op::send_middle, Op::send_last_imm, Op::send_only_imm};
    case WrOpcode::send_with_inv: return {Op::send_first, Op::send_middle, Op::send_last_inv, Op::send_only_inv};
    default: return {Op::send_first, Op::send_middle, Op::send_last, Op::send_only};
  }
}

}  // namespace

WcStatus gather_message(QpCore& core, MemoryPort& mem, std::uint32_t index, std::uint32_t offset, std::uint32_t length,
                        PayloadRef* out) {
  SendQueue& sq = *core.init.sq;
  const SendWqe& w = sq.at(index);
  if (w.num_sge == 0) {
    if (length != 0) out->add(sq.inline_at(index) + offset, length, false);
    return WcStatus::success;
  }
  const Sge* s = sq.sges_at(index);
  const Sge* end = s + w.num_sge;
  while (length != 0) {
    while (s != end && offset >= s->length) offset -= s++->length;
    if (s == end || out->count == PayloadRef::kMaxPieces) return WcStatus::loc_qp_op_err;
    const std::uint32_t room = s->length - offset;
    const std::uint32_t n = length < room ? length : room;
    std::uint8_t* src = nullptr;
    if (mem.resolve_local(core.init.pd, s->lkey, s->addr + offset, n, 0, &src) != MemStatus::ok) {
      return WcStatus::loc_prot_err;
    }
    out->add(src, n, true);
    offset += n;
    length -= n;
  }
  return WcStatus::success;
}

WcStatus build_data_packet(QpCore& core, MemoryPort& mem, std::uint32_t index, const SendWqe& w, std::uint32_t number,
                           std::uint32_t psn, std::uint8_t transport, bool ack_req, TxPacket* out) {
  const std::uint32_t offset = number << core.mtu_shift;
  const std::uint32_t rest = w.length - offset;
  const bool first = number == 0;
  const bool last = rest <= core.mtu();
  const std::uint32_t length = last ? rest : core.mtu();

  out->payload.clear();
  const WcStatus status = gather_message(core, mem, index, offset, length, &out->payload);
  if (status != WcStatus::success) return status;

  const OpSet ops = ops_of(w.opcode);
  const Op op = first ? (last ? ops.only : ops.first) : (last ? ops.last : ops.middle);
  const bool is_write = w.opcode <= WrOpcode::rdma_write_with_imm;
  const bool imm = w.opcode == WrOpcode::send_with_imm || w.opcode == WrOpcode::rdma_write_with_imm;
  out->pad = static_cast<std::uint8_t>(-length & 3);
  const bool ud = transport == kTransportUd;
  wire::Bth bth;
  bth.opcode = opcode_of(transport, op);
  // SE is allowed on the last packet of a SEND or an RDMA WRITE with immediate data (IBA 9.2.3).
  bth.solicited = last && (w.flags & kSendSolicited) != 0 && (!is_write || imm);
  bth.pad_count = out->pad;
  bth.pkey = core.attrs.pkey;
  bth.dest_qpn = ud ? w.remote_qpn & kPsnMask : core.attrs.dest_qpn;
  bth.ack_req = ack_req;
  bth.psn = psn & kPsnMask;
  bth.write(out->header);
  std::uint8_t* p = out->header + wire::kBthSize;
  if (ud) {
    // A Q_Key with the high bit set stands for the QP's own (IBA 10.2.5).
    const std::uint32_t qkey = (w.remote_qkey >> 31) != 0 ? core.attrs.qkey : w.remote_qkey;
    wire::Deth{qkey, core.init.qpn}.write(p);
    p += wire::Deth::kSize;
  }
  if (is_write && first) {
    wire::Reth{w.remote_addr, w.rkey, w.length}.write(p);
    p += wire::Reth::kSize;
  }
  if (last && imm) {
    wire::ImmDt{w.imm_or_inv}.write(p);
    p += wire::ImmDt::kSize;
  } else if (last && w.opcode == WrOpcode::send_with_inv) {
    wire::Ieth{w.imm_or_inv}.write(p);
    p += wire::Ieth::kSize;
  }
  out->header_len = static_cast<std::uint8_t>(p - out->header);
  out->is_request = true;
  out->dest_qpn = bth.dest_qpn;
  out->ah = w.ah;
  core.counters.sent_pkts++;
  core.counters.sent_bytes += static_cast<std::uint64_t>(out->header_len) + length + out->pad;
  return WcStatus::success;
}

}  // namespace softrnic::ib
