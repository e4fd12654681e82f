// From the transports to the application: completions, asynchronous events, timers.
#include <algorithm>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {
namespace {

constexpr int kTimerBudget = 256;  // of one round

// Is the GID table of a device the same in both?
bool same_table(const std::vector<control::GidRecord>& a, const std::vector<control::GidRecord>& b,
                std::uint32_t device) {
  auto next = [device](auto it, auto end) {
    return std::find_if(it, end, [device](const control::GidRecord& r) { return r.device == device; });
  };
  auto x = next(a.begin(), a.end()), y = next(b.begin(), b.end());
  while (x != a.end() && y != b.end()) {
    if (!(x->gid == y->gid) || x->type != y->type || x->vlan_id != y->vlan_id) return false;
    x = next(x + 1, a.end());
    y = next(y + 1, b.end());
  }
  return x == a.end() && y == b.end();
}

}  // namespace

void Vf::Impl::report_events(QpImpl& qp) {
  mirror_state(qp);
  ib::QpEvent ev;
  while (qp.ib.poll_event(&ev)) {
    switch (ev.kind) {
      case ib::QpEvent::Kind::send_completion:
        complete(qp, *qp.send_cq, ev);
        break;
      case ib::QpEvent::Kind::recv_completion:
        complete(qp, *qp.recv_cq, ev);
        break;
      case ib::QpEvent::Kind::async:
        raise(*qp.pd->context, {.type = ev.async, .qp = qp.self, .port = 1});
        break;
    }
  }
  if (qp.srq != nullptr) check_srq_limit(*qp.srq);
}

// The state for the posting threads. A receive that is posted to a QP in ERR must be flushed: either its poster sees
// ERR and rings, or it held the lock before we do and the flush that follows sees its request.
void Vf::Impl::mirror_state(QpImpl& qp) {
  const ib::QpState s = qp.ib.state();
  if (s == qp.state.load(std::memory_order_relaxed)) return;
  qp.state.store(s, std::memory_order_release);
  if (s == ib::QpState::err && qp.rq != nullptr) SpinGuard g(qp.rq_lock);
}

void Vf::Impl::complete(QpImpl& qp, CompletionQueue& cq, const ib::QpEvent& ev) {
  CqEntry e;
  e.wc = ev.wc;
  e.timestamp = now();
  e.qp = qp.self;
  e.is_recv = ev.kind == ib::QpEvent::Kind::recv_completion;
  e.srq = e.is_recv ? qp.srq : nullptr;
  e.sq_free_to = ev.sq_free_to;
  if (!cq.push(e) && cq.take_overflow()) dead_cqs.push_back(&cq);
}

// IBA 10.2.9.3: one event when a consumed request leaves fewer than the limit.
void Vf::Impl::check_srq_limit(SharedReceiveQueue& srq) {
  const std::uint32_t taken = srq.queue->taken();
  if (taken == srq.limit_checked) return;
  srq.limit_checked = taken;
  if (srq.limit == 0 || srq.queue->available() >= srq.limit) return;
  srq.limit = 0;
  raise(*srq.pd->context, {.type = AsyncEvent::srq_limit_reached, .srq = &srq, .port = 1});
}

void Vf::Impl::run_timers() {
  const Nanos t = now();
  for (int budget = kTimerBudget; budget > 0; --budget) {
    QpImpl* qp = timers.pop_expired(t);
    if (qp == nullptr) break;
    if (qp->ib.next_timeout() <= t) {
      // The wire begins at the consumer: while it has not taken our requests, their time does not run (design rule 2).
      if (qp->request_sent && qp->path != nullptr && !fabric->taken(*qp->path->path, qp->last_request)) {
        qp->ib.postpone_timeout(t);
      }
      if (qp->ib.next_timeout() <= t) qp->ib.on_timeout(t);
      serve(*qp, 1);
    } else {
      timers.arm(*qp, qp->ib.next_timeout());
    }
  }
}

// The NIC process is gone: nothing gets through any more, and what was posted is flushed.
void Vf::Impl::device_fatal() {
  fatal = true;
  for (QpImpl* qp = all_qps.front(); qp != nullptr; qp = qp->all_hook.next) {
    if (qp->ib.state() == ib::QpState::reset) continue;
    qp->ib.modify(now(), ib::QpState::err, qp->ib.attrs());
    qp->held_valid = false;
    stop_waiting(*qp);
    serve(*qp, 1);
  }
  for (Context* ctx : contexts) raise(*ctx, {.type = AsyncEvent::device_fatal, .port = 1});
  call_fatal_hook();
}

void Vf::Impl::take_new_gids() {
  std::vector<control::GidRecord> fresh;
  if (!fabric->take_gids(&fresh)) return;
  {
    SpinGuard g(gids_lock);
    gids.swap(fresh);
  }
  last_local_gid = Gid{};
  for (Context* ctx : contexts) {
    if (!same_table(gids, fresh, ctx->device_index())) raise(*ctx, {.type = AsyncEvent::gid_change, .port = 1});
  }
}

// IBA 10.2.6.3, 11.6.3.2: a CQ that overflowed is in error, and so is every QP that completes to it.
void Vf::Impl::kill_cq_users() {
  while (!dead_cqs.empty()) {
    CompletionQueue* cq = dead_cqs.back();
    dead_cqs.pop_back();
    raise(*cq->context(), {.type = AsyncEvent::cq_err, .cq = cq, .port = 1});
    for (QpImpl* qp = all_qps.front(); qp != nullptr; qp = qp->all_hook.next) {
      if (qp->send_cq != cq && qp->recv_cq != cq) continue;
      qp->ib.fail(now(), AsyncEvent::qp_fatal);
      serve(*qp, 1);
    }
  }
}

}  // namespace softrnic::nic
