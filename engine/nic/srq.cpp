// Shared receive queues.
#include <cerrno>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {

int SharedReceiveQueue::create(ProtectionDomain& pd, std::uint32_t max_wr, std::uint32_t max_sge, std::uint32_t limit,
                               void* user, SharedReceiveQueue** out) {
  Context& ctx = *pd.context;
  Vf::Impl& v = *pd.engine;
  if (const int rc = v.usable(); rc != 0) return rc;
  const control::DeviceRecord& dev = ctx.device();
  if (max_wr == 0 || max_wr > dev.max_srq_wr || max_sge > dev.max_srq_sge || limit > max_wr) return EINVAL;
  if (!take_one(v.use[ctx.device_index()].srqs, dev.max_srq)) return ENOMEM;
  auto* srq = new SharedReceiveQueue;
  srq->pd = &pd;
  srq->user = user;
  srq->limit = limit;
  srq->queue = std::make_unique<RecvQueue>(max_wr, max_sge == 0 ? 1 : max_sge);
  pd.users.fetch_add(1, std::memory_order_relaxed);
  *out = srq;
  return 0;
}

int SharedReceiveQueue::destroy() {
  if (users.load(std::memory_order_acquire) != 0) return EBUSY;
  Context& ctx = *pd->context;
  Vf::Impl& v = *pd->engine;
  if (!v.inherited()) ctx.async.remove_if([this](const AsyncEventRecord& e) { return e.srq == this; });
  v.use[ctx.device_index()].srqs.fetch_sub(1, std::memory_order_relaxed);
  pd->users.fetch_sub(1, std::memory_order_release);
  delete this;
  return 0;
}

int SharedReceiveQueue::modify_limit(std::uint32_t new_limit) {
  Vf::Impl& v = *pd->engine;
  if (const int rc = v.usable(); rc != 0) return rc;
  v.lock_progress();
  const bool fits = new_limit <= queue->depth();
  if (fits) limit = new_limit;
  v.unlock_progress();
  return fits ? 0 : EINVAL;
}

int SharedReceiveQueue::resize(std::uint32_t max_wr) {
  Context& ctx = *pd->context;
  Vf::Impl& v = *pd->engine;
  if (const int rc = v.usable(); rc != 0) return rc;
  if (max_wr == 0 || max_wr > ctx.device().max_srq_wr) return EINVAL;
  v.lock_progress();
  bool done = false;
  {
    SpinGuard g(lock);
    done = limit <= max_wr && queue->resize(max_wr);
  }
  v.unlock_progress();
  return done ? 0 : EINVAL;
}

void SharedReceiveQueue::query(std::uint32_t* max_wr, std::uint32_t* max_sge, std::uint32_t* limit_out) {
  Vf::Impl& v = *pd->engine;
  const bool mine = !v.inherited();
  if (mine) v.lock_progress();
  *max_wr = queue->depth();
  *max_sge = queue->max_sge();
  *limit_out = limit;
  if (mine) v.unlock_progress();
}

int SharedReceiveQueue::post(std::uint64_t wr_id, std::span<const Sge> sges) {
  if (pd->engine->inherited()) return ENODEV;
  if (sges.size() > queue->max_sge()) return EINVAL;
  SpinGuard g(lock);
  return queue->post(wr_id, sges) ? 0 : ENOMEM;
}

}  // namespace softrnic::nic
