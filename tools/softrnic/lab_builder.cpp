#include "tools/softrnic/lab_builder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "engine/ports/offloads.h"
#include "tools/softrnic/child_report.h"
#include "tools/softrnic/namespaces.h"
#include "tools/softrnic/nic_process.h"

namespace softrnic::tool {
namespace {

using lab::Host;
using lab::Interface;
using lab::Network;

constexpr pid_t kHere = 0;  // in the namespace of the bridges, as opposed to a host's
constexpr const char* kHostsFile = "/hosts";

// Runs `child` in a child process whose stderr we read. Its pid, or -1.
pid_t start(const std::function<int()>& child, int* stderr_fd) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return -1;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(fds[1], 2);
    ::close_range(3, ~0U, 0);
    ::_exit(child());
  }
  ::close(fds[1]);
  *stderr_fd = fds[0];
  return pid;
}

int say(int error, const std::string& text) {
  if (error != 0) fmt::print(stderr, "{}: {}\n", text, std::strerror(error));
  std::fflush(stderr);
  return error == 0 ? 0 : 1;
}

// The process that holds a host: its namespaces are there as long as it is. Only SIGKILL ends it.
int hold_host(const std::string& name, const std::string& hosts_file) {
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  ::prctl(PR_SET_NAME, ("lab:" + name).c_str());
  if (const int error = make_host_namespaces(name, hosts_file)) return say(error, "cannot make its namespaces");
  ::close(2);
  for (;;) ::pause();
}

bool write_setting(const char* path) { return static_cast<bool>(std::ofstream(path) << "1" << std::flush); }

int start_forwarding() {
  if (!write_setting("/proc/sys/net/ipv4/ip_forward")) return say(errno, "net.ipv4.ip_forward");
  // A kernel without IPv6 has nothing to forward.
  if (::access("/proc/sys/net/ipv6", F_OK) == 0 && !write_setting("/proc/sys/net/ipv6/conf/all/forwarding"))
    return say(errno, "net.ipv6.conf.all.forwarding");
  return 0;
}

std::string bridge_end(const Host& host, const Interface& interface) { return host.name + "." + interface.name; }

}  // namespace

bool LabBuilder::fail(const std::string& what, const std::string& why) {
  why_ = fmt::format("{}: {}", what, why);
  return false;
}

