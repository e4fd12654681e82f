// Offloads of kernel interfaces. They work for the kernel's own stack: whoever reads or writes frames beside it sees
// what they leave to do, several packets in one frame and checksums that are not computed yet. Free of DPDK.
#pragma once

#include <string>
#include <vector>

#include "engine/ports/port_config.h"

namespace softrnic::ports {

// Those of an interface of this network namespace that are on and can give the NIC frames that were never on a wire, as
// ethtool names them: "gro", "lro", and for an interface whose other end is on this machine (veth) "tso", "gso", "tx".
std::vector<std::string> harmful_offloads(const std::string& iface);

// A sentence for the user when the interface under this port has such offloads; else empty.
std::string offload_warning(const PortConfig& port);

// Switches off segmentation, merging and checksums, both ways. 0 or an errno value.
int switch_offloads_off(const std::string& iface);

}  // namespace softrnic::ports
