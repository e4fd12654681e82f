// System calls for our own I/O inside somebody's process: made directly, so that they are no
// cancellation points and no interposed libc function sees them. Results: value >= 0, or -errno.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softrnic {

int raw_close(int fd);
long raw_read(int fd, void* buf, std::size_t n);
long raw_write(int fd, const void* buf, std::size_t n);

// Moves a descriptor to a number >= 512 (as far as RLIMIT_NOFILE allows) with close-on-exec, so that
// programs that expect low numbers, or close "all" of them up to a bound, are not disturbed.
int raw_move_high(int fd);

int raw_eventfd_semaphore();     // EFD_SEMAPHORE | EFD_CLOEXEC, high-numbered
void raw_eventfd_renew(int fd);  // puts a fresh one in the place of an old one, O_NONBLOCK kept
void raw_eventfd_write(int fd);  // adds 1
// Takes one; blocks unless O_NONBLOCK. 0 or a positive errno.
int raw_eventfd_read(int fd);
// Takes one without blocking whatever the descriptor's flags; false when there was none.
bool raw_eventfd_take_one_nonblocking(int fd);

}  // namespace softrnic
