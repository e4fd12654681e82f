#include "engine/nic/fork_watch.h"

#include <pthread.h>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {
namespace {

SpinLock g_lock;
Vf::Impl* g_engines = nullptr;  // linked by next_watched
bool g_registered = false;

// No thread is in the middle of anything when the child's copy of the memory is made.
void before_fork() {
  g_lock.lock();
  for (Vf::Impl* v = g_engines; v != nullptr; v = v->next_watched) {
    v->control.lock();
    v->progress_lock.lock();
  }
}

void in_parent() {
  for (Vf::Impl* v = g_engines; v != nullptr; v = v->next_watched) {
    v->unlock_progress();
    v->control.unlock();
  }
  g_lock.unlock();
}

void in_child() {
  for (Vf::Impl* v = g_engines; v != nullptr; v = v->next_watched) {
    v->abandon_after_fork();
    v->progress_lock.unlock();
    v->control.unlock();
  }
  g_engines = nullptr;  // the abandoned ones are nothing to follow any more
  g_lock.unlock();
}

}  // namespace

void fork_watch_add(Vf::Impl& engine) {
  SpinGuard g(g_lock);
  if (!g_registered) {
    pthread_atfork(before_fork, in_parent, in_child);
    g_registered = true;
  }
  engine.next_watched = g_engines;
  g_engines = &engine;
}

void fork_watch_remove(Vf::Impl& engine) {
  SpinGuard g(g_lock);
  for (Vf::Impl** p = &g_engines; *p != nullptr; p = &(*p)->next_watched) {
    if (*p != &engine) continue;
    *p = engine.next_watched;
    return;
  }
}

void Vf::Impl::abandon_after_fork() {
  is_inherited.store(true, std::memory_order_relaxed);
  fabric->abandon_after_fork();
  // Their descriptors are the parent's: reading one here would take an event from it.
  for (Context* ctx : contexts) ctx->async.renew_after_fork();
  for (CompletionChannel* ch : channels) ch->queue.renew_after_fork();
}

}  // namespace softrnic::nic
