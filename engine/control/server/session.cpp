#include "engine/control/server/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace softrnic::control {
namespace {

constexpr std::size_t kMaxQueued = 8192;  // every VF may get one notice from each other VF
constexpr std::chrono::milliseconds kResourceRetry{5};
constexpr int kMessagesPerTurn = 16;  // then other connections get theirs

// Room for more descriptors than are allowed, so that too many are seen and closed, not lost.
constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int) * kMaxFds * 2);

std::vector<sw::UniqueFd> take_fds(const msghdr& msg) {
  std::vector<sw::UniqueFd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c != nullptr; c = CMSG_NXTHDR(const_cast<msghdr*>(&msg), c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Session::Session(boost::asio::io_context& io, sw::UniqueFd socket, std::uint64_t id, Callbacks callbacks)
    : io_(io),
      socket_(io),
      process_(io),
      retry_(io),
      id_(id),
      callbacks_(std::move(callbacks)),
      buffer_(sizeof(MsgHeader) + kMaxMessage) {
  ucred cred{};
  socklen_t length = sizeof(cred);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &cred, &length) == 0) {
    pid_ = cred.pid;
    uid_ = cred.uid;
  }
  socket_.assign(socket.release());
}

void Session::start() {
  watch_process();
  wait_readable();
}

// End of file on the socket is not enough: a child that the process forked keeps the socket open.
void Session::watch_process() {
  if (pid_ <= 0 || pid_ == ::getpid()) return;
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  if (fd < 0) {
    // Already gone. (A kernel before 5.3 has no pidfd: end of file must do there.)
    if (errno == ESRCH) close("the process has ended");
    return;
  }
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  process_.assign(fd);
  wait_process();
}

// Asio may wake us for an event of an earlier descriptor with the same number: only the descriptor itself knows.
void Session::wait_process() {
  process_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [self = shared_from_this()](const boost::system::error_code& error) {
                        if (error || self->closed_) return;
                        pollfd p{self->process_.native_handle(), POLLIN, 0};
                        if (::poll(&p, 1, 0) == 1) return self->close("the process has ended");
                        self->wait_process();
                      });
}

void Session::wait_readable() {
  socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       if (error || self->closed_) return;
                       for (int i = 0; i < kMessagesPerTurn; ++i)
                         if (!self->read_one()) break;
                       if (!self->closed_ && !self->no_more_requests_) self->wait_readable();
                     });
}

// One packet. False when there is none, or the connection ended.
bool Session::read_one() {
  alignas(cmsghdr) char control[kControlBytes];
  iovec iov{buffer_.data(), buffer_.size()};
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  msg.msg_control = control;
  msg.msg_controllen = sizeof(control);
  const ssize_t n = ::recvmsg(socket_.native_handle(), &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    close(fmt::format("receive: {}", std::strerror(errno)));
    return false;
  }
  Request request;
  request.fds = take_fds(msg);
  if (n == 0) {
    no_more_requests_ = true;
    if (!callbacks_.on_end_of_requests(*this)) close("");
    return false;
  }
  const auto size = static_cast<std::size_t>(n);
  if ((msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || request.fds.size() > kMaxFds) {
    close("malformed message: too long or too many descriptors");
    return false;
  }
  if (size < sizeof(MsgHeader)) {
    close(fmt::format("malformed message: {} bytes are no header", size));
    return false;
  }
  std::memcpy(&request.header, buffer_.data(), sizeof(MsgHeader));
  if (request.header.length != size - sizeof(MsgHeader) || request.header.reserved != 0) {
    close(fmt::format("malformed message: type {}, length {}, packet of {} bytes", request.header.type,
                      request.header.length, size));
    return false;
  }
  request.body = std::span<const std::uint8_t>(buffer_).subspan(sizeof(MsgHeader), request.header.length);
  callbacks_.on_request(*this, request);
  return !closed_;
}

void Session::send(MsgType type, std::uint32_t seq, int status, const void* body, std::size_t length,
                   std::span<const int> fds) {
  if (closed_) return;
  Outgoing m;
  MsgHeader header{};
  header.type = static_cast<std::uint16_t>(type);
  header.seq = seq;
  header.status = status;
  header.length = static_cast<std::uint32_t>(length);
  m.bytes.resize(sizeof(header) + length);
  std::memcpy(m.bytes.data(), &header, sizeof(header));
  if (length != 0) std::memcpy(m.bytes.data() + sizeof(header), body, length);
  for (const int fd : fds) {
    m.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!m.fds.back()) return close(fmt::format("no descriptor left: {}", std::strerror(errno)));
  }
  out_.push_back(std::move(m));
  if (out_.size() > kMaxQueued) return close("the process does not read its messages");
  if (!writing_) write_more();
}

// Sends what the socket takes.
Session::WriteResult Session::write_queued() {
  while (!out_.empty()) {
    Outgoing& m = out_.front();
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)]{};
    iovec iov{m.bytes.data(), m.bytes.size()};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    if (!m.fds.empty()) {
      msg.msg_control = control;
      msg.msg_controllen = CMSG_SPACE(sizeof(int) * m.fds.size());
      cmsghdr* c = CMSG_FIRSTHDR(&msg);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int) * m.fds.size());
      for (std::size_t i = 0; i < m.fds.size(); ++i) {
        const int fd = m.fds[i].get();
        std::memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
      }
    }
    if (::sendmsg(socket_.native_handle(), &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return WriteResult::socket_full;
      // ETOOMANYREFS: as many descriptors are on their way to their receivers as RLIMIT_NOFILE allows.
      if (errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS) return WriteResult::no_resources;
      close(errno == EPIPE || errno == ECONNRESET ? std::string() : fmt::format("send: {}", std::strerror(errno)));
      return WriteResult::done;
    }
    out_.pop_front();
  }
  return WriteResult::done;
}

void Session::write_more() {
  const WriteResult result = write_queued();
  writing_ = result != WriteResult::done;
  if (!writing_) {
    if (closing_) close("");
    return;
  }
  auto again = [self = shared_from_this()](const boost::system::error_code& error) {
    if (!error && !self->closed_) self->write_more();
  };
  if (result == WriteResult::socket_full) {
    socket_.async_wait(boost::asio::posix::stream_descriptor::wait_write, std::move(again));
  } else {
    retry_.expires_after(kResourceRetry);
    retry_.async_wait(std::move(again));
  }
}

bool Session::has_unread() {
  int bytes = 0;
  return !out_.empty() || (::ioctl(socket_.native_handle(), SIOCOUTQ, &bytes) == 0 && bytes > 0);
}

void Session::close_when_sent() {
  closing_ = true;
  if (!writing_) close("");
}

void Session::close(std::string reason) {
  if (closed_) return;
  closed_ = true;
  boost::asio::post(io_, [self = shared_from_this(), why = std::move(reason)] {
    boost::system::error_code ignored;
    self->socket_.close(ignored);
    self->process_.close(ignored);
    self->retry_.cancel();
    self->callbacks_.on_closed(*self, why);
  });
}

}  // namespace softrnic::control
