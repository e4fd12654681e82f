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
  std::vector<std::string> faults;  // rules that are in force while the command runs
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
  std::string filter;       // in the language of pcap-filter(7); empty: every packet
  bool for_reader = false;  // a program reads the file: no messages while all is well, and its going is the end
};
int capture(const CaptureOptions& options);

struct ExtcapOptions {
  bool list_interfaces = false, list_dlts = false, list_config = false, capture = false;
  std::string interface, filter, caller_version, fifo, dir;
  unsigned snaplen = 0;
};
int extcap(const ExtcapOptions& options);

// Adds the rule, or those of `file` when it is not empty.
int fault_add(const std::string& dir, const std::string& rule, const std::string& file);
int fault_list(const std::string& dir, bool as_json);
int fault_del(const std::string& dir, const std::string& which);
int events(const std::string& dir, bool as_json, bool follow);

int completion(const std::string& shell);

// "softrnic: <text>" on stderr.
void complain(const std::string& text);

}  // namespace softrnic::tool
