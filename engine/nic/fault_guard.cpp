#include <atomic>
#include <csignal>

#include <ucontext.h>

#include "engine/nic/guarded_copy.h"
#include "engine/nic/raw_syscall.h"
#include "engine/nic/spinlock.h"

extern "C" {
extern char softrnic_guard_begin[], softrnic_guard_end[], softrnic_guard_fault[];
int softrnic_guarded_copy(void* dst, const void* src, std::size_t n);
int softrnic_guarded_compare_swap(std::uint64_t* p, std::uint64_t compare, std::uint64_t swap, std::uint64_t* original);
int softrnic_guarded_fetch_add(std::uint64_t* p, std::uint64_t addend, std::uint64_t* original);
int softrnic_guarded_probe_read(const void* p);
int softrnic_guarded_probe_write(void* p);
void softrnic_signal_return();
__attribute__((visibility("hidden"))) extern std::uint8_t softrnic_guard_use_avx;
std::uint8_t softrnic_guard_use_avx = 0;
}

namespace softrnic::nic {
namespace {

// struct sigaction as rt_sigaction(2) has it. The system call is made directly: an interposed sigaction() (sanitizers,
// libjsig) would hide from us what is installed.
struct KernelSigaction {
  void (*handler)(int, siginfo_t*, void*);
  unsigned long flags;
  void (*restorer)();
  std::uint64_t mask;
};
constexpr unsigned long kSaRestorer = 0x04000000;

int kernel_sigaction(int sig, const KernelSigaction* act, KernelSigaction* old) {
  return static_cast<int>(
      raw_syscall(SYS_rt_sigaction, sig, raw_pointer(act), raw_pointer(old), sizeof(std::uint64_t)));
}

using Handler = void (*)(int, siginfo_t*, void*);

// Handlers that were installed when we put ourselves in front, oldest first. One of them may call us as its
// predecessor: then it is the turn of the one before it.
struct Chain {
  static constexpr int kLevels = 16;
  int signal;
  std::atomic<int> levels{0};
  std::atomic<Handler> behind[kLevels]{};
};
Chain g_chains[] = {{SIGSEGV}, {SIGBUS}};
SpinLock g_install_lock;
// Level that is being called. A handler that never returns leaves it behind; the kernel's next call sets it anew.
__attribute__((tls_model("initial-exec"))) thread_local int t_level = 0;

void handle_default(int sig, const siginfo_t* info) {
  KernelSigaction dfl{};
  kernel_sigaction(sig, &dfl, nullptr);
  // A fault repeats when we return, and ends the process then. A signal that somebody sent does not.
  if (info->si_code <= 0) {
    raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), raw_syscall(SYS_gettid), sig);
  }
}

void call_handler(Handler h, int sig, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(h);
  if (address == reinterpret_cast<std::uintptr_t>(SIG_DFL)) return handle_default(sig, info);
  if (address == reinterpret_cast<std::uintptr_t>(SIG_IGN)) {
    if (info->si_code > 0) handle_default(sig, info);  // a fault cannot be ignored
    return;
  }
  h(sig, info, context);  // without SA_SIGINFO it takes one argument and leaves the others alone
}

// Registers of a fault inside the guarded functions are set so that the function returns 1.
bool fix_up(const siginfo_t* info, void* context) {
  if (info->si_code <= 0) return false;
  auto* uc = static_cast<ucontext_t*>(context);
  const auto pc = static_cast<std::uintptr_t>(uc->uc_mcontext.gregs[REG_RIP]);
  if (pc < reinterpret_cast<std::uintptr_t>(softrnic_guard_begin) ||
      pc >= reinterpret_cast<std::uintptr_t>(softrnic_guard_end)) {
    return false;
  }
  uc->uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(reinterpret_cast<std::uintptr_t>(softrnic_guard_fault));
  return true;
}

// True when the kernel called the handler whose frame this is, not another handler: the kernel puts the context right
// above the return address (struct rt_sigframe).
inline bool called_by_kernel(const void* frame, const void* context) {
  return static_cast<const char*>(frame) + 2 * sizeof(void*) == context;
}

__attribute__((no_sanitize("address", "thread", "undefined"))) void on_fault(int sig, siginfo_t* info, void* context) {
  if (fix_up(info, context)) return;
  const Chain& chain = g_chains[sig == SIGSEGV ? 0 : 1];
  const bool from_kernel = called_by_kernel(__builtin_frame_address(0), context);
  const int level = (from_kernel ? chain.levels.load(std::memory_order_acquire) : t_level) - 1;
  if (level < 0) return handle_default(sig, info);
  t_level = level;
  call_handler(chain.behind[level].load(std::memory_order_relaxed), sig, info, context);
  t_level = level + 1;
}

void put_in_front(Chain& chain) {
  KernelSigaction now{};
  if (kernel_sigaction(chain.signal, nullptr, &now) != 0 || now.handler == on_fault) return;
  const int n = chain.levels.load(std::memory_order_relaxed);
  if (n == 0 || chain.behind[n - 1].load(std::memory_order_relaxed) != now.handler) {
    const int at = n < Chain::kLevels ? n : n - 1;
    chain.behind[at].store(now.handler, std::memory_order_relaxed);
    chain.levels.store(at + 1, std::memory_order_release);
  }
  // The flags and the mask of the handler behind us hold for us, so that it runs as it expects to.
  KernelSigaction ours{};
  ours.handler = on_fault;
  ours.flags = SA_SIGINFO | SA_ONSTACK | kSaRestorer | (now.flags & (SA_NODEFER | SA_RESTART));
  ours.restorer = softrnic_signal_return;
  ours.mask = now.mask;
  kernel_sigaction(chain.signal, &ours, nullptr);
}

}  // namespace

void install_fault_guard() {
  SpinGuard g(g_install_lock);
  softrnic_guard_use_avx = __builtin_cpu_supports("avx") ? 1 : 0;
  for (Chain& c : g_chains) put_in_front(c);
}

bool guarded_copy(std::uint8_t* dst, const std::uint8_t* src, std::size_t n) {
  return softrnic_guarded_copy(dst, src, n) == 0;
}
bool guarded_compare_swap(std::uint64_t* p, std::uint64_t compare, std::uint64_t swap, std::uint64_t* original) {
  return softrnic_guarded_compare_swap(p, compare, swap, original) == 0;
}
bool guarded_fetch_add(std::uint64_t* p, std::uint64_t addend, std::uint64_t* original) {
  return softrnic_guarded_fetch_add(p, addend, original) == 0;
}
bool guarded_probe_read(const std::uint8_t* p) { return softrnic_guarded_probe_read(p) == 0; }
bool guarded_probe_write(std::uint8_t* p) { return softrnic_guarded_probe_write(p) == 0; }

}  // namespace softrnic::nic
