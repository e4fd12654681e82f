// Completion queues: creation of both kinds, destruction, ibv_poll_cq.
#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {

int create_cq(ibv_context* context, std::uint32_t cqe, void* cq_context, ibv_comp_channel* channel,
              std::uint32_t comp_vector, Cq** out) {
  if (comp_vector >= static_cast<std::uint32_t>(context->num_comp_vectors)) return EINVAL;
  nic::CompletionChannel* nic_channel = channel ? to_shim(channel).nic : nullptr;
  auto cq = std::make_unique<Cq>();
  int rc = nic::CompletionQueue::create(*to_shim(context).nic, cqe, nic_channel, &cq->ib, &cq->nic);
  if (rc != 0) return rc;
  cq->ib.context = context;
  cq->ib.channel = channel;
  cq->ib.cq_context = cq_context;
  cq->ib.cqe = static_cast<int>(cq->nic->capacity());
  pthread_mutex_init(&cq->ib.mutex, nullptr);
  pthread_cond_init(&cq->ib.cond, nullptr);
  if (channel) {
    pthread_mutex_lock(&context->mutex);
    ++channel->refcnt;
    pthread_mutex_unlock(&context->mutex);
  }
  *out = cq.release();
  return 0;
}

int poll_cq(ibv_cq* cq, int num_entries, ibv_wc* wc) {
  return to_shim(cq).nic->poll(num_entries, [wc](int i, const nic::CqEntry& e) {
    const Completion& c = e.wc;
    ibv_wc& w = wc[i];
    w.wr_id = c.wr_id;
    w.status = static_cast<ibv_wc_status>(c.status);
    w.opcode = static_cast<ibv_wc_opcode>(c.opcode);
    w.vendor_err = c.vendor_err;
    w.byte_len = c.byte_len;
    w.imm_data = c.imm_or_rkey;
    w.qp_num = c.qp_num;
    w.src_qp = c.src_qp;
    w.wc_flags = c.wc_flags;
    w.pkey_index = c.pkey_index;
    w.slid = c.slid;
    w.sl = c.sl;
    w.dlid_path_bits = 0;
  });
}

int req_notify_cq(ibv_cq* cq, int solicited_only) { return to_shim(cq).nic->request_notify(solicited_only != 0); }

}  // namespace softrnic::shim

using namespace softrnic;
using namespace softrnic::shim;

SOFTRNIC_ABI ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                                   int comp_vector) {
  if (cqe < 1 || comp_vector < 0) return made<ibv_cq>(EINVAL, nullptr);
  return guarded([&]() -> ibv_cq* {
    Cq* cq = nullptr;
    int rc = create_cq(context, static_cast<std::uint32_t>(cqe), cq_context, channel,
                       static_cast<std::uint32_t>(comp_vector), &cq);
    return rc == 0 ? ibv_cq_ex_to_cq(&cq->ib) : made<ibv_cq>(rc, nullptr);
  });
}

SOFTRNIC_ABI int ibv_resize_cq(ibv_cq* cq, int cqe) {
  if (cqe < 1) return status(EINVAL);
  int rc = guarded([&] { return to_shim(cq).nic->resize(static_cast<std::uint32_t>(cqe)); });
  if (rc == 0) cq->cqe = static_cast<int>(to_shim(cq).nic->capacity());
  return status(rc);
}

SOFTRNIC_ABI int ibv_destroy_cq(ibv_cq* cq) {
  Cq& c = to_shim(cq);
  int rc = c.nic->destroy();
  if (rc != 0) return status(rc);
  // Its queued events are gone with it; those already delivered must be acknowledged first (ibv_get_cq_event(3)).
  wait_for_acks(&cq->mutex, &cq->cond, &cq->comp_events_completed, c.comp_reported);
  wait_for_acks(&cq->mutex, &cq->cond, &cq->async_events_completed, c.async_reported);
  if (cq->channel) {
    pthread_mutex_lock(&cq->context->mutex);
    --cq->channel->refcnt;
    pthread_mutex_unlock(&cq->context->mutex);
  }
  pthread_cond_destroy(&cq->cond);
  pthread_mutex_destroy(&cq->mutex);
  delete &c;
  return 0;
}
