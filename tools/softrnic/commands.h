// The subcommands. Each returns the exit status of softrnic; failures are told on stderr.
#pragma once

#include <string>
#include <vector>

namespace softrnic::tool {

// softrnic itself failed, as opposed to the program that `run` runs.
inline constexpr int kExitFailure = 1;
inline constexpr int kExitRunFailure = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

struct RunOptions {
  std::string dir;
  bool private_nic = false;
  bool force = false;
  std::string capture_file;
  std::vector<std::string> command;
};
int run(const RunOptions& options);

int print_env(const std::string& dir, bool plain);
// `ports`: options of softrnicd that describe the ports of the NIC; empty: on this host only.
int up(const std::string& dir, const std::vector<std::string>& ports);
int down(const std::string& dir);
int status(const std::string& dir, bool as_json);
int devices(const std::string& dir, const std::string& name);

struct AddressOptions {
  std::string dir;
  std::string device = "roce0";
  std::string address;  // as in the configuration of ports
  bool add = true;
};
int change_address(const AddressOptions& options);

struct CaptureOptions {
  std::string dir;
  std::string file;
  unsigned snaplen = 0;
};
int capture(const CaptureOptions& options);

int completion(const std::string& shell);

// "softrnic: <text>" on stderr.
void complain(const std::string& text);

}  // namespace softrnic::tool
