// A system call made directly: it is no cancellation point, leaves errno alone, and nobody's interposed libc
// function sees it. Result: value >= 0, or -errno.
#pragma once

#include <cerrno>

#include <sys/syscall.h>
#include <unistd.h>

namespace softrnic {

inline long raw_syscall(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
#if defined(__x86_64__)
  long ret;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(ret)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return ret;
#else
  int saved = errno;
  long ret = ::syscall(number, a, b, c, d, e, f);
  if (ret < 0) ret = -errno;
  errno = saved;
  return ret;
#endif
}

inline long raw_pointer(const void* p) { return reinterpret_cast<long>(p); }

}  // namespace softrnic
