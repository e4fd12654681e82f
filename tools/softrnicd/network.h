// The ports of the NIC process: from their configuration to what the NIC process needs of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/control/server/nic_host.h"
#include "engine/ports/port_config.h"

namespace softrnic::daemon {

// Opens all ports. DPDK must run. Where duplicates are to be detected, this takes as long as the probes, a few seconds;
// an address that somebody else has is a failure (EADDRINUSE). `log` outlives the network. 0, or an errno
// value with a sentence for the user.
int open_network(const std::vector<ports::PortConfig>& configs, spdlog::logger& log,
                 std::unique_ptr<control::Network>* out, std::string* why);

}  // namespace softrnic::daemon
