// The keeper of a lab: the first process of the lab's process namespace. It makes the hosts and the networks, starts
// the NIC processes, and is what keeps all of it: when it ends, however that happens, the kernel ends every process of
// the lab and the namespaces go with them.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "tools/lab/lab_config.h"

namespace softrnic::tool {

// Makes the lab and leaves its keeper in the background. `dir`: the lab's directory, which the keeper removes at its
// end. False with a sentence for the user; nothing is left then.
bool start_lab(const lab::Lab& lab, const std::string& dir, std::string* why);

// What the keeper writes into the lab's state file.
struct LabState {
  std::int64_t started = 0;              // seconds since 1970
  std::map<std::string, pid_t> holders;  // of each host, in the lab's process namespace
};
bool read_state(const std::string& file, LabState* out);

}  // namespace softrnic::tool
