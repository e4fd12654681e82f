// Where the control socket of the user's NIC process is. For libraries in other people's programs, with and without a
// C++ run-time library.
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/nic/raw_syscall.h"

namespace softrnic::control {

// The path is `base` with `rest` behind it. `base` may point into the environment.
struct SocketName {
  const char* base;
  const char* rest;
  char own[32];  // what `base` points to where the environment says nothing
};

// $SOFTRNIC_SOCKET; else control.sock in $SOFTRNIC_DIR, in softrnic in $XDG_RUNTIME_DIR, or in /tmp/softrnic-UID.
inline void find_socket_name(SocketName* out) {
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
  };
  if (const char* socket = variable("SOFTRNIC_SOCKET")) {
    out->base = socket;
    out->rest = "";
    return;
  }
  out->rest = "/control.sock";
  out->base = variable("SOFTRNIC_DIR");
  if (out->base != nullptr) return;
  out->base = variable("XDG_RUNTIME_DIR");
  // Not when it is another user's, as after su.
  if (out->base != nullptr && raw_syscall(SYS_faccessat, AT_FDCWD, raw_pointer(out->base), W_OK | X_OK) == 0) {
    out->rest = "/softrnic/control.sock";
    return;
  }
  snprintf(out->own, sizeof out->own, "/tmp/softrnic-%ld", raw_syscall(SYS_getuid));
  out->base = out->own;
}

}  // namespace softrnic::control
