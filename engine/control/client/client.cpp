#include "engine/control/client/client.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/control/socket_name.h"
#include "engine/nic/raw_io.h"
#include "engine/nic/raw_syscall.h"

namespace softrnic::control {
namespace {

constexpr std::uint32_t kMaxDevices = 256;
constexpr std::uint32_t kMaxGids = 65536;

// Takes the descriptors out of the ancillary data and moves them to high numbers. More than kMaxFds are closed.
void take_fds(msghdr& mh, Message* out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&mh); c != nullptr; c = CMSG_NXTHDR(&mh, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    std::size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      int high = raw_move_high(fd);
      if (high < 0) high = fd;
      if (out->num_fds < kMaxFds) {
        out->fds[out->num_fds++] = high;
      } else {
        raw_close(high);
      }
    }
  }
}

}  // namespace

std::string default_socket_path() {
  SocketName name;
  find_socket_name(&name);
  return std::string(name.base) + name.rest;
}

void Message::close_fds() {
  for (int i = 0; i < num_fds; ++i) {
    if (fds[i] >= 0) raw_close(fds[i]);
  }
  num_fds = 0;
}

Connection::~Connection() { close(); }

void Connection::close() {
  if (fd_ >= 0) raw_close(fd_);
  fd_ = -1;
}

int Connection::connect(const std::string& path) {
  sockaddr_un addr{};
  addr.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof addr.sun_path) return ENAMETOOLONG;
  std::memcpy(addr.sun_path, path.c_str(), path.size() + 1);
  long fd = raw_syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return static_cast<int>(-fd);
  int high = raw_move_high(static_cast<int>(fd));
  if (high < 0) high = static_cast<int>(fd);
  long rc;
  do {
    rc = raw_syscall(SYS_connect, high, raw_pointer(&addr), sizeof addr);
  } while (rc == -EINTR);
  if (rc < 0) {
    raw_close(high);
    return static_cast<int>(-rc);
  }
  // In /tmp anybody may have made the directory that we expect to be ours.
  ucred peer{};
  socklen_t size = sizeof peer;
  rc = raw_syscall(SYS_getsockopt, high, SOL_SOCKET, SO_PEERCRED, raw_pointer(&peer), raw_pointer(&size));
  if (rc == 0 && peer.uid != 0 && peer.uid != static_cast<uid_t>(raw_syscall(SYS_geteuid))) rc = -EPERM;
  if (rc < 0) {
    raw_close(high);
    return static_cast<int>(-rc);
  }
  close();
  fd_ = high;
  return 0;
}

int Connection::send(MsgType type, std::uint32_t seq, const void* body, std::uint32_t length, const int* fds,
                     int num_fds) {
  if (fd_ < 0) return EPIPE;
  if (length > kMaxMessage - sizeof(MsgHeader) || num_fds < 0 || num_fds > kMaxFds) return EINVAL;
  MsgHeader header{};
  header.type = static_cast<std::uint16_t>(type);
  header.seq = seq;
  header.length = length;
  iovec iov[2] = {{&header, sizeof header}, {const_cast<void*>(body), length}};
  msghdr mh{};
  mh.msg_iov = iov;
  mh.msg_iovlen = length != 0 ? 2 : 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  if (num_fds > 0) {
    mh.msg_control = control;
    mh.msg_controllen = CMSG_SPACE(sizeof(int) * static_cast<std::size_t>(num_fds));
    cmsghdr* c = CMSG_FIRSTHDR(&mh);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * static_cast<std::size_t>(num_fds));
    std::memcpy(CMSG_DATA(c), fds, sizeof(int) * static_cast<std::size_t>(num_fds));
  }
  long n;
  do {
    n = raw_syscall(SYS_sendmsg, fd_, raw_pointer(&mh), MSG_NOSIGNAL);
  } while (n == -EINTR);
  if (n == -ECONNRESET || n == -ENOTCONN) return EPIPE;
  return n < 0 ? static_cast<int>(-n) : 0;
}

