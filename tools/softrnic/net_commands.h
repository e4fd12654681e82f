// Command line of softrnic net.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "tools/softrnic/net.h"

namespace softrnic::tool {

class NetCommands {
 public:
  // Parsing sets `action`, which outlives this object's use.
  explicit NetCommands(std::function<int()>& action) : action_(action) {}
  void add_to(CLI::App& app);
  // The program's words of `net exec`, which are not ours to parse.
  void set_command(std::vector<std::string> command) { exec_.command = std::move(command); }

 private:
  void add_exec(CLI::App& net);

  std::function<int()>& action_;
  std::string dir_, file_, name_;
  bool json_ = false, all_ = false;
  NetExecOptions exec_;
};

}  // namespace softrnic::tool
