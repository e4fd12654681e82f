// softrnic run: a program with the NIC around it.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

#include "tools/softrnic/capture_client.h"
#include "tools/softrnic/commands.h"
#include "tools/softrnic/nic_process.h"
#include "tools/softrnic/paths.h"

namespace softrnic::tool {
namespace {

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) sigaddset(&set, s);
  return set;
}

void prepend(const char* variable, const std::string& value, char separator) {
  const char* old = std::getenv(variable);
  const std::string text = old != nullptr && *old != '\0' ? value + separator + old : value;
  ::setenv(variable, text.c_str(), 1);
}

void set_environment(const std::string& socket, const std::string& libraries, bool force) {
  ::setenv("SOFTRNIC_SOCKET", socket.c_str(), 1);
  prepend("LD_LIBRARY_PATH", libraries, ':');
  if (const std::string list = preload_list(libraries); !list.empty()) ::setenv("LD_PRELOAD", list.c_str(), 1);
  if (force) prepend("LD_PRELOAD", libraries + "/libibverbs.so.1", ':');
}

// execvp() says EACCES also when a directory of PATH cannot be searched and the command is nowhere.
bool exists_in_path(const std::string& command) {
  if (command.find('/') != std::string::npos) return true;
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    const std::string file = std::string(rest.substr(0, colon)) + "/" + command;
    if (::access(file.c_str(), F_OK) == 0) return true;
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return false;
}

// Starts the command. The child's pid, or minus the errno value of exec().
pid_t start_command(const std::vector<std::string>& command, const sigset_t& old_mask) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return -errno;
  const pid_t child = ::fork();
  if (child == 0) {
    ::sigprocmask(SIG_SETMASK, &old_mask, nullptr);
    ::execvp(argv[0], argv.data());
    const int error = errno == EACCES && !exists_in_path(command[0]) ? ENOENT : errno;
    [[maybe_unused]] const auto n = ::write(fds[1], &error, sizeof(error));
    ::_exit(kExitNotExecutable);
  }
  const int fork_error = errno;
  ::close(fds[1]);
  int error = child < 0 ? fork_error : 0;
  // End of file: exec() has closed the pipe.
  if (child > 0 && ::read(fds[0], &error, sizeof(error)) == sizeof(error)) ::waitpid(child, nullptr, 0);
  ::close(fds[0]);
  return error != 0 ? -error : child;
}

// Waits for the child's end, passing on the signals we get. Its wait status.
int supervise(pid_t child, const sigset_t& signals) {
  for (;;) {
    siginfo_t info{};
    if (::sigwaitinfo(&signals, &info) < 0) continue;
    if (info.si_signo != SIGCHLD) {
      // The terminal has sent its signals to the whole process group.
      if (info.si_code != SI_KERNEL) ::kill(child, info.si_signo);
      continue;
    }
    int status = 0;
    while (::waitpid(child, &status, WNOHANG | WUNTRACED) == child) {
      if (!WIFSTOPPED(status)) return status;
      ::raise(SIGSTOP);  // as a shell sees it: we stop with the program and go on with it
      ::kill(child, SIGCONT);
    }
  }
}

int exit_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

// Ends a private NIC process; it removes its directory itself, also when we are killed.
void end_private(control::Connection& nic, const std::string& dir) {
  control::Message reply;
  nic.call(control::MsgType::shutdown, nullptr, 0, &reply);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  struct stat st {};
  while (::lstat(dir.c_str(), &st) == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

bool end_capture(CaptureClient& capture) {
  capture.stop();
  std::string why;
  const bool ok = capture.wait_for_end(&why);
  if (!ok) complain(why);
  if (capture.lost() != 0) complain(fmt::format("{} packets are missing in the capture", capture.lost()));
  return ok && capture.lost() == 0;
}

// They go when `nic` is closed.
bool add_run_faults(control::Connection& nic, const std::vector<std::string>& rules) {
  for (const std::string& rule : rules) {
    control::FaultAddReply added{};
    std::string why;
    if (!add_faults(nic, rule, true, &added, &why)) return complain(fmt::format("{}\n  {}", why, rule)), false;
  }
  return true;
}

int run_command(const RunOptions& options, const std::string& socket, const std::string& libraries) {
  std::optional<CaptureClient> capture;
  if (!options.capture_file.empty()) {
    std::string why;
    capture.emplace();
    if (!capture->start(socket, options.capture_file, 0, "", &why)) return complain(why), kExitRunFailure;
  }
  set_environment(socket, libraries, options.force);
  const sigset_t signals = handled_signals();
  sigset_t old_mask;
  ::sigprocmask(SIG_BLOCK, &signals, &old_mask);
  const pid_t child = start_command(options.command, old_mask);
  int result = 0;
  if (child < 0) {
    complain(fmt::format("cannot run '{}': {}", options.command[0], std::strerror(-child)));
    result = child == -ENOENT ? kExitNotFound : kExitNotExecutable;
  } else {
    result = exit_status(supervise(child, signals));
  }
  if (capture && !end_capture(*capture) && result == 0) result = kExitRunFailure;
  return result;
}

}  // namespace

int run(const RunOptions& options) {
  const std::string libraries = library_dir();
  if (libraries.empty()) return complain("softrnic's libibverbs.so.1 is not where it belongs"), kExitRunFailure;
  std::string dir = runtime_dir(options.dir);
  std::string socket = socket_path(options.dir);
  std::vector<std::string> arguments;
  if (options.private_nic) {
    dir = make_private_dir();
    if (dir.empty())
      return complain(fmt::format("cannot make a temporary directory: {}", std::strerror(errno))), kExitRunFailure;
    socket = dir + "/control.sock";
    arguments.push_back("--remove-dir");
  }
  control::Connection nic;
  control::HelloInfo info;
  std::string why;
  if (join_or_start(dir, socket, arguments, &nic, &info, &why) != 0) {
    if (options.private_nic) ::rmdir(dir.c_str());
    return complain(why), kExitRunFailure;
  }
  const int result = add_run_faults(nic, options.faults) ? run_command(options, socket, libraries) : kExitRunFailure;
  if (options.private_nic) end_private(nic, dir);
  return result;
}

}  // namespace softrnic::tool
