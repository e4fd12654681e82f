// softrnicd: the NIC process.
#include <signal.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sysexits.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/control/client/client.h"
#include "engine/control/server/nic_host.h"
#include "engine/ports/eal.h"
#include "engine/ports/offloads.h"
#include "tools/softrnicd/daemonize.h"
#include "tools/softrnicd/network.h"

namespace {

using namespace softrnic;

struct Options {
  std::string dir;
  bool foreground = false;
  bool remove_dir = false;
  double linger = -1;  // seconds; negative: stays
  std::string log_level = "info";
  std::vector<ports::PortConfig> ports;
};

// Options of ports, each for the --port before it; they are taken in as they come.
void add_port_options(Options* o, CLI::App& app) {
  app.add_option_function<std::string>(
         "--config",
         [o](const std::string& path) {
           std::ifstream in(path);
           if (!in) throw CLI::ValidationError("--config", "cannot read '" + path + "'");
           const std::string text{std::istreambuf_iterator<char>(in), {}};
           std::string why;
           if (!ports::parse_config(text, &o->ports, &why)) throw CLI::ValidationError("--config", path + ": " + why);
         },
         "Configuration file of the ports: lines 'port DEVICE', and below each its 'ip', 'route', 'mac', 'mtu', "
         "'detect-duplicates'")
      ->type_name("FILE")
      ->trigger_on_parse();
  const auto property = [o, &app](const std::string& key, const char* type, const char* help) {
    app.add_option_function<std::string>(
           "--" + key,
           [o, key](const std::string& value) {
             std::string why;
             if (!ports::set_property(&o->ports, key, value, &why)) throw CLI::ValidationError("--" + key, why);
           },
           help)
        ->type_name(type)
        ->trigger_on_parse();
  };
  property("port", "DEVICE",
           "Put the NIC on a network by this DPDK device, e.g. net_af_packet0,iface=veth0. Several are possible; the "
           "options below belong to the port before them");
  property("ip", "ADDRESS/LENGTH[%VLAN]", "Address of the port; several are possible");
  property("route", "[PREFIX/LENGTH=]GATEWAY[%VLAN]", "Route; without a prefix the default one");
  property("mac", "MAC", "MAC address of the port. Default: derived from the device's");
  property("mtu", "BYTES", "MTU. Default: the device's");
  property("detect-duplicates", "yes|no", "Probe whether somebody else has the addresses before they are used");
}

void parse(int argc, char** argv, Options* o, CLI::App& app) {
  app.description(
      "The NIC process of softrnic: control server, eSwitch and everything that is shared by the programs that use "
      "the NIC. Usually started by 'softrnic run' or 'softrnic up'.");
  app.set_version_flag("--version", "softrnicd " SOFTRNIC_VERSION);
  app.add_option("--dir", o->dir, "Runtime directory: control socket, lock, log. Default: where the programs look")
      ->type_name("DIR");
  app.add_flag("--foreground", o->foreground, "Stay in the foreground and log to stderr too");
  app.add_option("--linger", o->linger, "End so many seconds after the last user is gone. Default: stay until told")
      ->type_name("SECONDS")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--remove-dir", o->remove_dir, "Remove the runtime directory at the end");
  app.footer("Exit status: 0 ended as asked, 75 another NIC process runs in the directory, 1 other failures.");
  app.add_option("--log-level", o->log_level, "What is logged")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  add_port_options(o, app);
  app.parse(argc, argv);
  if (o->dir.empty()) o->dir = std::filesystem::path(control::default_socket_path()).parent_path().string();
}

// As many descriptors as we may have: each channel between two VFs takes one.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// What our parent left open is none of our business, and its readers would wait for us.
void close_inherited_descriptors() { ::close_range(3, ~0U, 0); }

sigset_t end_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, s);
  return set;
}

constexpr const char* kLogName = "/softrnicd.log";

std::shared_ptr<spdlog::logger> make_log(const Options& o) {
  std::vector<spdlog::sink_ptr> sinks;
  sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(o.dir + kLogName, true));
  if (o.foreground) sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto log = std::make_shared<spdlog::logger>("softrnicd", sinks.begin(), sinks.end());
  log->set_level(spdlog::level::from_str(o.log_level));
  log->flush_on(spdlog::level::debug);
  return log;
}

