// The progress loop: who runs it (design rule 4) and what a round consists of.
#include <sched.h>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {
namespace {

constexpr int kBatch = 16;         // packets taken in before their answers are sent
constexpr int kPollBudget = 256;   // packets that one ibv_poll_cq call takes in
constexpr int kActiveBudget = 64;  // packets that a round sends for queue pairs with much to send
constexpr int kPostBudget = 256;   // packets that a post sends inline
constexpr int kTurn = 32;          // packets that a queue pair may send before the next one's turn
constexpr int kDoorbellBudget = 64;
// An empty poll looks at the clock only once in this many: the timers are milliseconds, a round is nanoseconds.
constexpr unsigned kIdleClock = 16;
constexpr unsigned kLongWait = 16 * kIdleClock;  // empty polls between two looks at what peers have not taken
constexpr Nanos kStatusInterval = 1'000'000;
constexpr Nanos kStatusDelay = 50'000'000;  // after this the status page is written by a round of its own

}  // namespace

void Vf::Impl::ring(QpImpl& qp) {
  if (progress_lock.try_lock()) {
    now_valid = false;
    serve(qp, kPostBudget);
    fabric->flush();
    unlock_progress();
    return;
  }
  if (!qp.rung.exchange(true, std::memory_order_acq_rel)) {
    QpImpl* head = rung.load(std::memory_order_relaxed);
    do {
      qp.next_rung = head;
    } while (!rung.compare_exchange_weak(head, &qp, std::memory_order_seq_cst, std::memory_order_relaxed));
  }
  // The holder may have let go before it could see the bell.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (progress_lock.try_lock()) unlock_progress();
}

void Vf::Impl::take_doorbells() {
  QpImpl* list = rung.exchange(nullptr, std::memory_order_acquire);
  // The newest stands first; queues are served in the order of their bells.
  QpImpl* oldest = nullptr;
  while (list != nullptr) {
    QpImpl* next = list->next_rung;
    list->next_rung = oldest;
    oldest = list;
    list = next;
  }
  while (oldest != nullptr) {
    QpImpl* qp = oldest;
    oldest = qp->next_rung;
    qp->rung.exchange(false,
                      std::memory_order_acq_rel);  // what was posted before is seen now, a later post rings again
    serve(*qp, kDoorbellBudget);
  }
}

void Vf::Impl::unlock_progress() {
  do {
    if (rung.load(std::memory_order_relaxed) != nullptr) {
      now_valid = false;
      take_doorbells();
      fabric->flush();
    }
    if (!dead_cqs.empty()) kill_cq_users();
    if (helper.sleeps()) helper.deadline_moved(next_deadline());
  } while (!release_progress());
}

// Lets go. False when a bell rang meanwhile: the lock is ours again. Either our load sees a bell that was rung while we
// held the lock, or its ringer sees the lock free.
bool Vf::Impl::release_progress() {
  progress_lock.unlock();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return rung.load(std::memory_order_relaxed) == nullptr || !progress_lock.try_lock();
}

void Vf::Impl::drive(CompletionQueue& cq, int want) {
  if (!progress_lock.try_lock()) return;
  helper.app_polled();
  int handled = 0;
  if (!quiet() || !release_progress()) {
    handled = round(&cq, want, kPollBudget);
    unlock_progress();
  }
  if (handled != 0) return;
  // Leave the CPU to whom this waits for: the sibling of this core, or another process.
  if (fabric->crowded()) {
    sched_yield();
  } else {
    __builtin_ia32_pause();
  }
}

// Programs poll empty queues for most of their time: how long that takes is how late a packet is noticed.
bool Vf::Impl::quiet() {
  if (rung.load(std::memory_order_relaxed) != nullptr || !active.empty() || !blocked_paths.empty()) return false;
  if (fabric->anything_pending()) return false;
  return ++idle_rounds % kIdleClock != 0;
}

int Vf::Impl::round(CompletionQueue* cq, int want, int budget) {
  now_valid = false;
  const std::uint32_t enough = cq != nullptr ? cq->pushed() + static_cast<std::uint32_t>(want) : 0;
  if (rung.load(std::memory_order_relaxed) != nullptr) take_doorbells();

  int handled = 0;
  for (;;) {
    // No more packets than can complete what the application asks for: it may have to post receives first.
    completions_left = cq != nullptr ? static_cast<int>(enough - cq->pushed()) : kBatch;
    const int batch = budget - handled < kBatch ? budget - handled : kBatch;
    if (batch <= 0 || completions_left <= 0) break;
    const int n = fabric->poll(batch, &on_frame, this);
    while (QpImpl* qp = touched.pop_front()) serve(*qp, kTurn);
    handled += n;
    if (n < batch && (completions_left > 0 || !fabric->anything_pending())) break;
  }
  if (!blocked_paths.empty()) retry_blocked();
  if (!active.empty()) serve_active(kActiveBudget);
  if (handled != 0 || cq == nullptr || idle_rounds % kIdleClock == 0) {
    if (timers.top() <= now()) run_timers();
    if ((!dirty.empty() || drops.frames != frames_written) &&
        (handled == 0 || now() - status_written >= kStatusInterval))
      write_all_dirty();
    if (handled == 0) look_around();
    if (handled == 0 && cq != nullptr && idle_rounds % kLongWait == 0) fabric->nudge_slow_peers(now());
  }
  fabric->flush();
  fabric->status().progress_epoch.store(++epoch, std::memory_order_relaxed);
  return handled;
}

// What changes rarely and is of no hurry.
void Vf::Impl::look_around() {
  if (fabric->nic_process_dead() && !fatal) device_fatal();
  take_new_gids();
}

Nanos Vf::Impl::next_deadline() {
  if (!active.empty() || rung.load(std::memory_order_relaxed) != nullptr) return 0;
  if (fabric->nic_process_dead() && !fatal) return 0;
  const Nanos status_due = dirty.empty() ? kNever : dirty_since + kStatusDelay;
  return status_due < timers.top() ? status_due : timers.top();
}

int Vf::progress(int budget) {
  Impl& v = impl();
  if (v.inherited() || !v.progress_lock.try_lock()) return 0;
  const int handled = v.round(nullptr, 0, budget);
  v.unlock_progress();
  return handled;
}

}  // namespace softrnic::nic
