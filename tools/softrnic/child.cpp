#include "tools/softrnic/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tools/softrnic/commands.h"
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

// Why a command did not start.
struct StartError {
  int error = 0;  // errno value; 0: it started
  bool prepared = true;
};

// Starts the command. The child's pid, or -1.
pid_t start_command(const std::vector<std::string>& command, const std::function<int()>& prepare,
                    const sigset_t& old_mask, StartError* why) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return *why = {errno, false}, -1;
  const pid_t child = ::fork();
  if (child == 0) {
    StartError failed;
    failed.error = prepare ? prepare() : 0;
    failed.prepared = failed.error == 0;
    if (failed.prepared) {
      ::sigprocmask(SIG_SETMASK, &old_mask, nullptr);
      ::execvp(argv[0], argv.data());
      failed.error = errno == EACCES && !exists_in_path(command[0]) ? ENOENT : errno;
    }
    [[maybe_unused]] const auto n = ::write(fds[1], &failed, sizeof(failed));
    ::_exit(kExitNotExecutable);
  }
  *why = {child < 0 ? errno : 0, child >= 0};
  ::close(fds[1]);
  // End of file: exec() has closed the pipe.
  StartError failed;
  if (child > 0 && ::read(fds[0], &failed, sizeof(failed)) == sizeof(failed)) {
    *why = failed;
    ::waitpid(child, nullptr, 0);
  }
  ::close(fds[0]);
  return why->error != 0 ? -1 : child;
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

}  // namespace

void set_environment(const std::string& socket, const std::string& libraries, bool force) {
  ::setenv("SOFTRNIC_SOCKET", socket.c_str(), 1);
  prepend("LD_LIBRARY_PATH", libraries, ':');
  if (const std::string list = preload_list(libraries); !list.empty()) ::setenv("LD_PRELOAD", list.c_str(), 1);
  if (force) prepend("LD_PRELOAD", libraries + "/libibverbs.so.1", ':');
}

int run_child(const std::vector<std::string>& command, const std::function<int()>& prepare) {
  const sigset_t signals = handled_signals();
  sigset_t old_mask;
  ::sigprocmask(SIG_BLOCK, &signals, &old_mask);
  StartError why;
  const pid_t child = start_command(command, prepare, old_mask, &why);
  if (child < 0) {
    complain(fmt::format("cannot run '{}': {}", command[0], std::strerror(why.error)));
    if (!why.prepared) return kExitRunFailure;
    return why.error == ENOENT ? kExitNotFound : kExitNotExecutable;
  }
  const int status = supervise(child, signals);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace softrnic::tool
