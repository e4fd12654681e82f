// Processes by descriptor: they cannot be mistaken for later ones of the same number. (The header of glibc 2.36 is none
// for C++.)
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/switch/unique_fd.h"

namespace softrnic::tool {

// Empty with errno set on failure. Readable when the process has ended.
inline sw::UniqueFd open_process(pid_t pid) {
  return sw::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// 0, or -1 with errno set.
inline int signal_process(const sw::UniqueFd& process, int signal) {
  return static_cast<int>(::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0));
}

}  // namespace softrnic::tool
