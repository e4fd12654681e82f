// Creation and destruction of queue pairs.
#include <algorithm>
#include <cerrno>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {
namespace {

// Programs count on this much inline data whatever they ask for.
constexpr std::uint32_t kLeastInline = 512;

int check_create(const QpCreate& in, const control::DeviceRecord& dev) {
  if (in.type != ib::QpType::rc && in.type != ib::QpType::uc && in.type != ib::QpType::ud) return EOPNOTSUPP;
  if (in.send_cq == nullptr || in.recv_cq == nullptr) return EINVAL;
  const Context* ctx = in.pd->context;
  const Vf::Impl* engine = in.pd->engine;
  if (in.send_cq->context() != ctx || in.recv_cq->context() != ctx) return EINVAL;
  if (in.send_cq->engine() != engine || in.recv_cq->engine() != engine) return EINVAL;
  if (in.srq != nullptr && (in.srq->pd->context != ctx || in.srq->pd->engine != engine)) return EINVAL;
  const QpCaps& c = in.caps;
  if (c.max_send_wr > dev.max_qp_wr || c.max_send_sge > dev.max_sge || c.max_inline > dev.max_inline) return EINVAL;
  if (in.srq == nullptr && (c.max_recv_wr > dev.max_qp_wr || c.max_recv_sge > dev.max_sge)) return EINVAL;
  return 0;
}

QpCaps grant(const QpCreate& in, const control::DeviceRecord& dev) {
  QpCaps c = in.caps;
  c.max_send_wr = std::max(c.max_send_wr, 1u);
  c.max_send_sge = std::max(c.max_send_sge, 1u);
  c.max_inline = std::max(c.max_inline, std::min(kLeastInline, dev.max_inline));
  if (in.srq != nullptr) {
    c.max_recv_wr = c.max_recv_sge = 0;
  } else {
    c.max_recv_wr = std::max(c.max_recv_wr, 1u);
    c.max_recv_sge = std::max(c.max_recv_sge, 1u);
  }
  return c;
}

}  // namespace

QueuePair::QueuePair() = default;
QueuePair::~QueuePair() = default;

int QueuePair::create(QpCreate& in, QueuePair** out) {
  Context& ctx = *in.pd->context;
  Vf::Impl& v = *in.pd->engine;
  if (const int rc = v.usable(); rc != 0) return rc;
  const control::DeviceRecord& dev = ctx.device();
  if (const int rc = check_create(in, dev); rc != 0) return rc;
  if (!take_one(v.use[ctx.device_index()].qps, dev.max_qp)) return ENOMEM;

  std::lock_guard g(v.control);
  const std::int64_t qpn = v.allocate_qpn();
  if (qpn < 0) {
    v.use[ctx.device_index()].qps.fetch_sub(1, std::memory_order_relaxed);
    return ENOMEM;
  }
  const QpCaps caps = grant(in, dev);
  auto sq = std::make_unique<SendQueue>(caps.max_send_wr, caps.max_send_sge, caps.max_inline);
  std::unique_ptr<RecvQueue> rq;
  if (in.srq == nullptr) rq = std::make_unique<RecvQueue>(caps.max_recv_wr, caps.max_recv_sge);
  ib::QpInit init;
  init.type = in.type;
  init.qpn = static_cast<std::uint32_t>(qpn);
  init.pd = in.pd->handle;
  init.sq = sq.get();
  init.rq = in.srq != nullptr ? in.srq->queue.get() : rq.get();
  init.has_srq = in.srq != nullptr;
  init.sq_sig_all = in.sq_sig_all;
  init.max_inline = caps.max_inline;

  auto* qp = new QueuePair;
  qp->user = in.user;
  qp->impl_ = std::make_unique<Impl>(qp, v, in, caps, init, std::move(sq), std::move(rq));
  if (in.type == ib::QpType::ud) qp->impl_->held = std::make_unique<ib::TxPacket>();
  in.pd->users.fetch_add(1, std::memory_order_relaxed);
  in.send_cq->users.fetch_add(1, std::memory_order_relaxed);
  in.recv_cq->users.fetch_add(1, std::memory_order_relaxed);
  if (in.srq != nullptr) in.srq->users.fetch_add(1, std::memory_order_relaxed);
  v.add_qp(*qp->impl_);
  in.caps = caps;
  *out = qp;
  return 0;
}

int QueuePair::destroy() {
  Impl& q = *impl_;
  Vf::Impl& v = q.vf;
  Context& ctx = *q.pd->context;
  if (!v.inherited()) {
    std::lock_guard g(v.control);
    if (q.mcast_groups != 0) return EBUSY;
    v.remove_qp(q);
    v.free_qpn(q.qpn);
    ctx.async.remove_if([this](const AsyncEventRecord& e) { return e.qp == this; });
  }
  q.pd->users.fetch_sub(1, std::memory_order_release);
  q.send_cq->users.fetch_sub(1, std::memory_order_release);
  q.recv_cq->users.fetch_sub(1, std::memory_order_release);
  if (q.srq != nullptr) q.srq->users.fetch_sub(1, std::memory_order_release);
  v.use[ctx.device_index()].qps.fetch_sub(1, std::memory_order_relaxed);
  delete this;
  return 0;
}

std::uint32_t QueuePair::qpn() const { return impl_->qpn; }
ib::QpType QueuePair::type() const { return impl_->type; }
ib::QpState QueuePair::state() const { return impl_->state.load(std::memory_order_acquire); }
ProtectionDomain* QueuePair::pd() const { return impl_->pd; }
const QpCaps& QueuePair::caps() const { return impl_->caps; }

}  // namespace softrnic::nic
