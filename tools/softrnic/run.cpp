// softrnic run: a program with the NIC around it.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "tools/softrnic/capture_client.h"
#include "tools/softrnic/child.h"
#include "tools/softrnic/commands.h"
#include "tools/softrnic/nic_process.h"
#include "tools/softrnic/paths.h"

namespace softrnic::tool {
namespace {

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
  int result = run_child(options.command);
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
