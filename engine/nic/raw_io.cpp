#include "engine/nic/raw_io.h"

#include <initializer_list>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include "engine/nic/raw_syscall.h"

namespace softrnic {
namespace {

constexpr long kRwfNowait = 0x00000008;  // RWF_NOWAIT, absent from older headers

}  // namespace

int raw_close(int fd) { return static_cast<int>(raw_syscall(SYS_close, fd)); }

long raw_read(int fd, void* buf, std::size_t n) {
  return raw_syscall(SYS_read, fd, raw_pointer(buf), static_cast<long>(n));
}

long raw_write(int fd, const void* buf, std::size_t n) {
  return raw_syscall(SYS_write, fd, raw_pointer(buf), static_cast<long>(n));
}

int raw_move_high(int fd) {
  // F_DUPFD_CLOEXEC gives the lowest free number that is not below its argument, and EINVAL beyond the limit.
  for (int lowest : {512, 256, 128, 64}) {
    if (fd >= lowest) break;
    long moved = raw_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest);
    if (moved >= 0) {
      raw_close(fd);
      return static_cast<int>(moved);
    }
    if (moved == -EBADF) return -EBADF;
  }
  long rc = raw_syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
  return rc < 0 ? static_cast<int>(rc) : fd;
}

int raw_eventfd_semaphore() {
  long fd = raw_syscall(SYS_eventfd2, 0, EFD_SEMAPHORE | EFD_CLOEXEC);
  return fd < 0 ? static_cast<int>(fd) : raw_move_high(static_cast<int>(fd));
}

void raw_eventfd_renew(int fd) {
  long fresh = raw_syscall(SYS_eventfd2, 0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (fresh < 0) return;
  long flags = raw_syscall(SYS_fcntl, fd, F_GETFL);
  if (flags >= 0) raw_syscall(SYS_fcntl, fresh, F_SETFL, flags & O_NONBLOCK);
  raw_syscall(SYS_dup3, fresh, fd, O_CLOEXEC);
  raw_close(static_cast<int>(fresh));
}

void raw_eventfd_write(int fd) {
  std::uint64_t one = 1;
  raw_write(fd, &one, sizeof one);
}

bool raw_eventfd_take_one_nonblocking(int fd) {
  std::uint64_t value = 0;
  iovec iov{&value, sizeof value};
  long n = raw_syscall(SYS_preadv2, fd, raw_pointer(&iov), 1, -1, -1, kRwfNowait);
  if (n != -EOPNOTSUPP && n != -EINVAL && n != -ENOSYS) return n == sizeof value;
  // Kernels before 5.8: eventfds do not know RWF_NOWAIT.
  pollfd p{fd, POLLIN, 0};
  timespec zero{};
  if (raw_syscall(SYS_ppoll, raw_pointer(&p), 1, raw_pointer(&zero), 0, 0) != 1) return false;
  return raw_read(fd, &value, sizeof value) == sizeof value;
}

int raw_eventfd_read(int fd) {
  if (raw_eventfd_take_one_nonblocking(fd)) return 0;
  // The application waits here (ibv_get_cq_event), as it does in read() of other providers: this one is a
  // cancellation point on purpose, since programs cancel threads that wait for events.
  std::uint64_t value = 0;
  ssize_t n = ::read(fd, &value, sizeof value);
  return n == sizeof value ? 0 : n < 0 ? errno : EIO;
}

}  // namespace softrnic
