// An event descriptor and its queue (completion channels, asynchronous events): the descriptor is an
// EFD_SEMAPHORE eventfd that is readable exactly while events are queued, so poll, select, epoll and
// O_NONBLOCK behave as with the kernel's. It is written after the event is in the queue.
#pragma once

#include <deque>
#include <new>

#include "engine/nic/raw_io.h"
#include "engine/nic/spinlock.h"

namespace softrnic::nic {

template <class T>
class EventQueue {
 public:
  EventQueue() = default;
  ~EventQueue() { close(); }
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Makes the descriptor: 0 or errno.
  int open() {
    fd_ = raw_eventfd_semaphore();
    return fd_ < 0 ? -fd_ : 0;
  }
  void close() {
    if (fd_ >= 0) raw_close(fd_);
    fd_ = -1;
  }
  int fd() const { return fd_; }
  // In a child of fork(): the descriptor becomes one of the child's own, under the same number. What was queued, and a
  // thread that held the lock, are the parent's.
  void renew_after_fork() {
    new (&lock_) SpinLock;
    new (&items_) std::deque<T>;
    if (fd_ >= 0) raw_eventfd_renew(fd_);
  }

  void push(const T& v) {
    {
      SpinGuard g(lock_);
      items_.push_back(v);
    }
    raw_eventfd_write(fd_);
  }
  // Takes the oldest event. Blocks for one unless the descriptor is O_NONBLOCK: EAGAIN then; EINTR when a signal
  // handler ran.
  int pop(T* out) {
    for (;;) {
      int rc = raw_eventfd_read(fd_);
      if (rc != 0) return rc;
      SpinGuard g(lock_);
      if (items_.empty()) continue;  // its event was removed after we were woken
      *out = items_.front();
      items_.pop_front();
      return 0;
    }
  }
  // Takes the oldest event for a caller that has already read the descriptor itself; on_take(event) is called under
  // the queue's lock. False when that event was removed meanwhile: wait again.
  template <class OnTake>
  bool take(T* out, OnTake on_take) {
    SpinGuard g(lock_);
    if (items_.empty()) return false;
    *out = items_.front();
    on_take(*out);
    items_.pop_front();
    return true;
  }
  // Removes the events that `pred` matches, and their readability.
  template <class Pred>
  int remove_if(Pred pred) {
    SpinGuard g(lock_);
    int removed = 0;
    for (auto it = items_.begin(); it != items_.end();) {
      if (pred(*it)) {
        it = items_.erase(it);
        raw_eventfd_take_one_nonblocking(fd_);
        ++removed;
      } else {
        ++it;
      }
    }
    return removed;
  }

 private:
  int fd_ = -1;
  SpinLock lock_;
  std::deque<T> items_;
};

}  // namespace softrnic::nic
