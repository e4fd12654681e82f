// Completion queues and completion channels.
#include <cerrno>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {

int CompletionChannel::create(Context& ctx, CompletionChannel** out) {
  Vf::Impl* v;
  if (const int rc = ctx.vf().engine(&v); rc != 0) return rc;
  auto ch = std::make_unique<CompletionChannel>();
  if (const int rc = ch->queue.open(); rc != 0) return rc;
  ch->context = &ctx;
  ch->engine = v;
  std::lock_guard g(v->control);
  v->lock_progress();
  v->channels.push_back(ch.get());
  v->unlock_progress();
  *out = ch.release();
  return 0;
}

int CompletionChannel::destroy() {
  if (users.load(std::memory_order_acquire) != 0) return EBUSY;
  if (!engine->inherited()) {
    std::lock_guard g(engine->control);
    engine->lock_progress();
    std::erase(engine->channels, this);
    engine->unlock_progress();
  }
  delete this;
  return 0;
}

int CompletionQueue::create(Context& ctx, std::uint32_t cqe, CompletionChannel* channel, void* user,
                            CompletionQueue** out) {
  Vf::Impl* engine;
  if (const int rc = ctx.vf().engine(&engine); rc != 0) return rc;
  Vf::Impl& v = *engine;
  if (cqe == 0 || cqe > ctx.device().max_cqe) return EINVAL;
  if (channel != nullptr && channel->engine != engine) return EINVAL;
  if (!take_one(v.use[ctx.device_index()].cqs, ctx.device().max_cq)) return ENOMEM;
  auto* cq = new CompletionQueue;
  cq->engine_ = engine;
  cq->inherited_ = &v.is_inherited;
  cq->context_ = &ctx;
  cq->channel_ = channel;
  cq->user = user;
  cq->capacity_ = cqe;
  cq->mask_ = SendQueue::round_up_pow2(cqe) - 1;
  cq->ring_.resize(cq->mask_ + 1);
  if (channel != nullptr) channel->users.fetch_add(1, std::memory_order_relaxed);
  v.fabric->status().cqs.fetch_add(1, std::memory_order_relaxed);
  *out = cq;
  return 0;
}

int CompletionQueue::destroy() {
  if (users.load(std::memory_order_acquire) != 0) return EBUSY;
  Vf::Impl& v = *engine_;
  if (!v.inherited()) {
    // Nobody pushes any more; a poller of another thread would be the application's mistake. An overflow that was
    // noticed is not reported for a CQ that is gone.
    v.lock_progress();
    std::erase(v.dead_cqs, this);
    v.unlock_progress();
    if (channel_ != nullptr) channel_->queue.remove_if([this](CompletionQueue* c) { return c == this; });
    context_->async.remove_if([this](const AsyncEventRecord& e) { return e.cq == this; });
    v.fabric->status().cqs.fetch_sub(1, std::memory_order_relaxed);
  }
  if (channel_ != nullptr) channel_->users.fetch_sub(1, std::memory_order_release);
  v.use[context_->device_index()].cqs.fetch_sub(1, std::memory_order_relaxed);
  delete this;
  return 0;
}

int CompletionQueue::resize(std::uint32_t cqe) {
  if (const int rc = engine_->usable(); rc != 0) return rc;
  if (cqe == 0 || cqe > context_->device().max_cqe) return EINVAL;
  const std::uint32_t mask = SendQueue::round_up_pow2(cqe) - 1;
  std::vector<CqEntry> ring(mask + 1);
  engine_->lock_progress();  // nobody adds
  int rc = EINVAL;
  {
    SpinGuard g(lock_);
    if (tail_ - head_ <= cqe) {
      for (std::uint32_t i = head_; i != tail_; ++i) ring[i & mask] = ring_[i & mask_];
      ring_.swap(ring);
      mask_ = mask;
      capacity_ = cqe;
      rc = 0;
    }
  }
  engine_->unlock_progress();
  return rc;
}

std::uint32_t CompletionQueue::capacity() const { return capacity_; }
CompletionChannel* CompletionQueue::channel() const { return channel_; }

// IBA 11.4.2.2: the next completion added fires, those that are there already do not. A request for any completion
// is not weakened by a later one for solicited ones.
int CompletionQueue::request_notify(bool solicited_only) {
  if (const int rc = engine_->usable(); rc != 0) return rc;
  {
    SpinGuard g(lock_);
    if (!solicited_only) {
      armed_ = Armed::next;
    } else if (armed_ == Armed::no) {
      armed_ = Armed::solicited;
    }
  }
  if (channel_ != nullptr) engine_->helper.app_waits();
  return 0;
}

// The progress lock makes this the only one that adds. The CQ's lock, which keeps pollers apart, is needed only where
// they may arm the CQ meanwhile.
bool CompletionQueue::push(const CqEntry& e) {
  if (channel_ == nullptr) return add(e);
  bool fire = false;
  {
    SpinGuard g(lock_);
    if (!add(e)) return false;
    if (armed_ == Armed::next || (armed_ == Armed::solicited && e.wc.solicited)) {
      armed_ = Armed::no;
      fire = true;
    }
  }
  if (fire) channel_->queue.push(this);
  return true;
}

bool CompletionQueue::add(const CqEntry& e) {
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (overflowed_ || tail - head_.load(std::memory_order_acquire) >= capacity_) {
    overflowed_ = true;
    return false;
  }
  ring_[tail & mask_] = e;
  tail_.store(tail + 1, std::memory_order_release);
  return true;
}

bool CompletionQueue::take_overflow() {
  if (overflow_taken_) return false;
  return overflow_taken_ = true;
}

void CompletionQueue::consume(const CqEntry& e) {
  if (e.qp == nullptr) return;
  if (!e.is_recv) {
    e.qp->impl().sq->free_up_to(e.sq_free_to);
  } else if (e.srq != nullptr) {
    e.srq->queue->release_one();
  } else {
    e.qp->impl().rq->release_one();
  }
}

// IBA 11.2.4.3: the completions of the QP disappear. Those of other QPs keep their order.
void CompletionQueue::purge(QueuePair* qp) {
  SpinGuard g(lock_);
  std::uint32_t kept = head_;
  for (std::uint32_t i = head_; i != tail_; ++i) {
    CqEntry& e = ring_[i & mask_];
    if (e.qp == qp) {
      if (e.srq != nullptr) e.srq->queue->release_one();
    } else {
      if (kept != i) ring_[kept & mask_] = e;
      ++kept;
    }
  }
  tail_ = kept;
}

void CompletionQueue::drive(int want) { engine_->drive(*this, want); }

}  // namespace softrnic::nic
