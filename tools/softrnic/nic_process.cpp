#include "tools/softrnic/nic_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "tools/softrnic/child_report.h"
#include "tools/softrnic/paths.h"

extern char** environ;

namespace softrnic::tool {
namespace {

constexpr std::chrono::seconds kPatience{15};  // for a NIC process that starts or ends meanwhile
constexpr std::chrono::milliseconds kRetry{5};

}  // namespace

int connect_nic(const std::string& socket, control::Connection* connection, control::HelloInfo* info,
                std::string* why) {
  int error = connection->connect(socket);
  if (error == 0) {
    error = control::hello(*connection, info);
    if (error == EPROTONOSUPPORT) {
      *why = fmt::format(
          "the NIC process at '{}' is softrnic {} (protocol {}), this is softrnic {} (protocol {}): end "
          "it with its own 'softrnic down' first",
          socket, info->reply.daemon_version, info->reply.version, SOFTRNIC_VERSION, control::kProtocolVersion);
    } else if (error != 0) {
      *why = fmt::format("the NIC process at '{}' does not answer: {}", socket, std::strerror(error));
    }
    return error;
  }
  if (error == ENOENT) {
    *why = fmt::format(
        "no NIC process is running: there is no socket '{}' (start one with 'softrnic up', or run "
        "programs with 'softrnic run')",
        socket);
  } else if (error == ECONNREFUSED) {
    *why = fmt::format(
        "no NIC process is running: the socket '{}' is stale, its NIC process has died (the next "
        "'softrnic up' or 'softrnic run' replaces it)",
        socket);
  } else if (error == EPERM) {
    *why = fmt::format("the NIC process at '{}' is another user's", socket);
  } else {
    *why = fmt::format("cannot connect to '{}': {}", socket, std::strerror(error));
  }
  return error;
}

int start_nic(const std::vector<std::string>& arguments, std::string* why) {
  const std::string path = daemon_path();
  std::vector<std::string> words = {path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);

  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return *why = std::strerror(errno), EIO;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, fds[1], 2);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, path.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(fds[1]);
  if (error != 0) {
    ::close(fds[0]);
    *why = fmt::format("cannot start '{}': {}", path, std::strerror(error));
    return EIO;
  }
  *why = read_all(fds[0]);
  ::close(fds[0]);
  const int status = wait_for(pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == EX_TEMPFAIL) return EADDRINUSE;
  if (why->empty()) *why = fmt::format("'{}' failed to start", path);
  return EIO;
}

int join_or_start(const std::string& dir, const std::string& socket, const std::vector<std::string>& extra_arguments,
                  control::Connection* connection, control::HelloInfo* info, std::string* why) {
  std::vector<std::string> arguments = {"--dir", dir, "--linger", "0"};
  arguments.insert(arguments.end(), extra_arguments.begin(), extra_arguments.end());
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    int error = connect_nic(socket, connection, info, why);
    if (error == 0) {
      control::Message reply;
      error = connection->call(control::MsgType::hold, nullptr, 0, &reply);
      if (error == 0) return 0;
      *why = fmt::format("the NIC process at '{}' ended", socket);
    }
    if (error == ENOENT || error == ECONNREFUSED) {
      error = start_nic(arguments, why);
      if (error == 0) continue;
    }
    // EPIPE: it is just ending. EADDRINUSE: it is ending, or somebody else has started one at the same time.
    if ((error != EPIPE && error != EADDRINUSE) || std::chrono::steady_clock::now() >= deadline) return error;
    std::this_thread::sleep_for(kRetry);
  }
}

std::string report_text(control::Message& reply) {
  if (reply.num_fds == 0) return std::string(reply.body.begin(), reply.body.end());
  std::string text;
  struct stat st {};
  if (::fstat(reply.fds[0], &st) == 0) {
    text.resize(static_cast<std::size_t>(st.st_size));
    const ssize_t n = ::pread(reply.fds[0], text.data(), text.size(), 0);
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  }
  reply.close_fds();
  return text;
}

}  // namespace softrnic::tool
