#include "engine/datapath/progress_thread.h"

#include <algorithm>

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "engine/nic/clock.h"
#include "engine/nic/raw_syscall.h"

namespace softrnic::dp {
namespace {

constexpr int kBudget = 256;
constexpr std::size_t kStack = 256 * 1024;
constexpr Nanos kParkTime = 1'000'000;      // between two looks at an application that polls
constexpr std::uint64_t kRarePolls = 16;    // fewer polls than this in that time: it does not really poll
constexpr std::uint32_t kMinPolls = 32;     // polls in a row that lead to app mode...
constexpr std::uint32_t kMaxPolls = 16384;  // ...and when that was wrong again and again
constexpr Nanos kPollInterval = 20'000;     // at most this far apart on average
constexpr Nanos kSoundAppMode = 5'000'000;  // app mode was right if it lasted this long
constexpr Nanos kBusyWait = 20'000'000;     // after activity the helper looks again, so that timers longer than
                                            // this, which most are, need no wake-up when they are set
constexpr Nanos kContended = 50'000;
constexpr int kStream = 8;         // a round with so many packets belongs to a stream:
constexpr Nanos kLinger = 20'000;  // the next one is waited for so long before going to sleep
constexpr int kStreamRound = 16;   // a round of a stream with fewer packets came early:
constexpr Nanos kGather = 1'000;   // so long until the next one
constexpr Nanos kSpin = 50'000;
constexpr unsigned kSpinCpus = 4;       // fewer CPUs: never spin
constexpr Nanos kNoSpin = 100'000'000;  // after an involuntary context switch

enum Life : std::uint32_t { kNone, kStarting, kRuns, kEnded };

Nanos now_ns() { return nic::Clock::system_now(); }

long involuntary_switches() {
  rusage u{};
  raw_syscall(SYS_getrusage, RUSAGE_THREAD, raw_pointer(&u));
  return u.ru_nivcsw;
}

unsigned allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set)) : 1;
}

}  // namespace

ProgressThread::ProgressThread(Fabric& fabric, ProgressClient& client)
    : fabric_(fabric), client_(client), needed_polls_(kMinPolls) {}

ProgressThread::~ProgressThread() {
  if (life_.load(std::memory_order_acquire) == kNone || pid_ != raw_syscall(SYS_getpid)) return;
  stop_.store(true, std::memory_order_release);
  fabric_.wake();
  for (std::uint32_t l; (l = life_.load(std::memory_order_acquire)) != kEnded;) {
    raw_syscall(SYS_futex, raw_pointer(&life_), FUTEX_WAIT_PRIVATE, l, 0);
  }
}

int ProgressThread::start() {
  std::uint32_t none = kNone;
  if (life_.load(std::memory_order_acquire) != kNone ||
      !life_.compare_exchange_strong(none, kStarting, std::memory_order_acq_rel)) {
    return 0;
  }
  pid_ = static_cast<int>(raw_syscall(SYS_getpid));
  // The application's signals are the application's: the thread inherits a mask that blocks all of them. Not the faults
  // that guarded copies turn into errors: a blocked one would end the process.
  sigset_t all, old;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attr, kStack);
  pthread_t thread;
  int rc = pthread_create(&thread, &attr, &entry, this);
  if (rc == EINVAL) {  // thread-local variables of the program that do not fit the stack
    pthread_attr_destroy(&attr);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attr, &entry, this);
  }
  pthread_attr_destroy(&attr);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (rc != 0) life_.store(kNone, std::memory_order_release);
  return rc;
}

void* ProgressThread::entry(void* self) {
  auto* t = static_cast<ProgressThread*>(self);
  raw_syscall(SYS_prctl, PR_SET_NAME, raw_pointer("softrnic"));
  raw_syscall(SYS_prctl, PR_SET_TIMERSLACK, 1000);
  t->cpus_ = allowed_cpus();
  t->life_.store(kRuns, std::memory_order_release);
  t->run();
  std::atomic<std::uint32_t>* life = &t->life_;
  life->store(kEnded, std::memory_order_release);  // `t` may be gone from here on: the address is only a name now
  raw_syscall(SYS_futex, raw_pointer(life), FUTEX_WAKE_PRIVATE, INT32_MAX);
  return nullptr;
}

void ProgressThread::run() {
  while (!stop_.load(std::memory_order_acquire)) {
    if (mode_.load(std::memory_order_relaxed) == Mode::app) {
      park();
    } else {
      serve();
    }
  }
}

// The application polls. Looks whether it still does; until then only the control socket is ours.
void ProgressThread::park() {
  if (!parked_) {
    parked_ = true;
    window_start_ = now_ns();
    window_epoch_ = epoch_.load(std::memory_order_relaxed);
  }
  Nanos until = window_start_ + kParkTime, now = now_ns();
  if (now < until) fabric_.wait(until - now);
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  bool asked = app_waits_.exchange(false, std::memory_order_relaxed);
  asked |= fabric_.take_nudge();
  now = now_ns();
  if (!asked) {
    if (now < until) return;
    std::uint64_t epoch = epoch_.load(std::memory_order_relaxed);
    std::uint64_t polls = epoch - window_epoch_;
    window_start_ = now;
    window_epoch_ = epoch;
    if (polls >= kRarePolls) return;
  }
  if (!lock_patiently()) {
    app_waits_.store(asked, std::memory_order_relaxed);
    return;
  }
  leave_app_mode();
  client_.unlock();
}

