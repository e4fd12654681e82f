// What every file at the ABI boundary needs: the verbs declarations with default visibility, the export macro, and
// the guard that keeps exceptions inside.
//
// No function of the ABI is noexcept, and none has a catch-all handler: a program may cancel a thread that waits
// in ibv_get_cq_event(), and the unwinding of a cancelled thread must pass through.
#pragma once

#include <cerrno>
#include <cstring>
#include <exception>
#include <type_traits>

#pragma GCC visibility push(default)
#include <infiniband/verbs.h>
#pragma GCC visibility pop

// The headers turn these into inline functions; here the functions themselves are defined.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

// Defines a symbol of the ABI under the version that libibverbs.map gives it.
#define SOFTRNIC_ABI extern "C" __attribute__((visibility("default")))

namespace softrnic::shim {

// An enumeration that the application gives, as a number: it may be none of the enumerators, or not set at all.
template <class E>
unsigned number(const E& e) {
  static_assert(std::is_enum_v<E> && sizeof e == sizeof(unsigned));
  unsigned n;
  memcpy(&n, &e, sizeof n);
  return n;
}

// Result of a verb that creates something: `out` or null with errno.
template <class T>
T* made(int rc, T* out) {
  if (rc == 0) return out;
  errno = rc;
  return nullptr;
}

// Result of a verb that returns an errno value, and sets errno too as the kernel-backed library does.
inline int status(int rc) {
  if (rc != 0) errno = rc;
  return rc;
}

// Runs `f`; a failed allocation becomes ENOMEM in the way that f's kind of result tells errors.
template <class F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception&) {
    errno = ENOMEM;
    if constexpr (std::is_pointer_v<decltype(f())>) {
      return nullptr;
    } else {
      return ENOMEM;
    }
  }
}

}  // namespace softrnic::shim
