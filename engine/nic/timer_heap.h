// The timers of all queue pairs: one deadline each, in a binary heap. Deadlines that move later are left alone and
// looked at again when the old one is reached, so that a packet that restarts a timer costs nothing here.
#pragma once

#include <cstddef>
#include <vector>

#include "protocols/common/types.h"

namespace softrnic::nic {

// T has members `Nanos timer_key` (kNever: not in the heap) and `std::size_t timer_index`.
template <class T>
class TimerHeap {
 public:
  // Makes room for `n` entries, so that arm() never allocates.
  void reserve(std::size_t n) { heap_.reserve(n); }

  Nanos top() const { return heap_.empty() ? kNever : heap_[0]->timer_key; }

  // The timer of `t` is wanted at `when` or, if it is already armed for earlier, then (lazily).
  void arm(T& t, Nanos when) {
    if (when >= t.timer_key) return;
    if (t.timer_key == kNever) {
      t.timer_index = heap_.size();
      heap_.push_back(&t);
    }
    t.timer_key = when;
    up(t.timer_index);
  }

  // Takes the earliest entry when its time has come.
  T* pop_expired(Nanos now) {
    if (heap_.empty() || heap_[0]->timer_key > now) return nullptr;
    T* t = heap_[0];
    remove(*t);
    return t;
  }

  void remove(T& t) {
    if (t.timer_key == kNever) return;
    const std::size_t hole = t.timer_index;
    T* last = heap_.back();
    heap_.pop_back();
    t.timer_key = kNever;
    if (last == &t) return;
    place(hole, last);
    up(hole);
    down(last->timer_index);
  }

 private:
  void place(std::size_t i, T* t) {
    heap_[i] = t;
    t->timer_index = i;
  }
  void up(std::size_t i) {
    T* t = heap_[i];
    while (i > 0 && heap_[(i - 1) / 2]->timer_key > t->timer_key) {
      place(i, heap_[(i - 1) / 2]);
      i = (i - 1) / 2;
    }
    place(i, t);
  }
  void down(std::size_t i) {
    T* t = heap_[i];
    for (std::size_t child; (child = 2 * i + 1) < heap_.size(); i = child) {
      if (child + 1 < heap_.size() && heap_[child + 1]->timer_key < heap_[child]->timer_key) ++child;
      if (heap_[child]->timer_key >= t->timer_key) break;
      place(i, heap_[child]);
    }
    place(i, t);
  }

  std::vector<T*> heap_;
};

}  // namespace softrnic::nic
