// DPDK's environment abstraction layer in the NIC process: started as an ordinary user, without hugepages, without files or
// sockets that other DPDK processes could see, on threads that are pinned to no CPU.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

namespace softrnic::ports {

// Starts the EAL with one worker lcore; both may run on every CPU this process may use. Its messages go to `log`. At most
// once in a process. Takes about 0.1 s, most of which is spent measuring the clock. 0, or an errno value and `why`.
int start_eal(std::FILE* log, std::string* why);

// Runs `work` on the worker lcore. It must return before wait_for_lcore() does.
int run_on_lcore(std::function<void()> work);
void wait_for_lcore();

}  // namespace softrnic::ports
