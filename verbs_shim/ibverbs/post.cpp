// ibv_post_send() and ibv_post_recv(): straight into the queue's slots, no allocation, no intermediate copies.
#include "verbs_shim/ibverbs/post.h"

namespace softrnic::shim {
namespace {

// Elements or inline bytes.
[[gnu::always_inline]] inline int fill_data(Qp& qp, SendWqe* w, const ibv_send_wr& wr) {
  if (wr.num_sge < 0) return EINVAL;
  std::size_t n = static_cast<std::size_t>(wr.num_sge);
  if (!(wr.send_flags & IBV_SEND_INLINE)) return set_sges(qp, w, wr.sg_list, n);
  for (std::size_t i = 0; i < n; ++i) {
    const ibv_sge& e = wr.sg_list[i];
    int rc = append_inline(qp, w, reinterpret_cast<const void*>(e.addr), e.length);
    if (rc != 0) return rc;
  }
  return 0;
}

void fill_destination(const Qp& qp, SendWqe* w, const ibv_send_wr& wr) {
  if (qp.ib.qp_base.qp_type != IBV_QPT_UD) return;
  w->ah = wr.wr.ud.ah ? to_shim(wr.wr.ud.ah).nic->number : 0;
  w->remote_qpn = wr.wr.ud.remote_qpn;
  w->remote_qkey = wr.wr.ud.remote_qkey;
}

// Fills every field that the operation uses; num_sge and length are 0 before.
[[gnu::always_inline]] inline int fill(Qp& qp, SendWqe* w, const ibv_send_wr& wr) {
  if (wr.send_flags & ~kSendFlags) return EINVAL;  // checksum offload is for raw packets
  w->wr_id = wr.wr_id;
  const unsigned opcode = number(wr.opcode);
  w->opcode = static_cast<WrOpcode>(opcode);
  w->flags = static_cast<std::uint8_t>(wr.send_flags);
  switch (opcode) {
    case IBV_WR_SEND_WITH_IMM:
      w->imm_or_inv = wr.imm_data;
      [[fallthrough]];
    case IBV_WR_SEND:
      fill_destination(qp, w, wr);
      return fill_data(qp, w, wr);
    case IBV_WR_SEND_WITH_INV:
      w->imm_or_inv = wr.invalidate_rkey;
      return fill_data(qp, w, wr);
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      w->imm_or_inv = wr.imm_data;
      [[fallthrough]];
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_READ:
      w->remote_addr = wr.wr.rdma.remote_addr;
      w->rkey = wr.wr.rdma.rkey;
      return fill_data(qp, w, wr);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      w->remote_addr = wr.wr.atomic.remote_addr;
      w->rkey = wr.wr.atomic.rkey;
      w->compare = wr.wr.atomic.compare_add;
      w->swap_or_add = opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? wr.wr.atomic.swap : wr.wr.atomic.compare_add;
      return fill_data(qp, w, wr);
    case IBV_WR_LOCAL_INV:
      w->imm_or_inv = wr.invalidate_rkey;
      return 0;
    case IBV_WR_BIND_MW:
      if (wr.bind_mw.mw == nullptr) return EINVAL;
      set_bind(w, wr.bind_mw.mw, wr.bind_mw.rkey, wr.bind_mw.bind_info);
      return 0;
    default:
      return EINVAL;
  }
}

}  // namespace

int post_send(ibv_qp* ib, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  Qp& qp = to_shim(ib);
  nic::QueuePair& q = *qp.nic;
  int rc = 0;
  q.begin_post();
  for (; wr != nullptr; wr = wr->next) {
    SendWqe* w = q.next_slot();
    rc = w == nullptr ? ENOMEM : fill(qp, w, *wr);
    if (rc == 0) rc = q.accept_slot(w);
    if (rc != 0) {
      *bad_wr = wr;
      break;
    }
  }
  q.end_post();
  return rc;
}

int post_recv(ibv_qp* ib, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  nic::QueuePair& q = *to_shim(ib).nic;
  for (; wr != nullptr; wr = wr->next) {
    int rc = wr->num_sge < 0 ? EINVAL
                             : q.post_recv(wr->wr_id, {reinterpret_cast<const Sge*>(wr->sg_list),
                                                       static_cast<std::size_t>(wr->num_sge)});
    if (rc != 0) {
      *bad_wr = wr;
      return rc;
    }
  }
  return 0;
}

}  // namespace softrnic::shim
