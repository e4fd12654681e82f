#include "tools/softrnic/net_commands.h"

namespace softrnic::tool {
namespace {

constexpr const char* kFooter = R"~(Examples:
  softrnic net up docs/labs/two-hosts.json
  softrnic net exec a -- ibv_rc_pingpong -g 3 &
  softrnic net exec b -- ibv_rc_pingpong -g 3 a
  softrnic net exec a -- ping b-roce0
  softrnic net down
Needs no root where ordinary users may make user namespaces. The guide on labs describes the file.)~";

constexpr const char* kExecFooter =
    R"~(CMD finds the host's interfaces, names of the other hosts (a, and a-roce0 for its NIC), and the NIC as with 'softrnic run'. It
is root in the lab, and only there. Signals and exit status are as with 'softrnic run'.)~";

void add_dir(CLI::App* sub, std::string* dir) {
  sub->add_option("--dir", *dir, "Runtime directory that the labs are in")->type_name("DIR");
}

}  // namespace

void NetCommands::add_to(CLI::App& app) {
  CLI::App* net = app.add_subcommand("net", "Labs: networks of hosts with NICs on this machine");
  net->require_subcommand(1);
  net->footer(kFooter);

  CLI::App* up = net->add_subcommand("up", "Make a lab: hosts, networks, and a NIC process for each host");
  add_dir(up, &dir_);
  up->add_option("LAB.json", file_, "Description of the lab")->required();
  up->add_option("--name", name_, "Name of the lab. Default: what the file says, else the file's name")
      ->type_name("NAME");
  up->callback([this] { action_ = [this] { return net_up(dir_, file_, name_); }; });

  add_exec(*net);

  CLI::App* status = net->add_subcommand("status", "Show the labs and their hosts");
  add_dir(status, &dir_);
  status->add_flag("--json", json_, "As JSON");
  status->callback([this] { action_ = [this] { return net_status(dir_, json_); }; });

  CLI::App* down = net->add_subcommand("down", "End a lab and everything that runs in it");
  add_dir(down, &dir_);
  auto* name = down->add_option("LAB", name_, "Its name; not needed when there is only one");
  down->add_flag("--all", all_, "All labs")->excludes(name);
  down->callback([this] { action_ = [this] { return net_down(dir_, name_, all_); }; });
}

void NetCommands::add_exec(CLI::App& net) {
  CLI::App* sub =
      net.add_subcommand("exec", "Run a program in a host: softrnic net exec [OPTIONS] HOST -- CMD [ARGS...]");
  sub->footer(kExecFooter);
  add_dir(sub, &exec_.dir);
  sub->add_option("--lab", exec_.lab, "The lab; not needed when there is only one")->type_name("LAB");
  sub->add_option("HOST", exec_.host, "The host")->required();
  sub->callback([this] {
    if (exec_.command.empty()) throw CLI::RequiredError("CMD");
    action_ = [this] { return net_exec(exec_); };
  });
}

}  // namespace softrnic::tool
