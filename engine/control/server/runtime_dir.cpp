#include "engine/control/server/runtime_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace softrnic::control {
namespace {

int fail(std::string* why, int error, std::string text) {
  if (why != nullptr) *why = std::move(text);
  return error;
}

std::string describe(int error) { return std::strerror(error); }

int make_address(const std::string& path, sockaddr_un* out, std::string* why) {
  *out = {};
  out->sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(out->sun_path))
    return fail(why, ENAMETOOLONG,
                fmt::format("the socket path '{}' has {} characters, at most {} are possible", path, path.size(),
                            sizeof(out->sun_path) - 1));
  std::memcpy(out->sun_path, path.data(), path.size());
  return 0;
}

// The process that holds the lock wrote its number there.
std::string read_pid(int fd) {
  char text[32]{};
  const ssize_t n = ::pread(fd, text, sizeof(text) - 1, 0);
  std::string pid(text, n > 0 ? static_cast<std::size_t>(n) : 0);
  while (!pid.empty() && (pid.back() < '0' || pid.back() > '9')) pid.pop_back();
  return pid.empty() ? "another process" : "process " + pid;
}

}  // namespace

int check_dir(const std::string& path, std::string* why) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) {
    const int error = errno;
    return fail(why, error, fmt::format("'{}': {}", path, describe(error)));
  }
  if (S_ISLNK(st.st_mode)) return fail(why, EPERM, fmt::format("'{}' is a symbolic link, not a directory", path));
  if (!S_ISDIR(st.st_mode)) return fail(why, ENOTDIR, fmt::format("'{}' is not a directory", path));
  if (st.st_uid != ::geteuid())
    return fail(why, EPERM,
                fmt::format("the directory '{}' belongs to user {}, not to user {}", path, st.st_uid, ::geteuid()));
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (st.st_mode & S_ISVTX) == 0)
    return fail(why, EPERM,
                fmt::format("other users can write to the directory '{}' (mode {:04o}); make it private with "
                            "chmod 700",
                            path, st.st_mode & 07777));
  return 0;
}

int RuntimeDir::open(const std::string& path, std::string* why) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const int error = errno;
    return fail(why, error, fmt::format("cannot make the directory '{}': {}", path, describe(error)));
  }
  if (int error = check_dir(path, why)) return error;
  const std::string lock_path = path + "/lock";
  sw::UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) {
    const int error = errno;
    return fail(why, error, fmt::format("cannot open '{}': {}", lock_path, describe(error)));
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno == EWOULDBLOCK ? EADDRINUSE : errno;
    if (error != EADDRINUSE) return fail(why, error, fmt::format("cannot lock '{}': {}", lock_path, describe(error)));
    return fail(why, error, fmt::format("a NIC process ({}) is already running in '{}'", read_pid(lock.get()), path));
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) < 0) {
    const int error = errno;
    return fail(why, error, fmt::format("cannot write '{}': {}", lock_path, describe(error)));
  }
  path_ = path;
  lock_ = std::move(lock);
  return 0;
}

int RuntimeDir::listen(const std::string& socket_path, sw::UniqueFd* out, std::string* why) const {
  sockaddr_un address{};
  if (int error = make_address(socket_path, &address, why)) return error;
  const auto* sa = reinterpret_cast<const sockaddr*>(&address);

  struct stat st {};
  if (::lstat(socket_path.c_str(), &st) == 0) {
    if (!S_ISSOCK(st.st_mode)) return fail(why, EEXIST, fmt::format("'{}' exists and is not a socket", socket_path));
    sw::UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // EAGAIN: somebody listens whose queue of connections is full.
    if (probe && (::connect(probe.get(), sa, sizeof(address)) == 0 || errno == EAGAIN))
      return fail(why, EADDRINUSE, fmt::format("a NIC process is already listening on '{}'", socket_path));
    ::unlink(socket_path.c_str());
  }

  sw::UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The mode set before bind() becomes the mode of the file, so it is private from the start without
  // touching the process's umask.
  if (!fd || ::fchmod(fd.get(), 0600) != 0 || ::bind(fd.get(), sa, sizeof(address)) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    return fail(why, error, fmt::format("cannot listen on '{}': {}", socket_path, describe(error)));
  }
  *out = std::move(fd);
  return 0;
}

}  // namespace softrnic::control
