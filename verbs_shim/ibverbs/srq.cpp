// Shared receive queues.
#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  nic::SharedReceiveQueue& queue = *to_shim(srq).nic;
  for (; wr != nullptr; wr = wr->next) {
    int rc =
        wr->num_sge < 0
            ? EINVAL
            : queue.post(wr->wr_id, {reinterpret_cast<const Sge*>(wr->sg_list), static_cast<std::size_t>(wr->num_sge)});
    if (rc != 0) {
      *bad_wr = wr;
      return rc;
    }
  }
  return 0;
}

}  // namespace softrnic::shim

using namespace softrnic;
using namespace softrnic::shim;

SOFTRNIC_ABI ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  return guarded([&]() -> ibv_srq* {
    auto srq = std::make_unique<Srq>();
    ibv_srq_attr& a = init->attr;
    // srq_limit is not used at creation (ibv_create_srq(3)).
    int rc = nic::SharedReceiveQueue::create(*to_shim(pd).nic, a.max_wr, a.max_sge, 0, &srq->ib, &srq->nic);
    if (rc != 0) return made<ibv_srq>(rc, nullptr);
    std::uint32_t limit;
    srq->nic->query(&a.max_wr, &a.max_sge, &limit);
    srq->ib.context = pd->context;
    srq->ib.srq_context = init->srq_context;
    srq->ib.pd = pd;
    pthread_mutex_init(&srq->ib.mutex, nullptr);
    pthread_cond_init(&srq->ib.cond, nullptr);
    return &srq.release()->ib;
  });
}

SOFTRNIC_ABI int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) return status(EINVAL);
  nic::SharedReceiveQueue& queue = *to_shim(srq).nic;
  int rc = 0;
  if (mask & IBV_SRQ_MAX_WR) rc = guarded([&] { return queue.resize(attr->max_wr); });
  if (rc == 0 && (mask & IBV_SRQ_LIMIT)) rc = queue.modify_limit(attr->srq_limit);
  return status(rc);
}

SOFTRNIC_ABI int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
  to_shim(srq).nic->query(&attr->max_wr, &attr->max_sge, &attr->srq_limit);
  return 0;
}

SOFTRNIC_ABI int ibv_destroy_srq(ibv_srq* srq) {
  Srq& s = to_shim(srq);
  int rc = s.nic->destroy();
  if (rc != 0) return status(rc);
  wait_for_acks(&srq->mutex, &srq->cond, &srq->events_completed, s.async_reported);
  pthread_cond_destroy(&srq->cond);
  pthread_mutex_destroy(&srq->mutex);
  delete &s;
  return 0;
}
