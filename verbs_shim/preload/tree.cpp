#include "verbs_shim/preload/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/control/socket_name.h"
#include "engine/control/wire.h"

namespace softrnic::preload {
namespace {

// Names below these are in the tree.
struct Prefix {
  const char* text;
  size_t length;
  bool begins_names;  // also longer names: infiniband_verbs
};
#define PREFIX(text, begins) \
  { text, sizeof text - 1, begins }
constexpr Prefix kPrefixes[] = {PREFIX("/sys/class/infiniband", true), PREFIX("/sys/class/misc/rdma_cm", false),
                                PREFIX("/sys/devices/softrnic", false), PREFIX("/dev/infiniband", false)};
#undef PREFIX

bool is_ours(const char* path) {
  for (const Prefix& p : kPrefixes) {
    if (strncmp(path, p.text, p.length) != 0) continue;
    const char next = path[p.length];
    if (next == '\0' || next == '/' || (p.begins_names && next == '_')) return true;
  }
  return false;
}

// The control socket; false: its path is too long.
bool socket_path(char* out, size_t size) {
  control::SocketName name;
  control::find_socket_name(&name);
  const int n = snprintf(out, size, "%s%s", name.base, name.rest);
  return n > 0 && static_cast<size_t>(n) < size;
}

// Directory of the NIC process; the tree is in its sys/ and dev/. Asked anew each time: programs change their
// environment, and these names are rare.
bool runtime_dir(char* out, size_t size) {
  if (!socket_path(out, size)) return false;
  char* slash = strrchr(out, '/');
  if (slash == nullptr || slash == out) return false;
  *slash = '\0';
  return true;
}

struct Hello {
  control::MsgHeader header;
  control::HelloRequest request;
};

bool exchange(int fd, const void* request, size_t length, void* reply, size_t size) {
  if (syscall(SYS_sendto, fd, request, length, MSG_NOSIGNAL, nullptr, 0) < 0) return false;
  control::MsgHeader header;
  const long n = syscall(SYS_recvfrom, fd, reply, size, 0, nullptr, nullptr);
  if (n < static_cast<long>(sizeof header)) return false;
  memcpy(&header, reply, sizeof header);
  return header.status == 0;
}

// Counters are brought up to date when somebody is about to look at them. A NIC process that does not answer soon
// leaves them as they are.
void refresh_counters(const char* path) {
  if (strstr(path, "counters/") == nullptr) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!socket_path(address.sun_path, sizeof address.sun_path)) return;
  const int error = errno;
  const int fd = static_cast<int>(syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (fd < 0) return;
  const timeval patience{0, 200'000};
  syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  Hello hello{};
  hello.header.type = static_cast<uint16_t>(control::MsgType::hello);
  hello.header.seq = 1;
  hello.header.length = sizeof hello.request;
  hello.request.version = control::kProtocolVersion;
  hello.request.pid = static_cast<uint32_t>(syscall(SYS_getpid));
  memcpy(hello.request.comm, "sysfs", 6);
  control::MsgHeader refresh{};
  refresh.type = static_cast<uint16_t>(control::MsgType::sysfs);
  refresh.seq = 2;
  char reply[512];
  if (syscall(SYS_connect, fd, &address, sizeof address) == 0 &&
      exchange(fd, &hello, sizeof hello, reply, sizeof reply))
    exchange(fd, &refresh, sizeof refresh, reply, sizeof reply);
  syscall(SYS_close, fd);
  errno = error;
}

}  // namespace

const char* Path::translate(const char* path) {
  if (!is_ours(path) || !runtime_dir(buffer_, sizeof buffer_)) return path;
  const size_t length = strlen(buffer_);
  // Without a tree the names are the kernel's.
  if (length + sizeof "/sys" > sizeof buffer_) return path;
  memcpy(buffer_ + length, "/sys", sizeof "/sys");
  if (syscall(SYS_faccessat, AT_FDCWD, buffer_, X_OK) != 0) return path;
  const size_t rest = strlen(path) + 1;
  if (length + rest > sizeof buffer_) return path;
  memcpy(buffer_ + length, path, rest);
  refresh_counters(path);
  return buffer_;
}

void untranslate(char* path) {
  char dir[PATH_MAX];
  if (!runtime_dir(dir, sizeof dir)) return;
  const size_t length = strlen(dir);
  if (strncmp(path, dir, length) == 0 && is_ours(path + length))
    memmove(path, path + length, strlen(path + length) + 1);
}

}  // namespace softrnic::preload
