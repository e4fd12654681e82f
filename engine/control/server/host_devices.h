// What devices there are, and their addresses. In host-local mode one device, roce0, which carries the
// host's own IP addresses.
#pragma once

#include <net/if.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine/control/wire.h"

namespace softrnic::control {

struct DeviceConfig {
  std::vector<DeviceRecord> devices;
  std::vector<GidRecord> gids;  // ordered by device, then index
};

// An address of a network interface, as a GID (IPv4 as ::ffff:a.b.c.d).
struct HostAddress {
  Gid gid{};
  std::string netdev;
  unsigned ifindex = 0;
  bool loopback = false;
};
// The machine as far as the devices mirror it.
struct HostView {
  std::vector<HostAddress> addresses;
  std::string primary_netdev;  // first non-loopback interface that is up with an IPv4 address; else "lo"
  unsigned primary_ifindex = 0;
  std::array<std::uint8_t, 6> mac{};  // its MAC; zero when it has none
  std::string identity;               // machine id or host name: what a made-up MAC is derived from
};

// Reads interfaces, addresses and identity of this host.
HostView read_host();

// A locally administered unicast MAC that is the same at every start on the same machine.
std::array<std::uint8_t, 6> derive_mac(std::string_view identity);
// Modified EUI-64 of a MAC, as in an IPv6 link-local address (RFC 4291 appendix A).
std::array<std::uint8_t, 8> eui64_of(const std::array<std::uint8_t, 6>& mac);

// A port to a network, which is a host of its own there.
struct PortView {
  std::string netdev;    // kernel's interface under it, or the name of the port
  unsigned ifindex = 0;  // 0: the kernel has no interface for it
  std::array<std::uint8_t, 6> mac{};
  std::uint32_t roce_mtu = 1024;  // bytes of payload, 256 to 4096
  struct Address {
    Gid gid{};
    std::uint16_t vlan = 0xFFFF;
  };
  std::vector<Address> addresses;  // the link-local ones among them
};

// A device for each port: roce0, roce1, ... with the port's addresses: the untagged link-local one at index 0 and 1,
// IPv4, IPv6, then the other link-local ones.
DeviceConfig port_devices(const std::vector<PortView>& ports);

// roce0 with the host's GID table: each address as RoCE v1, then as RoCE v2. Index 0: fe80::EUI-64 of the device.
// Index 2: the primary IPv4 address, or 127.0.0.1 when there is no other. Then the other addresses, loopback last.
DeviceConfig host_devices(const HostView& host);

// The tables after a change of addresses: what stays keeps its index, since queue pairs use it; what is gone
// leaves a zero entry, as in a kernel driver's table; what is new takes free places or goes to the end.
std::vector<GidRecord> merge_gids(const std::vector<GidRecord>& old, const std::vector<GidRecord>& fresh);

}  // namespace softrnic::control
