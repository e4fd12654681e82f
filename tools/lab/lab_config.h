// What a lab is made of, and how that is written in a file: hosts, and the networks between them. Makes nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ports/port_config.h"

namespace softrnic::lab {

struct Network {
  std::string name;
  std::uint32_t mtu = 1500;  // bytes of an IP packet
  bool cable = false;        // two interfaces are each other's end; else a bridge that any number is plugged into
};

struct Interface {
  std::string name;          // in the host: eth0, eth1, ...
  std::size_t network = 0;   // its place in Lab::networks
  ports::PortConfig kernel;  // addresses and routes of the host's own stack
  bool has_nic = false;      // a port of the host's NIC is on it, too
};

struct Host {
  std::string name;
  bool router = false;  // its kernel forwards packets
  std::vector<Interface> interfaces;
  std::vector<ports::PortConfig> ports;  // of its NIC
  std::vector<std::string> nic_options;  // the same, as softrnicd takes it
};

struct Lab {
  std::string name;
  std::vector<Network> networks;
  std::vector<Host> hosts;
};

// An interface of the kernel has at most 15 characters, and "HOST-eth9" is one.
inline constexpr std::size_t kMaxName = 10;
inline constexpr std::size_t kMaxInterfaces = 10;

// 1 to 32 letters, digits, '-', '_' and '.', a letter first.
bool is_lab_name(std::string_view text);

// Reads a lab's file: JSON, comments allowed. `default_name` is the lab's when the file does not say. False with
// "KEY: what is wrong" in *why at the first mistake; KEY is like "hosts.a.interfaces[0].nic.ip".
bool parse_lab(std::string_view text, const std::string& default_name, Lab* out, std::string* why);

// The names of the hosts and of their devices ("a-roce0") with their addresses, in the form of /etc/hosts.
std::string hosts_file(const Lab& lab);

}  // namespace softrnic::lab