// True when `work`, which says on stderr what is wrong, returns 0 in the host.
bool LabBuilder::in_host(pid_t host, const std::function<int()>& work, const std::string& what) {
  int fd = -1;
  const pid_t child = start(
      [host, &work] {
        if (const int error = host == kHere ? 0 : enter_host(host)) return say(error, "cannot enter the host");
        return work();
      },
      &fd);
  if (child < 0) return fail(what, std::strerror(errno));
  const std::string said = read_all(fd);
  ::close(fd);
  const int status = wait_for(child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  return fail(what, said.empty() ? "failed" : said);
}

bool LabBuilder::ip(pid_t host, const std::vector<std::string>& words) {
  const auto work = [&words] {
    std::vector<char*> argv = {const_cast<char*>("ip")};
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    ::setenv("PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin", 1);
    ::execvp("ip", argv.data());
    return say(errno, "the program 'ip' of iproute2");
  };
  return in_host(host, work, fmt::format("ip {}", fmt::join(words, " ")));
}

bool LabBuilder::build(std::string* why) {
  const auto build = [this] {
    std::ofstream(dir_ + kHostsFile) << hosts_file(lab_);
    loose_ends_.resize(lab_.networks.size());
    for (const Host& host : lab_.hosts)
      if (!make_host(host)) return false;
    for (const Network& network : lab_.networks)
      if (!network.cable && !make_network(network)) return false;
    for (std::size_t i = 0; i < lab_.hosts.size(); ++i)
      for (const Interface& interface : lab_.hosts[i].interfaces)
        if (!connect(i, interface)) return false;
    // Routes need the other end's link, a NIC process probes the network.
    for (std::size_t i = 0; i < lab_.hosts.size(); ++i)
      for (const Interface& interface : lab_.hosts[i].interfaces)
        if (!set_up_routes(i, interface)) return false;
    for (std::size_t i = 0; i < lab_.hosts.size(); ++i)
      if (!lab_.hosts[i].ports.empty() && !start_nic_of(i)) return false;
    return true;
  };
  if (build()) return true;
  *why = why_;
  return false;
}

bool LabBuilder::make_host(const Host& host) {
  int fd = -1;
  const pid_t holder = start([&] { return hold_host(host.name, dir_ + kHostsFile); }, &fd);
  if (holder < 0) return fail("host " + host.name, std::strerror(errno));
  holders_.push_back(holder);
  const std::string said = read_all(fd);
  ::close(fd);
  if (!said.empty()) return fail("host " + host.name, said);
  if (!ip(holder, {"link", "set", "dev", "lo", "up"})) return false;
  return !host.router || in_host(holder, start_forwarding, fmt::format("router {}", host.name));
}

bool LabBuilder::make_network(const Network& network) {
  // Without addresses of its own: nobody but the hosts is heard on it.
  return ip(kHere, {"link", "add", "name", network.name, "mtu", std::to_string(network.mtu), "type", "bridge"}) &&
         ip(kHere, {"link", "set", "dev", network.name, "addrgenmode", "none", "up"});
}

bool LabBuilder::connect(std::size_t host, const Interface& interface) {
  const Network& network = lab_.networks[interface.network];
  if (network.cable) {
    loose_ends_[interface.network].push_back({host, &interface});
    return loose_ends_[interface.network].size() < 2 || lay_cable(host, interface);
  }
  const std::string end = bridge_end(lab_.hosts[host], interface), mtu = std::to_string(network.mtu);
  const auto plain = [&end] { return say(ports::switch_offloads_off(end), "switching its offloads off"); };
  return ip(kHere, {"link", "add", "name", end, "mtu", mtu, "type", "veth", "peer", "name", interface.name, "mtu", mtu,
                    "netns", std::to_string(holders_[host])}) &&
         in_host(kHere, plain, end) &&
         ip(kHere, {"link", "set", "dev", end, "master", network.name, "addrgenmode", "none", "up"}) &&
         set_up(host, interface);
}

// `interface` of `host` is the second end.
bool LabBuilder::lay_cable(std::size_t host, const Interface& interface) {
  const End& first = loose_ends_[interface.network][0];
  const std::string mtu = std::to_string(lab_.networks[interface.network].mtu);
  return ip(kHere,
            {"link", "add", "name", first.interface->name, "mtu", mtu, "netns", std::to_string(holders_[first.host]),
             "type", "veth", "peer", "name", interface.name, "mtu", mtu, "netns", std::to_string(holders_[host])}) &&
         set_up(first.host, *first.interface) && set_up(host, interface);
}

bool LabBuilder::set_up(std::size_t host, const Interface& interface) {
  const pid_t holder = holders_[host];
  const std::string what = fmt::format("{} of host {}", interface.name, lab_.hosts[host].name);
  const auto plain = [&] { return say(ports::switch_offloads_off(interface.name), "switching its offloads off"); };
  if (!in_host(holder, plain, what) || !ip(holder, {"link", "set", "dev", interface.name, "up"})) return false;
  for (const neigh::OwnAddress& a : interface.kernel.addresses) {
    // The file says that nobody else has it: no need to wait until the kernel has found that out.
    std::vector<std::string> words = {"addr", "add", fmt::format("{}/{}", ports::to_string(a.ip), a.prefix_length),
                                      "dev", interface.name};
    if (!neigh::is_ipv4(a.ip)) words.emplace_back("nodad");
    if (!ip(holder, words)) return false;
  }
  return true;
}

bool LabBuilder::set_up_routes(std::size_t host, const Interface& interface) {
  for (const neigh::Route& r : interface.kernel.routes) {
    if (!ip(holders_[host], {"route", "add", fmt::format("{}/{}", ports::to_string(r.prefix), r.length), "via",
                             ports::to_string(r.gateway), "dev", interface.name}))
      return false;
  }
  return true;
}

bool LabBuilder::start_nic_of(std::size_t host) {
  const Host& h = lab_.hosts[host];
  std::vector<std::string> words = {"--dir", dir_ + "/" + h.name};
  words.insert(words.end(), h.nic_options.begin(), h.nic_options.end());
  const auto work = [&words] {
    std::string why;
    const int error = start_nic(words, &why);
    if (error != 0) fmt::print(stderr, "{}\n", why.empty() ? std::strerror(error) : why);
    std::fflush(stderr);
    return error == 0 ? 0 : 1;
  };
  return in_host(holders_[host], work, fmt::format("the NIC process of host {}", h.name));
}

}  // namespace softrnic::tool
