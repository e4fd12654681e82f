// softrnic up, down and env.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "tools/softrnic/commands.h"
#include "tools/softrnic/nic_process.h"
#include "tools/softrnic/paths.h"

namespace softrnic::tool {
namespace {

// For a POSIX shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

int up(const std::string& dir, const std::vector<std::string>& ports) {
  const std::string where = runtime_dir(dir);
  control::Connection nic;
  control::HelloInfo info;
  std::string why;
  if (!ports.empty() && connect_nic(socket_path(dir), &nic, &info, &why) == 0) {
    complain(fmt::format("a NIC process is running already in {}: its ports cannot be changed; 'softrnic down' ends it",
                         where));
    return kExitFailure;
  }
  if (join_or_start(where, socket_path(dir), ports, &nic, &info, &why) != 0) return complain(why), kExitFailure;
  control::Message reply;
  if (const int error = nic.call(control::MsgType::keep, nullptr, 0, &reply)) {
    complain(fmt::format("the NIC process does not stay: {}", std::strerror(error)));
    return kExitFailure;
  }
  if (!why.empty()) fmt::print(stderr, "{}\n", why);  // warnings
  fmt::print("softrnic is up: process {}, directory {}\n", info.reply.daemon_pid, where);
  return 0;
}

int down(const std::string& dir) {
  control::Connection nic;
  control::HelloInfo info;
  std::string why;
  if (connect_nic(socket_path(dir), &nic, &info, &why) != 0) return complain(why), kExitFailure;
  control::Message reply;
  const int error = nic.call(control::MsgType::shutdown, nullptr, 0, &reply);
  if (error != 0 && error != EPIPE) {
    complain(fmt::format("the NIC process does not end: {}", std::strerror(error)));
    return kExitFailure;
  }
  // It is gone when the connection breaks.
  while (nic.receive(&reply) == 0) reply.close_fds();
  return 0;
}

int print_env(const std::string& dir, bool plain) {
  const std::string libraries = library_dir();
  if (libraries.empty()) return complain("softrnic's libibverbs.so.1 is not where it belongs"), kExitFailure;
  const std::string socket = socket_path(dir);
  if (plain) {
    fmt::print("SOFTRNIC_SOCKET={}\nLD_LIBRARY_PATH={}\n", socket, libraries);
    if (const std::string list = preload_list(libraries); !list.empty()) fmt::print("LD_PRELOAD={}\n", list);
  } else {
    fmt::print("export SOFTRNIC_SOCKET={}\n", quoted(socket));
    fmt::print("export LD_LIBRARY_PATH={}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n", quoted(libraries));
    if (const std::string list = preload_list(libraries); !list.empty())
      fmt::print("export LD_PRELOAD={}\n", quoted(list));
  }
  control::Connection nic;
  control::HelloInfo info;
  std::string why;
  if (connect_nic(socket, &nic, &info, &why) != 0) complain("note: " + why);
  return 0;
}

}  // namespace softrnic::tool
