// The work request builders of extended queue pairs (ibv_wr_post(3)). Nothing is posted before ibv_wr_complete();
// an error on the way is kept and reported there, and then none of the requests is posted.
#include "verbs_shim/ibverbs/post.h"

namespace softrnic::shim {
namespace {

void fail(Qp& qp, int error) {
  if (qp.build_error == 0) qp.build_error = error;
}

// Closes the request under construction.
void finish(Qp& qp) {
  if (qp.building == nullptr) return;
  int rc = qp.build_error == 0 ? qp.nic->accept_slot(qp.building) : 0;
  qp.building = nullptr;
  if (rc != 0) fail(qp, rc);
}

// Starts a request; null when the whole batch has already failed.
SendWqe* begin(Qp& qp, WrOpcode opcode) {
  finish(qp);
  if (qp.build_error != 0) return nullptr;
  SendWqe* w = qp.nic->next_slot();
  if (w == nullptr) {
    fail(qp, ENOMEM);
    return nullptr;
  }
  w->wr_id = qp.ib.wr_id;
  w->opcode = opcode;
  w->flags = static_cast<std::uint8_t>(qp.ib.wr_flags & kSendFlags & ~IBV_SEND_INLINE);  // the setter decides
  w->ah = 0;
  qp.building = w;
  return w;
}

SendWqe* begin_rdma(ibv_qp_ex* ib, WrOpcode opcode, std::uint32_t rkey, std::uint64_t remote_addr) {
  SendWqe* w = begin(to_shim(ib), opcode);
  if (w == nullptr) return nullptr;
  w->rkey = rkey;
  w->remote_addr = remote_addr;
  return w;
}

void wr_start(ibv_qp_ex* ib) {
  Qp& qp = to_shim(ib);
  qp.nic->begin_post();
  qp.building = nullptr;
  qp.build_error = 0;
}

int wr_complete(ibv_qp_ex* ib) {
  Qp& qp = to_shim(ib);
  finish(qp);
  int rc = qp.build_error;
  if (rc == 0) {
    qp.nic->end_post();
  } else {
    qp.nic->abort_post();
  }
  return rc;
}

void wr_abort(ibv_qp_ex* ib) {
  to_shim(ib).building = nullptr;
  to_shim(ib).nic->abort_post();
}

void wr_rdma_write(ibv_qp_ex* ib, std::uint32_t rkey, std::uint64_t remote_addr) {
  begin_rdma(ib, WrOpcode::rdma_write, rkey, remote_addr);
}

void wr_rdma_write_imm(ibv_qp_ex* ib, std::uint32_t rkey, std::uint64_t remote_addr, __be32 imm) {
  if (SendWqe* w = begin_rdma(ib, WrOpcode::rdma_write_with_imm, rkey, remote_addr)) w->imm_or_inv = imm;
}

void wr_rdma_read(ibv_qp_ex* ib, std::uint32_t rkey, std::uint64_t remote_addr) {
  begin_rdma(ib, WrOpcode::rdma_read, rkey, remote_addr);
}

void wr_atomic_cmp_swp(ibv_qp_ex* ib, std::uint32_t rkey, std::uint64_t remote_addr, std::uint64_t compare,
                       std::uint64_t swap) {
  SendWqe* w = begin_rdma(ib, WrOpcode::atomic_cmp_and_swp, rkey, remote_addr);
  if (w == nullptr) return;
  w->compare = compare;
  w->swap_or_add = swap;
}

void wr_atomic_fetch_add(ibv_qp_ex* ib, std::uint32_t rkey, std::uint64_t remote_addr, std::uint64_t add) {
  if (SendWqe* w = begin_rdma(ib, WrOpcode::atomic_fetch_and_add, rkey, remote_addr)) w->swap_or_add = add;
}

void wr_send(ibv_qp_ex* ib) { begin(to_shim(ib), WrOpcode::send); }

void wr_send_imm(ibv_qp_ex* ib, __be32 imm) {
  if (SendWqe* w = begin(to_shim(ib), WrOpcode::send_with_imm)) w->imm_or_inv = imm;
}

void wr_send_inv(ibv_qp_ex* ib, std::uint32_t rkey) {
  if (SendWqe* w = begin(to_shim(ib), WrOpcode::send_with_inv)) w->imm_or_inv = rkey;
}

void wr_local_inv(ibv_qp_ex* ib, std::uint32_t rkey) {
  if (SendWqe* w = begin(to_shim(ib), WrOpcode::local_inv)) w->imm_or_inv = rkey;
}

void wr_bind_mw(ibv_qp_ex* ib, ibv_mw* mw, std::uint32_t rkey, const ibv_mw_bind_info* info) {
  if (SendWqe* w = begin(to_shim(ib), WrOpcode::bind_mw)) set_bind(w, mw, rkey, *info);
}

void wr_set_ud_addr(ibv_qp_ex* ib, ibv_ah* ah, std::uint32_t remote_qpn, std::uint32_t remote_qkey) {
  SendWqe* w = to_shim(ib).building;
  if (w == nullptr) return;
  w->ah = ah ? to_shim(ah).nic->number : 0;
  w->remote_qpn = remote_qpn;
  w->remote_qkey = remote_qkey;
}

void wr_set_sge_list(ibv_qp_ex* ib, std::size_t n, const ibv_sge* list) {
  Qp& qp = to_shim(ib);
  if (qp.building == nullptr) return;
  qp.building->flags &= static_cast<std::uint8_t>(~kSendInline);  // the last setter counts
  if (int rc = set_sges(qp, qp.building, list, n)) fail(qp, rc);
}

void wr_set_sge(ibv_qp_ex* ib, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length) {
  const ibv_sge sge = {addr, length, lkey};
  wr_set_sge_list(ib, 1, &sge);
}

void wr_set_inline_data_list(ibv_qp_ex* ib, std::size_t n, const ibv_data_buf* list) {
  Qp& qp = to_shim(ib);
  SendWqe* w = qp.building;
  if (w == nullptr) return;
  w->flags |= kSendInline;
  w->num_sge = 0;
  w->length = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (int rc = append_inline(qp, w, list[i].addr, list[i].length)) return fail(qp, rc);
  }
}

void wr_set_inline_data(ibv_qp_ex* ib, void* addr, std::size_t length) {
  const ibv_data_buf buf = {addr, length};
  wr_set_inline_data_list(ib, 1, &buf);
}

// Operations that no QP is created with: calling their builders all the same fails the batch.
void wr_send_tso(ibv_qp_ex* ib, void*, std::uint16_t, std::uint16_t) { fail(to_shim(ib), EOPNOTSUPP); }
void wr_set_xrc_srqn(ibv_qp_ex* ib, std::uint32_t) { fail(to_shim(ib), EOPNOTSUPP); }
void wr_atomic_write(ibv_qp_ex* ib, std::uint32_t, std::uint64_t, const void*) { fail(to_shim(ib), EOPNOTSUPP); }
void wr_flush(ibv_qp_ex* ib, std::uint32_t, std::uint64_t, std::size_t, std::uint8_t, std::uint8_t) {
  fail(to_shim(ib), EOPNOTSUPP);
}

}  // namespace