// A stream whose lines go to the log.
FILE* stream_into(spdlog::logger& log) {
  cookie_io_functions_t io{};
  io.write = [](void* cookie, const char* text, std::size_t size) -> ssize_t {
    std::string_view line(text, size);
    while (!line.empty() && line.back() == '\n') line.remove_suffix(1);
    if (!line.empty()) static_cast<spdlog::logger*>(cookie)->info("{}", line);
    return static_cast<ssize_t>(size);
  };
  FILE* stream = ::fopencookie(&log, "w", io);
  if (stream != nullptr) ::setvbuf(stream, nullptr, _IOLBF, 0);
  return stream;
}

// Only what a NIC process makes; the directory goes if nothing else is in it.
void remove_dir(const std::string& dir) {
  for (const char* name : {"/control.sock", "/lock", kLogName}) ::unlink((dir + name).c_str());
  ::rmdir(dir.c_str());
}

void remove_eal_files(const Options& o) {
  std::error_code ignored;
  std::filesystem::remove_all(o.dir + "/dpdk", ignored);
}

// Runs the parts of the NIC process until it is told to end or has no more users.
void serve(control::NicHost& host, const Options& o, const sigset_t& signals) {
  spdlog::logger& log = host.log();
  const pthread_t main_thread = ::pthread_self();
  std::atomic<bool> ended{false};
  std::thread control([&] {
    host.run();
    ended = true;
    ::pthread_kill(main_thread, SIGTERM);
  });
  // The control server answers while the EAL is still starting: applications wait for nothing, only frames that pass
  // the eSwitch wait in its rings.
  std::string why;
  std::thread plain;
  int error = 0;
  if (o.ports.empty()) {
    error = ports::start_eal({.log = stream_into(log), .runtime_dir = o.dir}, &why);
  } else {
    ports::set_eal_log(stream_into(log));
  }
  if (error == 0) error = ports::run_on_lcore([&] { host.run_switch(); });
  if (error != 0) {
    log.warn("{}: the eSwitch runs without DPDK, ports are not available", why);
    plain = std::thread([&] { host.run_switch(); });
  }
  int signal = 0;
  ::sigwait(&signals, &signal);
  if (!ended) log.info("ending: signal {}", signal);
  host.stop();
  control.join();
  if (plain.joinable()) {
    plain.join();
  } else {
    ports::wait_for_lcore();
  }
  remove_eal_files(o);
}

// Starts DPDK and opens the ports.
int open_ports(const Options& o, control::NicHost& host, std::string* why) {
  ports::EalOptions eal;
  eal.memory_mib = ports::memory_for_ports(o.ports.size());
  eal.runtime_dir = o.dir;
  for (const ports::PortConfig& port : o.ports) eal.pci = eal.pci || port.device.find(':') < port.device.find(',');
  if (const int error = ports::start_eal(eal, why)) return error;
  std::unique_ptr<control::Network> network;
  if (const int error = daemon::open_network(o.ports, host.log(), &network, why)) return error;
  host.set_network(std::move(network));
  return 0;
}

// The lines for the user.
std::string warn_of_offloads(const std::vector<ports::PortConfig>& ports, spdlog::logger& log) {
  std::string all;
  for (const ports::PortConfig& port : ports) {
    const std::string warning = ports::offload_warning(port);
    if (warning.empty()) continue;
    log.warn("{}", warning);
    all += (all.empty() ? "" : "\n") + warning;
  }
  return all;
}

int run(const Options& o, daemon::Background& background) {
  const sigset_t signals = end_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit();

  control::NicHostOptions host_options;
  host_options.dir = o.dir;
  host_options.end_with_last_user = o.linger >= 0;
  host_options.linger = std::chrono::milliseconds(static_cast<long>(o.linger >= 0 ? o.linger * 1000 : 0));
  std::unique_ptr<control::NicHost> host;
  std::string why;
  host_options.make_log = [&o] { return make_log(o); };
  if (const int error = control::NicHost::create(std::move(host_options), &host, &why)) {
    const int status = error == EADDRINUSE ? EX_TEMPFAIL : EXIT_FAILURE;
    background.failed(why, status);
    return status;
  }
  if (!o.ports.empty() && open_ports(o, *host, &why) != 0) {
    host->log().error("{}", why);
    remove_eal_files(o);
    background.failed(why, EXIT_FAILURE);
    return EXIT_FAILURE;
  }
  background.ready(warn_of_offloads(o.ports, host->log()));
  serve(*host, o, signals);
  host.reset();
  if (o.remove_dir) remove_dir(o.dir);
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app;
  try {
    parse(argc, argv, &o, app);
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  }
  close_inherited_descriptors();
  daemon::Background background;
  if (!o.foreground) background.enter();
  try {
    return run(o, background);
  } catch (const std::exception& e) {
    background.failed(e.what(), EXIT_FAILURE);
    return EXIT_FAILURE;
  }
}
