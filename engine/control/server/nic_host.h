// The NIC process as an object: the control server and the eSwitch of one runtime directory. Needs no DPDK, so tests
// run it on threads of their own process.
#pragma once

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/control/server/host_devices.h"
#include "engine/control/server/vf_table.h"
#include "engine/switch/eswitch.h"

namespace spdlog {
class logger;
}

namespace softrnic::control {

struct NicHostOptions {
  std::string dir;          // runtime directory; made when it is not there (not its parents)
  std::string socket_path;  // default: <dir>/control.sock
  DeviceConfig devices;     // default: host_devices(read_host())
  // Ends when its last user (attached process, hold, capture) is gone, or when none came within first_user_timeout.
  bool end_with_last_user = false;
  std::chrono::milliseconds first_user_timeout{30000};
  std::chrono::milliseconds linger{0};               // how long it waits for a new user then
  std::chrono::milliseconds block_quarantine{2000};  // before a returned QPN block is dealt out again
  std::chrono::milliseconds route_timeout{10000};    // a VF that does not follow a change of route is detached
  VfTable::Sizes sizes;
  sw::ESwitchOptions eswitch;
  // Called once the directory is ours, so that the log can be in it. Default: nothing is logged.
  std::function<std::shared_ptr<spdlog::logger>()> make_log;
};

// The networks that a NIC is on: device i is on uplink i.
class Network {
 public:
  virtual ~Network() = default;
  virtual std::vector<std::shared_ptr<sw::Uplink>> uplinks() = 0;
  // State of the ports for the status report: a JSON array. Any thread.
  virtual std::string status() = 0;

  // On the switch's thread, or before it runs:
  // The neighbours that the ports know: a JSON array that has a list for each port.
  virtual std::string neighbours() = 0;
  // The devices with the addresses that are usable now.
  virtual DeviceConfig devices() = 0;
  // Adds an address, written as in the configuration, to uplink `port`, or removes it. 0, or an errno value with a
  // sentence for the user.
  virtual int change_address(std::size_t port, bool add, const std::string& address, std::string* why) = 0;
  // How to reach an address that is not of this NIC, from `source` unless that is zero. `answer` is called once, on the
  // switch's thread.
  struct Route {
    int error = 0;  // errno: ENETUNREACH there is no route
    Gid source{};
    std::uint8_t hop_limit = 64;
  };
  virtual void find_route(const Gid& destination, const Gid& source, std::function<void(const Route&)> answer) {
    answer({ENETUNREACH, {}, 0});
  }
  // Called when devices() has something new to say.
  virtual void set_on_change(std::function<void()> on_change) = 0;
};

class NicHost {
 public:
  // 0 or an errno value with a sentence for the user: EPERM unsafe directory, EADDRINUSE another NIC process is
  // there, ... After success processes may connect; they are answered once run() runs.
  static int create(NicHostOptions options, std::unique_ptr<NicHost>* out, std::string* why);
  // Ends everything: stop(), then the threads of start(). Connections break, the socket disappears.
  ~NicHost();

  // Connects the NIC with networks, and replaces its devices. Only before run() and run_switch().
  void set_network(std::unique_ptr<Network> network);

  const std::string& socket_path() const;
  spdlog::logger& log();

  // The control server, on the calling thread, until stop() or its end with the last user. Stops the eSwitch too when
  // it returns.
  void run();
  // The eSwitch, on the calling thread, until stop().
  void run_switch();
  // Both on threads of their own, for tests.
  void start();
  void stop();  // any thread, signal handlers excepted

  sw::ESwitch& eswitch();

  struct Impl;  // server.h

 private:
  NicHost();
  std::unique_ptr<Impl> impl_;
};

}  // namespace softrnic::control
