// Queue pairs: creation of both kinds, modify, query, destruction, multicast.
#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {
namespace {

constexpr std::uint64_t kUdOps = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
constexpr std::uint64_t kUcOps = kUdOps | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                 IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
constexpr std::uint64_t kRcOps = kUcOps | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV;

// Operations a QP of `type` can have (ibv_wr_post(3)); 0 for a type that is not supported.
std::uint64_t operations_of(unsigned type) {
  switch (type) {
    case IBV_QPT_RC:
      return kRcOps;
    case IBV_QPT_UC:
      return kUcOps;
    case IBV_QPT_UD:
      return kUdOps;
    default:
      return 0;
  }
}

// `attr` may be either public struct: the extended one begins with the plain one.
int create(ibv_pd* pd, ibv_qp_init_attr* attr, std::unique_ptr<Qp>* out) {
  if (operations_of(number(attr->qp_type)) == 0) return EOPNOTSUPP;
  if (attr->send_cq == nullptr || attr->recv_cq == nullptr) return EINVAL;
  auto qp = std::make_unique<Qp>();
  nic::QpCreate in;
  in.type = static_cast<ib::QpType>(attr->qp_type);
  in.pd = to_shim(pd).nic;
  in.send_cq = to_shim(attr->send_cq).nic;
  in.recv_cq = to_shim(attr->recv_cq).nic;
  in.srq = attr->srq ? to_shim(attr->srq).nic : nullptr;
  in.caps = {attr->cap.max_send_wr, attr->cap.max_recv_wr, attr->cap.max_send_sge, attr->cap.max_recv_sge,
             attr->cap.max_inline_data};
  in.sq_sig_all = attr->sq_sig_all != 0;
  in.user = &qp->ib;
  int rc = nic::QueuePair::create(in, &qp->nic);
  if (rc != 0) return rc;

  attr->cap = {in.caps.max_send_wr, in.caps.max_recv_wr, in.caps.max_send_sge, in.caps.max_recv_sge,
               in.caps.max_inline};
  qp->max_send_sge = in.caps.max_send_sge;
  qp->max_inline = in.caps.max_inline;
  qp->sq_sig_all = in.sq_sig_all;
  ibv_qp& b = qp->ib.qp_base;
  b.context = pd->context;
  b.qp_context = attr->qp_context;
  b.pd = pd;
  b.send_cq = attr->send_cq;
  b.recv_cq = attr->recv_cq;
  b.srq = attr->srq;
  b.handle = b.qp_num = qp->nic->qpn();
  b.state = IBV_QPS_RESET;
  b.qp_type = attr->qp_type;
  pthread_mutex_init(&b.mutex, nullptr);
  pthread_cond_init(&b.cond, nullptr);
  *out = std::move(qp);
  return 0;
}

nic::QpAttrsAll to_attrs(const ibv_qp_attr& a) {
  nic::QpAttrsAll r;
  r.state = static_cast<ib::QpState>(number(a.qp_state));
  r.cur_state = static_cast<ib::QpState>(number(a.cur_qp_state));
  r.path_mtu_enum = static_cast<std::uint8_t>(number(a.path_mtu));
  r.av = to_address_vector(a.ah_attr);
  r.pkey_index = a.pkey_index;
  r.port_num = a.port_num;
  r.en_sqd_async_notify = a.en_sqd_async_notify != 0;
  r.ib.dest_qpn = a.dest_qp_num;
  r.ib.sq_psn = a.sq_psn & 0xFFFFFF;
  r.ib.rq_psn = a.rq_psn & 0xFFFFFF;
  r.ib.qkey = a.qkey;
  r.ib.access_flags = a.qp_access_flags;
  r.ib.timeout = a.timeout;
  r.ib.retry_cnt = a.retry_cnt;
  r.ib.rnr_retry = a.rnr_retry;
  r.ib.min_rnr_timer = a.min_rnr_timer;
  r.ib.max_rd_atomic = a.max_rd_atomic;
  r.ib.max_dest_rd_atomic = a.max_dest_rd_atomic;
  return r;
}

void from_attrs(const nic::QpAttrsAll& r, ibv_qp_attr* a) {
  memset(a, 0, offsetof(ibv_qp_attr, rate_limit));  // older programs' struct ends there
  a->qp_state = static_cast<ibv_qp_state>(r.state);
  a->cur_qp_state = static_cast<ibv_qp_state>(r.state);
  a->path_mtu = static_cast<ibv_mtu>(r.path_mtu_enum);
  a->path_mig_state = IBV_MIG_MIGRATED;
  a->ah_attr = from_address_vector(r.av);
  a->pkey_index = r.pkey_index;
  a->port_num = r.port_num;
  a->en_sqd_async_notify = r.en_sqd_async_notify;
  a->sq_draining = r.ib.sq_draining;
  a->dest_qp_num = r.ib.dest_qpn;
  a->sq_psn = r.ib.sq_psn;
  a->rq_psn = r.ib.rq_psn;
  a->qkey = r.ib.qkey;
  a->qp_access_flags = r.ib.access_flags;
  a->timeout = r.ib.timeout;
  a->retry_cnt = r.ib.retry_cnt;
  a->rnr_retry = r.ib.rnr_retry;
  a->min_rnr_timer = r.ib.min_rnr_timer;
  a->max_rd_atomic = r.ib.max_rd_atomic;
  a->max_dest_rd_atomic = r.ib.max_dest_rd_atomic;
}

Gid to_gid(const ibv_gid& gid) {
  Gid g;
  memcpy(g.raw, gid.raw, sizeof g.raw);
  return g;
}

}  // namespace

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* attr) {
  constexpr std::uint32_t kKnown =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  if (attr->comp_mask & ~kKnown) return made<ibv_qp>(EOPNOTSUPP, nullptr);
  if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || attr->pd == nullptr) return made<ibv_qp>(EINVAL, nullptr);
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr->create_flags != 0) {
    return made<ibv_qp>(EOPNOTSUPP, nullptr);
  }
  bool builders = (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if (builders && (attr->send_ops_flags & ~operations_of(number(attr->qp_type))))
    return made<ibv_qp>(EOPNOTSUPP, nullptr);
  return guarded([&]() -> ibv_qp* {
    std::unique_ptr<Qp> qp;
    int rc = create(attr->pd, reinterpret_cast<ibv_qp_init_attr*>(attr), &qp);
    if (rc != 0) return made<ibv_qp>(rc, nullptr);
    if (builders) install_builders(*qp);
    return &qp.release()->ib.qp_base;
  });
}

}  // namespace softrnic::shim