// It is ours to make progress: one round, then sleep if there is nothing more to do.
void ProgressThread::serve() {
  parked_ = false;
  if (!lock_patiently()) {
    fabric_.wait(kContended);
    return;
  }
  int handled = client_.progress(kBudget);
  Nanos now = now_ns();
  if (handled != 0) {
    streak_ = 0;
    busy_ = true;
    if (cpus_ >= kSpinCpus && now >= no_spin_until_) {
      fabric_.set_polling(ConsumerState::helper_polling);
      client_.unlock();
      spin();
      return;
    }
  }
  if (in_stream(handled, now)) {
    if (handled != 0) fabric_.set_polling(ConsumerState::helper_polling);
    client_.unlock();
    gather(handled, now);
    return;
  }
  std::uint64_t epoch = epoch_.load(std::memory_order_relaxed);
  if (epoch != seen_epoch_) {
    seen_epoch_ = epoch;
    busy_ = true;
  }
  Nanos deadline = client_.next_deadline();
  bool sleep = deadline > now && fabric_.arm();
  if (sleep) {
    if (busy_) deadline = std::min(deadline, now + kBusyWait);
    busy_ = false;
    sleeps_until_ = deadline;
  }
  client_.unlock();
  if (!sleep) {
    if (handled == 0) sched_yield();
    return;
  }
  fabric_.wait(deadline == kNever ? kNever : deadline - now);
  wakeups_.fetch_add(1, std::memory_order_relaxed);
}

// Do the packets of rounds come in a stream, to go on soon?
bool ProgressThread::in_stream(int handled, Nanos now) {
  if (handled >= kStream || (handled != 0 && now < linger_until_)) linger_until_ = now + kLinger;
  return now < linger_until_;
}

// Between two rounds of a stream. Right behind the sender they would take in a packet or two each, answer each with an
// ACK, and take away the cache line that the sender writes to next.
void ProgressThread::gather(int handled, Nanos now) {
  do {
    __builtin_ia32_pause();
  } while (handled < kStreamRound && now_ns() < now + kGather);
}

// The lock's holder may be an application thread that lost its CPU to us.
bool ProgressThread::lock_patiently() {
  for (int i = 0; i < 4; ++i) {
    if (client_.try_lock()) {
      sleeps_until_ = 0;
      return true;
    }
    sched_yield();
  }
  return false;
}

// Enough CPUs: more will come soon.
void ProgressThread::spin() {
  long switches = involuntary_switches();
  Nanos last = now_ns();
  while (mode_.load(std::memory_order_relaxed) == Mode::armed && !stop_.load(std::memory_order_relaxed)) {
    int handled = 0;
    if (client_.try_lock()) {
      handled = client_.progress(kBudget);
      if (handled != 0) streak_ = 0;
      client_.unlock();
    }
    Nanos now = now_ns();
    if (handled != 0) last = now;
    if (now - last >= kSpin) break;
    if (in_stream(handled, now)) {
      gather(handled, now);
    } else {
      __builtin_ia32_pause();
    }
  }
  if (involuntary_switches() != switches) no_spin_until_ = now_ns() + kNoSpin;
  busy_ = true;
  // serve() goes on: it arms the channels.
}

void ProgressThread::count_poll() {
  if (streak_++ == 0) {
    streak_start_ = now_ns();
    return;
  }
  if (streak_ < needed_polls_) return;
  Nanos now = now_ns();
  if (now - streak_start_ <= Nanos{needed_polls_} * kPollInterval) enter_app_mode(now);
  streak_ = 0;
}

void ProgressThread::enter_app_mode(Nanos now) {
  app_mode_since_ = now;
  mode_.store(Mode::app, std::memory_order_relaxed);
  fabric_.set_polling(ConsumerState::app_polling);
  sleeps_until_ = 0;
  if (life_.load(std::memory_order_relaxed) == kRuns) fabric_.wake();  // it may sleep for long: from now on it parks
}

void ProgressThread::leave_app_mode() {
  if (mode_.load(std::memory_order_relaxed) != Mode::app) return;
  mode_.store(Mode::armed, std::memory_order_relaxed);
  streak_ = 0;
  bool was_right = now_ns() - app_mode_since_ >= kSoundAppMode;
  needed_polls_ = was_right ? kMinPolls : std::min(2 * needed_polls_, kMaxPolls);
}

void ProgressThread::app_waits() {
  if (mode_.load(std::memory_order_relaxed) != Mode::app) return;
  // The helper takes in what is there and arms the channels.
  app_waits_.store(true, std::memory_order_relaxed);
  fabric_.wake();
}

void ProgressThread::wake_for(Nanos next) {
  sleeps_until_ = next;
  fabric_.wake();
}

}  // namespace softrnic::dp
