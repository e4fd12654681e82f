// The subcommands of softrnic net. Each returns the exit status of softrnic; failures are told on stderr. `dir`: the
// runtime directory that labs are in, or empty.
#pragma once

#include <string>
#include <vector>

namespace softrnic::tool {

// `name`: instead of the one in the file.
int net_up(const std::string& dir, const std::string& file, const std::string& name);
// The lab of this name, or, when it is empty, the only one; or all.
int net_down(const std::string& dir, const std::string& name, bool all);
int net_status(const std::string& dir, bool as_json);

struct NetExecOptions {
  std::string dir;
  std::string lab;  // empty: the only one
  std::string host;
  std::vector<std::string> command;
};
int net_exec(const NetExecOptions& options);

}  // namespace softrnic::tool
