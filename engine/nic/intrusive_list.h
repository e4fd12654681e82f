// A FIFO of objects that carry their own links: membership costs no allocation, removal from the middle is O(1).
#pragma once

namespace softrnic::nic {

// One membership; an object has one hook per list it can be in at the same time.
template <class T>
struct ListHook {
  T* next = nullptr;
  T* prev = nullptr;
  bool linked = false;
};

template <class T, ListHook<T> T::*Hook>
class IntrusiveList {
 public:
  bool empty() const { return head_ == nullptr; }
  T* front() const { return head_; }

  void push_back(T& t) {
    ListHook<T>& h = t.*Hook;
    if (h.linked) return;
    h = {nullptr, tail_, true};
    (tail_ != nullptr ? (tail_->*Hook).next : head_) = &t;
    tail_ = &t;
  }
  T* pop_front() {
    T* t = head_;
    if (t != nullptr) remove(*t);
    return t;
  }
  void remove(T& t) {
    ListHook<T>& h = t.*Hook;
    if (!h.linked) return;
    (h.prev != nullptr ? (h.prev->*Hook).next : head_) = h.next;
    (h.next != nullptr ? (h.next->*Hook).prev : tail_) = h.prev;
    h = {};
  }

 private:
  T* head_ = nullptr;
  T* tail_ = nullptr;
};

}  // namespace softrnic::nic