int Connection::receive(Message* out, bool nonblocking) {
  out->body.clear();
  out->num_fds = 0;
  if (fd_ < 0) return EPIPE;
  iovec iov[2] = {{&out->header, sizeof out->header}, {nullptr, 0}};
  out->body.resize(kMaxMessage);
  iov[1] = {out->body.data(), out->body.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)];
  msghdr mh{};
  mh.msg_iov = iov;
  mh.msg_iovlen = 2;
  mh.msg_control = control;
  mh.msg_controllen = sizeof control;
  long n;
  do {
    n = raw_syscall(SYS_recvmsg, fd_, raw_pointer(&mh), MSG_CMSG_CLOEXEC | (nonblocking ? MSG_DONTWAIT : 0));
  } while (n == -EINTR);
  if (n < 0) {
    out->body.clear();
    return n == -ECONNRESET ? EPIPE : static_cast<int>(-n);
  }
  take_fds(mh, out);
  if (n == 0) {
    out->close_fds();
    out->body.clear();
    return EPIPE;
  }
  if (n < static_cast<long>(sizeof(MsgHeader)) || (mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      out->header.length != static_cast<std::uint64_t>(n) - sizeof(MsgHeader)) {
    out->close_fds();
    out->body.clear();
    return EPROTO;
  }
  out->body.resize(out->header.length);
  return 0;
}

int Connection::call(MsgType type, const void* body, std::uint32_t length, Message* reply,
                     std::vector<Message>* notices, const int* fds, int num_fds) {
  std::uint32_t seq = next_seq_++;
  if (next_seq_ == 0) next_seq_ = 1;
  if (int rc = send(type, seq, body, length, fds, num_fds); rc != 0) return rc;
  for (;;) {
    if (int rc = receive(reply); rc != 0) return rc;
    if (reply->header.seq == seq) return reply->header.status;
    if (reply->header.seq == 0 && notices != nullptr) {
      notices->push_back(*reply);
    } else {
      reply->close_fds();  // a notice nobody wants, or the answer to nothing
    }
  }
}

int hello(Connection& c, HelloInfo* out) {
  HelloRequest request{};
  request.version = kProtocolVersion;
  request.pid = static_cast<std::uint32_t>(raw_syscall(SYS_getpid));
  if (long fd = raw_syscall(SYS_openat, AT_FDCWD, raw_pointer("/proc/self/comm"), O_RDONLY | O_CLOEXEC); fd >= 0) {
    long n = raw_read(static_cast<int>(fd), request.comm, sizeof request.comm - 1);
    raw_close(static_cast<int>(fd));
    if (n > 0 && request.comm[n - 1] == '\n') request.comm[n - 1] = '\0';
  }
  std::strncpy(request.library_version, SOFTRNIC_VERSION, sizeof request.library_version - 1);
  Message reply;
  int rc = c.call(MsgType::hello, &request, sizeof request, &reply);
  reply.close_fds();
  if (reply.body.size() >= sizeof(HelloReply)) {
    std::memcpy(&out->reply, reply.body.data(), sizeof(HelloReply));
    out->reply.daemon_version[sizeof out->reply.daemon_version - 1] = '\0';
    out->reply.runtime_dir[sizeof out->reply.runtime_dir - 1] = '\0';
  }
  if (rc != 0) return rc;
  if (reply.body.size() < sizeof(HelloReply)) return EPROTO;
  if (out->reply.version != kProtocolVersion) return EPROTONOSUPPORT;
  const std::size_t devices = out->reply.num_devices, gids = out->reply.num_gids;
  if (devices > kMaxDevices || gids > kMaxGids ||
      reply.body.size() != sizeof(HelloReply) + devices * sizeof(DeviceRecord) + gids * sizeof(GidRecord)) {
    return EPROTO;
  }
  const std::uint8_t* p = reply.body.data() + sizeof(HelloReply);
  out->devices.resize(devices);
  if (devices != 0) std::memcpy(out->devices.data(), p, devices * sizeof(DeviceRecord));
  p += devices * sizeof(DeviceRecord);
  out->gids.resize(gids);
  if (gids != 0) std::memcpy(out->gids.data(), p, gids * sizeof(GidRecord));
  for (DeviceRecord& d : out->devices) {
    d.name[sizeof d.name - 1] = d.fw_ver[sizeof d.fw_ver - 1] = d.netdev[sizeof d.netdev - 1] = '\0';
  }
  return 0;
}

}  // namespace softrnic::control
