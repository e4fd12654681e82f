// A program that softrnic runs for its user.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace softrnic::tool {

// What a program needs in its environment to find the NIC process at `socket` and the library in the directory
// `libraries`; with `force` the library is preloaded, too. For this process and its children.
void set_environment(const std::string& socket, const std::string& libraries, bool force);

// Runs the command until its end, passing on the signals that softrnic gets, and stopping and going on with it. Returns
// its exit status, 128+N when signal N ended it, or kExitNotFound, kExitNotExecutable and kExitRunFailure with a
// message. `prepare` is called in the child before; 0 or an errno value.
int run_child(const std::vector<std::string>& command, const std::function<int()>& prepare = {});

}  // namespace softrnic::tool