void install_builders(Qp& qp) {
  ibv_qp_ex& ib = qp.ib;
  ib.wr_start = wr_start;
  ib.wr_complete = wr_complete;
  ib.wr_abort = wr_abort;
  ib.wr_rdma_write = wr_rdma_write;
  ib.wr_rdma_write_imm = wr_rdma_write_imm;
  ib.wr_rdma_read = wr_rdma_read;
  ib.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
  ib.wr_atomic_fetch_add = wr_atomic_fetch_add;
  ib.wr_atomic_write = wr_atomic_write;
  ib.wr_send = wr_send;
  ib.wr_send_imm = wr_send_imm;
  ib.wr_send_inv = wr_send_inv;
  ib.wr_send_tso = wr_send_tso;
  ib.wr_local_inv = wr_local_inv;
  ib.wr_bind_mw = wr_bind_mw;
  ib.wr_set_ud_addr = wr_set_ud_addr;
  ib.wr_set_xrc_srqn = wr_set_xrc_srqn;
  ib.wr_set_sge = wr_set_sge;
  ib.wr_set_sge_list = wr_set_sge_list;
  ib.wr_set_inline_data = wr_set_inline_data;
  ib.wr_set_inline_data_list = wr_set_inline_data_list;
  qp.newer_builders[0] = reinterpret_cast<void*>(wr_flush);  // rdma-core 45 put it behind wr_atomic_write
  qp.has_builders = true;
}

}  // namespace softrnic::shim

using namespace softrnic::shim;

SOFTRNIC_ABI ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) { return to_shim(qp).has_builders ? &to_shim(qp).ib : nullptr; }