using namespace softrnic;
using namespace softrnic::shim;

SOFTRNIC_ABI ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  return guarded([&]() -> ibv_qp* {
    std::unique_ptr<Qp> qp;
    int rc = create(pd, attr, &qp);
    return rc == 0 ? &qp.release()->ib.qp_base : made<ibv_qp>(rc, nullptr);
  });
}

SOFTRNIC_ABI int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int attr_mask) {
  int rc = guarded([&] { return to_shim(qp).nic->modify(to_attrs(*attr), static_cast<std::uint32_t>(attr_mask)); });
  if (rc == 0 && (attr_mask & IBV_QP_STATE)) qp->state = attr->qp_state;
  return status(rc);
}

// The mask is a hint (ibv_query_qp(3)): everything is filled in.
SOFTRNIC_ABI int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int attr_mask, ibv_qp_init_attr* init) {
  nic::QpAttrsAll attrs;
  nic::QpCaps caps;
  to_shim(qp).nic->query(&attrs, &caps);
  from_attrs(attrs, attr);
  attr->cap = {caps.max_send_wr, caps.max_recv_wr, caps.max_send_sge, caps.max_recv_sge, caps.max_inline};
  if (attr_mask & IBV_QP_STATE) qp->state = attr->qp_state;
  if (init) {
    init->qp_context = qp->qp_context;
    init->send_cq = qp->send_cq;
    init->recv_cq = qp->recv_cq;
    init->srq = qp->srq;
    init->cap = attr->cap;
    init->qp_type = qp->qp_type;
    init->sq_sig_all = to_shim(qp).sq_sig_all;
  }
  return 0;
}

SOFTRNIC_ABI int ibv_destroy_qp(ibv_qp* qp) {
  Qp& q = to_shim(qp);
  int rc = q.nic->destroy();
  if (rc != 0) return status(rc);
  wait_for_acks(&qp->mutex, &qp->cond, &qp->events_completed, q.async_reported);
  pthread_cond_destroy(&qp->cond);
  pthread_mutex_destroy(&qp->mutex);
  delete &q;
  return 0;
}

SOFTRNIC_ABI int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  return status(guarded([&] { return to_shim(qp).nic->attach_mcast(to_gid(*gid), lid); }));
}

SOFTRNIC_ABI int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  return status(to_shim(qp).nic->detach_mcast(to_gid(*gid), lid));
}

// A message's last bytes are stored last, but other memory order than that is not promised.
SOFTRNIC_ABI int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }
