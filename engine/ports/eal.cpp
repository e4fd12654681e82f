#include "engine/ports/eal.h"

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace softrnic::ports {
namespace {

std::function<void()> lcore_work;

int lcore_main(void*) {
  lcore_work();
  return 0;
}

// "(0-1)@(2,3,5)": lcores 0 and 1, both on any of the CPUs 2, 3 and 5.
std::string floating_lcores() {
  cpu_set_t set;
  std::string cpus;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &set)) continue;
      if (!cpus.empty()) cpus += ',';
      cpus += std::to_string(cpu);
    }
  }
  return "(0-1)@(" + (cpus.empty() ? "0" : cpus) + ")";
}

}  // namespace

int start_eal(const EalOptions& options, std::string* why) {
  rte_openlog_stream(options.log);
  // The variable by which systemd names a service's directory is the only way to tell the EAL.
  if (!options.runtime_dir.empty()) ::setenv("RUNTIME_DIRECTORY", options.runtime_dir.c_str(), 1);
  const std::string prefix = "softrnic-" + std::to_string(::getpid());
  std::vector<std::string> args = {"softrnicd",     "--no-huge",      "-m",          std::to_string(options.memory_mib),
                                   "--no-shconf",   "--no-telemetry", "--log-level", "*:warning",
                                   "--file-prefix", prefix,           "--lcores",    floating_lcores()};
  if (!options.pci) args.push_back("--no-pci");
  // The EAL keeps pointers into its arguments and permutes them.
  static std::vector<std::string> kept;
  kept = std::move(args);
  static std::vector<char*> argv;
  for (std::string& a : kept) argv.push_back(a.data());
  argv.push_back(nullptr);
  if (rte_eal_init(static_cast<int>(argv.size()) - 1, argv.data()) < 0) {
    *why = std::string("DPDK's EAL does not start: ") + rte_strerror(rte_errno);
    return rte_errno != 0 ? rte_errno : EIO;
  }
  return 0;
}

void set_eal_log(std::FILE* log) { rte_openlog_stream(log); }

int run_on_lcore(std::function<void()> work) {
  lcore_work = std::move(work);
  const unsigned lcore = rte_get_next_lcore(-1, 1, 0);
  if (lcore >= RTE_MAX_LCORE) return ENODEV;
  return -rte_eal_remote_launch(lcore_main, nullptr, lcore);
}

void wait_for_lcore() { rte_eal_mp_wait_lcore(); }

}  // namespace softrnic::ports
