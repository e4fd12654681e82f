// Command line of the subcommands that observe and disturb.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "tools/softrnic/commands.h"

namespace softrnic::tool {

class ObserveCommands {
 public:
  // Parsing sets `action`, which outlives this object's use.
  explicit ObserveCommands(std::function<int()>& action) : action_(action) {}
  void add_to(CLI::App& app);

 private:
  void add_capture(CLI::App& app);
  void add_extcap(CLI::App& app);
  void add_fault(CLI::App& app);

  std::function<int()>& action_;
  std::string dir_, file_, which_;
  std::vector<std::string> words_;
  bool json_ = false, follow_ = false;
  CaptureOptions capture_;
  ExtcapOptions extcap_;
};

}  // namespace softrnic::tool
