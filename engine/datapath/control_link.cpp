#include "engine/datapath/control_link.h"

#include <utility>

#include <linux/futex.h>

#include "engine/nic/raw_io.h"
#include "engine/nic/raw_syscall.h"

namespace softrnic::dp {
namespace {

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  raw_syscall(SYS_futex, raw_pointer(&word), FUTEX_WAIT_PRIVATE, value, 0);
}
void futex_wake_all(std::atomic<std::uint32_t>& word) {
  raw_syscall(SYS_futex, raw_pointer(&word), FUTEX_WAKE_PRIVATE, INT32_MAX);
}

}  // namespace

ControlLink::~ControlLink() {
  for (control::Message& m : notices_) m.close_fds();
}

int ControlLink::call(control::MsgType type, const void* body, std::uint32_t length, control::Message* reply) {
  Pending p{next_seq_.fetch_add(1, std::memory_order_relaxed), reply};
  if (p.seq == 0) p.seq = next_seq_.fetch_add(1, std::memory_order_relaxed);
  {
    SpinGuard g(lists_);
    p.next = pending_;
    pending_ = &p;
  }
  if (int rc = connection_.send(type, p.seq, body, length); rc != 0) {
    forget(p);
    return rc;
  }
  for (;;) {
    std::uint32_t turn = turn_.load(std::memory_order_seq_cst);
    if (p.done.load(std::memory_order_acquire)) return reply->header.status;
    if (dead()) break;
    if (reader_.try_lock()) {
      if (!p.done.load(std::memory_order_acquire)) read_one(false);
      let_go();
      continue;
    }
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    futex_wait(turn_, turn);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  forget(p);
  return p.done.load(std::memory_order_acquire) ? reply->header.status : EPIPE;
}

int ControlLink::notify(control::MsgType type, const void* body, std::uint32_t length) {
  return connection_.send(type, 0, body, length);
}

void ControlLink::drain() {
  if (dead() || !reader_.try_lock()) return;
  while (read_one(true)) {
  }
  let_go();
}

void ControlLink::let_go() {
  reader_.unlock();
  turn_.fetch_add(1, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) != 0) futex_wake_all(turn_);
}

bool ControlLink::read_one(bool nonblocking) {
  control::Message m;
  int rc = connection_.receive(&m, nonblocking);
  if (rc == EAGAIN) return false;
  if (rc != 0) {  // end of file, or nothing sensible can follow
    dead_.store(true, std::memory_order_release);
    has_notices_.store(true, std::memory_order_release);
    if (wake_fd_ >= 0) raw_eventfd_write(wake_fd_);
    return false;
  }
  if (m.header.type == static_cast<std::uint16_t>(control::MsgType::connect_peer) && m.num_fds != 0 &&
      peer_hook_ != nullptr) {
    peer_hook_(peer_hook_ctx_, m);
  }
  dispatch(std::move(m));
  return true;
}

void ControlLink::abandon() {
  connection_.close();
  for (control::Message& m : notices_) m.close_fds();
  notices_.clear();
  has_notices_ = false;
  dead_ = true;
}

void ControlLink::dispatch(control::Message&& m) {
  SpinGuard g(lists_);
  if (m.header.seq == 0) {
    notices_.push_back(std::move(m));
    has_notices_.store(true, std::memory_order_release);
    if (wake_fd_ >= 0) raw_eventfd_write(wake_fd_);
    return;
  }
  for (Pending** p = &pending_; *p != nullptr; p = &(*p)->next) {
    if ((*p)->seq != m.header.seq) continue;
    Pending* mine = *p;
    *p = mine->next;
    *mine->reply = std::move(m);
    mine->done.store(true, std::memory_order_release);
    return;
  }
  m.close_fds();  // the answer to nothing
}

void ControlLink::forget(Pending& p) {
  SpinGuard g(lists_);
  for (Pending** q = &pending_; *q != nullptr; q = &(*q)->next) {
    if (*q == &p) {
      *q = p.next;
      return;
    }
  }
}

void ControlLink::queue_notices(std::vector<control::Message>&& notices) {
  SpinGuard g(lists_);
  for (control::Message& m : notices) notices_.push_back(std::move(m));
  if (!notices_.empty()) has_notices_.store(true, std::memory_order_release);
}

std::vector<control::Message> ControlLink::take_notices() {
  SpinGuard g(lists_);
  has_notices_.store(false, std::memory_order_relaxed);
  return std::exchange(notices_, {});
}

}  // namespace softrnic::dp
