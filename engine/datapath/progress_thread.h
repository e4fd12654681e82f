// The helper thread of a VF (design rule 1): makes progress while the application does not call verbs, and keeps out
// of the way while it does.
//
// The VF is in one of two modes. In `app` mode the application polls, senders do not kick, and the helper only looks
// once a millisecond whether that is still so. In `armed` mode every channel is armed and the helper sleeps until it is
// kicked or a timer is due; polls by the application work as well, but senders pay for kicks. A program that polls in
// a tight loop gets into app mode; one that spins on memory between its polls (ib_write_lat) stays in armed mode, where
// the helper takes in what the program waits for.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/datapath/fabric.h"
#include "protocols/common/types.h"

namespace softrnic::dp {

// The engine as the helper thread sees it.
class ProgressClient {
 public:
  virtual bool try_lock() = 0;  // the progress lock
  virtual void unlock() = 0;
  // One bounded round; lock held. Packets and completions handled.
  virtual int progress(int budget) = 0;
  // When progress() has something to do even without a packet coming in (CLOCK_MONOTONIC ns): 0 now, kNever. Lock held.
  virtual Nanos next_deadline() = 0;

 protected:
  ~ProgressClient() = default;
};

class ProgressThread {
 public:
  ProgressThread(Fabric& fabric, ProgressClient& client);
  // Ends the thread and waits until it no longer touches anything (not in a child of fork(), where it does not exist).
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Makes sure the thread exists: to be called when something is set up that traffic may come for. 0 or errno. Any
  // thread; cheap when it exists.
  int start();

  // The application polls: to be called at every poll that got the progress lock, lock held.
  void app_polled() {
    epoch_.store(epoch_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (mode_.load(std::memory_order_relaxed) == Mode::armed) count_poll();
  }
  // The application is about to wait for an event (request_notify): it will not poll for a while. Any thread.
  void app_waits();
  // Sleeps until its deadline, as far as is known: deadline_moved() makes sense only then. Lock held.
  bool sleeps() const { return sleeps_until_ != 0; }
  // The engine's next deadline has changed outside of the helper (a post, a poll); lock held.
  void deadline_moved(Nanos next) {
    if (next < sleeps_until_) wake_for(next);
  }

  // For tests and counters.
  bool app_mode() const { return mode_.load(std::memory_order_relaxed) == Mode::app; }
  std::uint64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  enum class Mode : std::uint8_t { armed, app };

  static void* entry(void* self);
  void run();
  void park();
  void serve();
  bool lock_patiently();
  bool in_stream(int handled, Nanos now);
  static void gather(int handled, Nanos now);
  void spin();
  void leave_app_mode();
  void count_poll();
  void enter_app_mode(Nanos now);
  void wake_for(Nanos next);

  Fabric& fabric_;
  ProgressClient& client_;
  std::atomic<Mode> mode_{Mode::armed};
  std::atomic<std::uint64_t> epoch_{0};  // polls of the application
  std::atomic<std::uint64_t> wakeups_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> app_waits_{false};
  std::atomic<std::uint32_t> life_{0};  // futex: 0 no thread, 1 being made, 2 runs, 3 has ended
  int pid_ = 0;

  // Under the progress lock.
  std::uint32_t streak_ = 0;  // polls since the helper last had work
  Nanos streak_start_ = 0;
  Nanos app_mode_since_ = 0;
  std::uint32_t needed_polls_;  // for app mode
  Nanos sleeps_until_ = 0;      // the helper wakes by itself then; 0: it does not sleep for long

  // Of the thread.
  unsigned cpus_ = 1;
  bool parked_ = false;
  Nanos window_start_ = 0;  // of watching the application's polls
  std::uint64_t window_epoch_ = 0;
  std::uint64_t seen_epoch_ = 0;
  Nanos no_spin_until_ = 0;
  Nanos linger_until_ = 0;
  bool busy_ = false;  // something happened since the last sleep
};

}  // namespace softrnic::dp
