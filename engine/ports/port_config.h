// What a port is made of, and how that is written on a command line and in a configuration file. Free of DPDK.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/neigh/host_stack.h"

namespace softrnic::ports {

inline constexpr std::uint32_t kMinMtu = 576;   // RFC 1122 s3.3.3
inline constexpr std::uint32_t kMaxMtu = 9216;  // enough for the largest packet of RoCE, and for jumbo frames

// A port of the NIC: a network device of DPDK and the host that lives on it.
struct PortConfig {
  std::string device;  // DPDK's device arguments, e.g. "net_af_packet0,iface=veth0" or "0000:03:00.0"
  std::vector<neigh::OwnAddress> addresses;
  std::vector<neigh::Route> routes;
  std::optional<neigh::Mac> mac;  // default: derived from the device's
  std::uint32_t mtu = 0;          // bytes of an IP packet; 0: the device's
  bool detect_duplicates = false;
};

inline constexpr std::size_t kMaxPorts = 32;

// Takes in one setting as the command line (--KEY VALUE) and the configuration file (KEY VALUE) name it. "port" begins
// a port with a device; ip, route, mac, mtu and detect-duplicates (value "yes" or "no") are properties of the last one.
// False with a sentence in *why when there is no such setting, the value makes no sense, or it contradicts an earlier
// one: two ports with the same device, MAC or address, or a gateway that is on no link of its port.
bool set_property(std::vector<PortConfig>* ports, std::string_view key, std::string_view value, std::string* why);

// Reads a configuration file: lines "KEY VALUE" as for set_property(), "#" starts a comment. False with "line N: ..."
// in *why at the first mistake.
bool parse_config(std::string_view text, std::vector<PortConfig>* out, std::string* why);

// "10.0.0.1/24" or "fd00::1/64", "%VLAN" (1 to 4094) behind it for a tagged one; without a prefix length the address is
// alone on its link. False when malformed; *why says what is wrong.
bool parse_address(std::string_view text, neigh::OwnAddress* out, std::string* why);
// "PREFIX/LENGTH=GATEWAY" or only "GATEWAY" for the default route, "%VLAN" behind it.
bool parse_route(std::string_view text, neigh::Route* out, std::string* why);
// "02:00:00:00:00:01"; a unicast address.
bool parse_mac(std::string_view text, neigh::Mac* out, std::string* why);
// "10.0.0.1" or an IPv6 address as inet_pton takes it.
bool parse_ip(std::string_view text, Gid* out);
std::string to_string(const Gid& ip);
std::string to_string(const neigh::Mac& mac);

// Name of the device's driver instance: what stands before the first comma.
std::string device_name(std::string_view device);
// Value of a device argument, e.g. "veth0" of "iface" in "net_af_packet0,iface=veth0"; empty when it is not there.
std::string device_argument(std::string_view device, std::string_view key);
// True when the device is of this driver: "net_tap" of "net_tap0,...".
bool is_driver(std::string_view device, std::string_view driver);

// The device arguments with those that this MTU needs: net_af_packet drops frames that are longer than its ring's.
// `ring_bytes`: memory of each of its two rings.
std::string device_for_mtu(const std::string& device, std::uint32_t mtu, std::uint32_t ring_bytes);

// The MAC a port answers to when none is configured: the device's own, but another one when the kernel's stack answers
// to that on the same wire.
neigh::Mac default_mac(std::string_view device, const neigh::Mac& of_device);

// Largest IBA MTU (256 to 4096) whose packets fit an IP packet of `mtu` bytes: the headers of a RoCE packet take up to
// 88 bytes more.
std::uint32_t roce_mtu(std::uint32_t mtu);

}  // namespace softrnic::ports
