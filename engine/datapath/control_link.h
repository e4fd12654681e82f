// The control connection as the threads of one process share it. Requests come from any thread and wait for their
// reply; notices of the NIC process are collected for the holder of the progress lock, who never waits here.
//
// Whoever waits for a reply and finds nobody reading becomes the reader and hands the others what is theirs; so
// requests work with and without a helper thread, and from any number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/control/client/client.h"
#include "engine/nic/spinlock.h"

namespace softrnic::dp {

class ControlLink {
 public:
  ControlLink() = default;
  ~ControlLink();
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  // The connection itself, before any other thread knows of it.
  control::Connection& connection() { return connection_; }
  // When another thread takes in a notice, this eventfd is written, so that somebody takes care of it.
  void set_wake_fd(int eventfd) { wake_fd_ = eventfd; }

  // Called by the reader with the reply to connect_peer, before it takes in anything that came later.
  void set_peer_hook(void (*hook)(void* ctx, control::Message& m), void* ctx) {
    peer_hook_ = hook;
    peer_hook_ctx_ = ctx;
  }

  // Any thread; waits for the reply. The status of the reply, or EPIPE: the NIC process is gone.
  int call(control::MsgType type, const void* body, std::uint32_t length, control::Message* reply);
  int notify(control::MsgType type, const void* body, std::uint32_t length);

  // Takes in what has arrived, without waiting; nothing when another thread is reading.
  void drain();
  void queue_notices(std::vector<control::Message>&& notices);
  bool has_notices() const { return has_notices_.load(std::memory_order_relaxed); }
  std::vector<control::Message> take_notices();

  bool dead() const { return dead_.load(std::memory_order_relaxed); }
  int fd() const { return connection_.fd(); }
  // In a child of fork(): lets go of the connection, which stays the parent's.
  void abandon();

 private:
  struct Pending {
    std::uint32_t seq;
    control::Message* reply;
    std::atomic<bool> done{false};
    Pending* next = nullptr;
  };
  // Reads one message and hands it out. False: there was none.
  bool read_one(bool nonblocking);
  void dispatch(control::Message&& m);
  void forget(Pending& p);
  void let_go();  // ends the reader's turn

  control::Connection connection_;
  int wake_fd_ = -1;
  void (*peer_hook_)(void* ctx, control::Message& m) = nullptr;
  void* peer_hook_ctx_ = nullptr;
  SpinLock reader_;
  std::atomic<std::uint32_t> turn_{0};     // futex: changes when a reply was handed out or the reader let go
  std::atomic<std::uint32_t> waiting_{0};  // on turn_
  std::atomic<std::uint32_t> next_seq_{1u << 16};
  std::atomic<bool> dead_{false};
  std::atomic<bool> has_notices_{false};
  SpinLock lists_;  // the two below
  Pending* pending_ = nullptr;
  std::vector<control::Message> notices_;
};

}  // namespace softrnic::dp
