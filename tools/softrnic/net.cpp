// softrnic net: labs, networks of hosts on this machine.
#include "tools/softrnic/net.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tools/lab/lab_config.h"
#include "tools/softrnic/child.h"
#include "tools/softrnic/commands.h"
#include "tools/softrnic/lab_keeper.h"
#include "tools/softrnic/lab_store.h"
#include "tools/softrnic/namespaces.h"
#include "tools/softrnic/paths.h"
#include "tools/softrnic/pidfd.h"

namespace softrnic::tool {
namespace {

namespace fs = std::filesystem;

constexpr int kEndPatience = 10'000;  // milliseconds until a keeper is killed

bool read_file(const std::string& file, std::string* text, std::string* why) {
  std::ifstream in(file);
  text->assign(std::istreambuf_iterator<char>(in), {});
  if (in.good() || in.eof()) return true;
  *why = fmt::format("cannot read '{}': {}", file, std::strerror(errno));
  return false;
}

bool ended(int keeper_fd, int milliseconds) {
  pollfd p{keeper_fd, POLLIN, 0};
  return ::poll(&p, 1, milliseconds) > 0;
}

// Ends the lab's processes and removes its directory. False with a sentence. The store is locked.
bool end_lab(const LabStore& store, const std::string& name, std::string* why) {
  pid_t pid = 0;
  const sw::UniqueFd keeper = store.open_keeper(name, &pid);
  if (keeper) {
    if (signal_process(keeper, SIGTERM) != 0 && errno != ESRCH) {
      *why = fmt::format("lab '{}': its keeper, process {}, cannot be ended: {}", name, pid, std::strerror(errno));
      return false;
    }
    if (!ended(keeper.get(), kEndPatience)) {
      signal_process(keeper, SIGKILL);
      ended(keeper.get(), kEndPatience);
    }
  }
  std::error_code error;
  fs::remove_all(store.dir(name), error);
  if (error) *why = fmt::format("cannot remove '{}': {}", store.dir(name), error.message());
  return !error;
}

// Makes room for the lab: its directory, with the description in it.
bool claim(const LabStore& store, const std::string& name, const std::string& text, std::string* why) {
  if (const pid_t pid = store.keeper(name); pid != 0) {
    *why = fmt::format("lab '{}' is up already, kept by process {}: 'softrnic net down {}' ends it", name, pid, name);
    return false;
  }
  if (!end_lab(store, name, why)) return false;  // what a dead keeper has left
  const std::string dir = store.dir(name);
  if (::mkdir(dir.c_str(), 0700) != 0 || !(std::ofstream(store.file(name)) << text << std::flush)) {
    *why = fmt::format("cannot write '{}': {}", store.file(name), std::strerror(errno));
    return false;
  }
  return true;
}

}  // namespace

int net_up(const std::string& dir, const std::string& file, const std::string& name) {
  std::string text, why;
  if (!name.empty() && !lab::is_lab_name(name))
    return complain(fmt::format("'{}' cannot be the name of a lab", name)), kExitFailure;
  if (!read_file(file, &text, &why)) return complain(why), kExitFailure;
  lab::Lab lab;
  const std::string default_name = name.empty() ? fs::path(file).stem().string() : name;
  if (!lab::parse_lab(text, default_name, &lab, &why)) return complain(fmt::format("{}: {}", file, why)), kExitFailure;
  if (!name.empty()) lab.name = name;
  LabStore store(dir);
  if (store.lock(&why) != 0) return complain(why), kExitFailure;
  bool good = claim(store, lab.name, text, &why);
  if (good && !start_lab(lab, store.dir(lab.name), &why)) {
    std::error_code ignored;
    fs::remove_all(store.dir(lab.name), ignored);
    good = false;
  }
  store.unlock();
  if (!good) return complain(why), kExitFailure;
  std::vector<std::string> hosts;
  for (const lab::Host& host : lab.hosts) hosts.push_back(host.name);
  fmt::print("lab {} is up: {}\n", lab.name, fmt::join(hosts, ", "));
  return 0;
}

int net_down(const std::string& dir, const std::string& name, bool all) {
  LabStore store(dir);
  std::string why;
  std::vector<std::string> names = store.names();
  if (!all) {
    const std::string found = store.find(name, &why);
    if (found.empty()) return complain(why), kExitFailure;
    names = {found};
  }
  if (names.empty()) return 0;
  if (store.lock(&why) != 0) return complain(why), kExitFailure;
  bool good = true;
  for (const std::string& lab : names) {
    if (end_lab(store, lab, &why)) continue;
    complain(why);
    good = false;
  }
  store.unlock();
  return good ? 0 : kExitFailure;
}

int net_exec(const NetExecOptions& options) {
  const LabStore store(options.dir);
  std::string why;
  const std::string lab = store.find(options.lab, &why);
  if (lab.empty()) return complain(why), kExitRunFailure;
  pid_t pid = 0;
  const sw::UniqueFd keeper = store.open_keeper(lab, &pid);
  LabState state;
  if (!keeper || !read_state(store.state(lab), &state)) {
    complain(fmt::format("lab '{}' has died: 'softrnic net down {}' removes what is left of it", lab, lab));
    return kExitRunFailure;
  }
  const auto host = state.holders.find(options.host);
  if (host == state.holders.end()) {
    std::vector<std::string> known;
    for (const auto& [other, ignored] : state.holders) known.push_back(other);
    complain(fmt::format("lab '{}' has no host '{}' (there is: {})", lab, options.host, fmt::join(known, ", ")));
    return kExitRunFailure;
  }
  const std::string libraries = library_dir();
  if (libraries.empty()) return complain("softrnic's libibverbs.so.1 is not where it belongs"), kExitRunFailure;
  std::error_code ignored;
  const std::string here = fs::current_path(ignored).string();
  if (const int error = enter_lab(keeper.get(), pid)) {
    complain(fmt::format("cannot enter lab '{}': {}", lab, std::strerror(error)));
    return kExitRunFailure;
  }
  set_environment(store.host_dir(lab, options.host) + "/control.sock", libraries, false);
  return run_child(options.command, [&] {
    const int error = enter_host(host->second);
    // The directory may be one that the lab does not see.
    if (error == 0 && (here.empty() || ::chdir(here.c_str()) != 0)) return ::chdir("/") == 0 ? 0 : errno;
    return error;
  });
}

}  // namespace softrnic::tool
