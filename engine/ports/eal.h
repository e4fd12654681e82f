// DPDK's environment abstraction layer in the NIC process: started as an ordinary user, without hugepages, without
// files or sockets that other DPDK processes could see, on threads that are pinned to no CPU.
#pragma once

#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>

namespace softrnic::ports {

struct EalOptions {
  std::FILE* log = stderr;   // where its messages go
  unsigned memory_mib = 16;  // for everything DPDK allocates; ports need more, see memory_for_ports()
  bool pci = false;          // look for PCI devices
  std::string runtime_dir;   // it makes a directory "dpdk" in here; default: where DPDK wants
};

// MiB for that many ports of the largest MTU.
constexpr unsigned memory_for_ports(std::size_t ports) { return 16 + 56 * static_cast<unsigned>(ports); }

// Starts the EAL with one worker lcore; both may run on every CPU this process may use. At most once in a process.
// Takes about 0.1 s, most of which is spent measuring the clock. 0, or an errno value and `why`.
int start_eal(const EalOptions& options, std::string* why);

// Its messages go here from now on.
void set_eal_log(std::FILE* log);

// Runs `work` on the worker lcore. It must return before wait_for_lcore() does.
int run_on_lcore(std::function<void()> work);
void wait_for_lcore();

}  // namespace softrnic::ports
