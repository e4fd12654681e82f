#include "tools/softrnic/lab_keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/softrnic/child_report.h"
#include "tools/softrnic/lab_builder.h"
#include "tools/softrnic/lab_store.h"
#include "tools/softrnic/namespaces.h"

namespace softrnic::tool {
namespace {

using nlohmann::json;

constexpr char kReady = '\0';                 // all that a keeper reports when all is well; else a sentence
constexpr std::chrono::seconds kPatience{2};  // for processes that end by themselves
constexpr std::chrono::milliseconds kPoll{2};

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, s);
  return set;
}

// Keeps only `keep`, as descriptor 3, and nothing on the standard descriptors.
void drop_descriptors(int keep) {
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= 2; ++fd) ::dup2(null, fd);
  ::dup2(keep, 3);
  ::fcntl(3, F_SETFD, FD_CLOEXEC);
  ::close_range(4, ~0U, 0);
}

bool write_state(const lab::Lab& lab, const LabBuilder& builder, const std::string& dir) {
  json state = {{"started", std::time(nullptr)}, {"holders", json::object()}};
  for (std::size_t i = 0; i < lab.hosts.size(); ++i) state["holders"][lab.hosts[i].name] = builder.holders()[i];
  return static_cast<bool>(std::ofstream(dir + "/state.json") << state.dump() << std::flush);
}

void reap() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

// Gives programs and NIC processes the chance to end in good order; the end of this process is the end of the rest.
void end_lab(const LabBuilder& builder, const std::string& dir) {
  for (const pid_t holder : builder.holders()) ::kill(holder, SIGKILL);
  ::kill(-1, SIGTERM);
  ::kill(-1, SIGCONT);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  do {
    reap();
    std::this_thread::sleep_for(kPoll);
  } while (::kill(-1, 0) == 0 && std::chrono::steady_clock::now() < deadline);
  std::error_code ignored;
  std::filesystem::remove_all(dir, ignored);
}

[[noreturn]] void keep_lab(const lab::Lab& lab, const std::string& dir, int report_fd) {
  const sigset_t signals = handled_signals();
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_NAME, "softrnic-lab");
  drop_descriptors(report_fd);
  report_fd = 3;
  [[maybe_unused]] const int changed = ::chdir("/");

  LabBuilder builder(lab, dir);
  std::string why;
  if (const int error = hold_lab(dir)) why = fmt::format("cannot lock '{}': {}", dir, std::strerror(error));
  if (why.empty() && mount_lab(&why) == 0 && builder.build(&why) && !write_state(lab, builder, dir))
    why = fmt::format("cannot write into '{}'", dir);
  const std::string report = why.empty() ? std::string(1, kReady) : why;
  // Nobody reads it any more: the user has given up.
  const bool heard = ::write(report_fd, report.data(), report.size()) > 0;
  if (!why.empty() || !heard) {
    end_lab(builder, dir);
    ::_exit(1);
  }
  ::close(report_fd);
  for (;;) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&signals, &info);
    if (signal == SIGCHLD) reap();
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) break;
  }
  end_lab(builder, dir);
  ::_exit(0);
}

// The process in between: what it takes over for the lab must not be that of the user's process.
[[noreturn]] void start_keeper(const lab::Lab& lab, const std::string& dir, int report_fd) {
  ::setsid();
  std::string why;
  pid_t keeper = -1;
  if (make_lab_namespaces(&why) == 0) {
    keeper = ::fork();
    if (keeper == 0) keep_lab(lab, dir, report_fd);
    if (keeper < 0) why = fmt::format("cannot start a process: {}", std::strerror(errno));
  }
  [[maybe_unused]] const auto n = ::write(report_fd, why.data(), why.size());
  ::_exit(keeper > 0 ? 0 : 1);
}

}  // namespace

bool start_lab(const lab::Lab& lab, const std::string& dir, std::string* why) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return *why = std::strerror(errno), false;
  const pid_t child = ::fork();
  if (child == 0) start_keeper(lab, dir, fds[1]);
  ::close(fds[1]);
  const std::string report = child > 0 ? read_all(fds[0]) : std::string();
  ::close(fds[0]);
  if (child > 0) wait_for(child);
  if (report == std::string(1, kReady)) return true;
  *why = report.empty() ? "the lab's keeper ended before it was ready" : report;
  return false;
}

bool read_state(const std::string& file, LabState* out) {
  std::ifstream in(file);
  const json state = json::parse(in, nullptr, false);
  if (!state.is_object() || !state.contains("holders")) return false;
  out->started = state.value("started", std::int64_t{0});
  for (const auto& [host, pid] : state["holders"].items()) out->holders[host] = pid.get<pid_t>();
  return true;
}

}  // namespace softrnic::tool
