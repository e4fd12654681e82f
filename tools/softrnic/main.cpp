// softrnic: the command.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "tools/softrnic/commands.h"
#include "tools/softrnic/net_commands.h"
#include "tools/softrnic/observe_commands.h"

namespace softrnic::tool {

void complain(const std::string& text) { fmt::print(stderr, "softrnic: {}\n", text); }

namespace {

constexpr const char* kFooter = R"~(Examples:
  softrnic run -- ibv_devinfo
  softrnic run -- ib_send_bw            (and in another terminal:)
  softrnic run -- ib_send_bw 127.0.0.1
  softrnic run --private --capture trace.pcapng -- ./my_test
  softrnic up --port net_af_packet0,iface=veth0 --ip 10.0.0.1/24
  softrnic up; eval "$(softrnic env)"; ibv_devices; softrnic down
  softrnic capture -w - | tshark -r -
  softrnic fault add 'drop if op=send.last nth=3'
  softrnic net up docs/labs/two-hosts.json; softrnic net exec a -- ping b

Where the NIC process lives: --dir, else the directory of $SOFTRNIC_SOCKET, else $SOFTRNIC_DIR, else
$XDG_RUNTIME_DIR/softrnic, else /tmp/softrnic-<uid>.)~";

constexpr const char* kRunFooter =
    R"~(Joins the NIC process of this user, or starts one that ends with its last user, and runs CMD with
LD_LIBRARY_PATH and SOFTRNIC_SOCKET set, so that it finds softrnic's libibverbs.so.1. Programs that run set-user-ID or
that are started on other machines do not inherit these. The signals INT, TERM, HUP, QUIT, USR1 and USR2 are
passed on.

Exit status: that of CMD; 128+N when signal N ended it; 125 when softrnic failed, 126 when CMD cannot be run, 127 when it
is not found.)~";

class Command {
 public:
  Command()
      : app_(
            "A software RDMA NIC for unmodified programs: RoCE on any machine, without hardware, kernel modules or "
            "root.") {
    app_.name("softrnic");
    app_.set_version_flag("--version", "softrnic " SOFTRNIC_VERSION);
    app_.require_subcommand(1);
    app_.footer(kFooter);
    add_run();
    add_lifecycle();
    add_address();
    add_views();
    observe_.add_to(app_);
    net_.add_to(app_);
  }

  int run(int argc, char** argv) {
    argc = take_command(argc, argv);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      const int status = app_.exit(e);
      return status == 0 ? 0 : 2;
    }
    return action_();
  }

 private:
  // The program's words are not ours to parse. Takes them off the end: all behind "--", or from the first word that is
  // neither an option of `run` nor, for `net exec`, its host. The number of words left.
  int take_command(int argc, char** argv) {
    const auto is = [&](int i, std::string_view word) { return i < argc && word == argv[i]; };
    const bool exec = is(1, "net") && is(2, "exec");
    if (!is(1, "run") && !exec) return argc;
    int i = exec ? 3 : 2;
    bool host = exec;
    for (; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word == "--dir" || word == "--capture" || word == "--fault" || word == "--lab") {
        ++i;  // its value
      } else if (word == "--" || word.empty() || word[0] != '-') {
        if (!host || word == "--") break;
        host = false;
      }
    }
    if (i >= argc) return argc;
    std::vector<std::string> command(argv + i + (is(i, "--") ? 1 : 0), argv + argc);
    exec ? net_.set_command(std::move(command)) : static_cast<void>(run_.command = std::move(command));
    return i;
  }

  void add_dir(CLI::App* sub) {
    sub->add_option("--dir", dir_, "Runtime directory of the NIC process")->type_name("DIR");
  }

  void add_run() {
    CLI::App* sub = app_.add_subcommand("run", "Run a program with the NIC: softrnic run [OPTIONS] -- CMD [ARGS...]");
    sub->footer(kRunFooter);
    auto* dir = sub->add_option("--dir", run_.dir, "Runtime directory of the NIC process")->type_name("DIR");
    sub->add_flag("--private", run_.private_nic, "A NIC process of its own, gone with all it made afterwards")
        ->excludes(dir);
    sub->add_option("--capture", run_.capture_file, "Write all packets to this pcapng file")->type_name("FILE");
    sub->add_option("--fault", run_.faults, "Rule that disturbs packets while the program runs; several are possible")
        ->type_name("RULE")
        ->allow_extra_args(false);
    sub->add_flag("--force", run_.force,
                  "Also preload the library: for programs with a library path of their own (DT_RPATH)");
    sub->callback([this] {
      if (run_.command.empty()) throw CLI::RequiredError("CMD");
      action_ = [this] { return tool::run(run_); };
    });
  }

  void add_lifecycle() {
    CLI::App* up = app_.add_subcommand("up", "Start a NIC process that stays until 'down'");
    add_dir(up);
    add_ports(up);
    up->callback([this] { action_ = [this] { return tool::up(dir_, ports_); }; });
    CLI::App* down = app_.add_subcommand("down", "End the NIC process; programs that use it get a fatal device event");
    add_dir(down);
    down->callback([this] { action_ = [this] { return tool::down(dir_); }; });
    CLI::App* env = app_.add_subcommand("env", "Print the environment that programs need, for a shell's eval");
    add_dir(env);
    env->add_flag("--plain", plain_, "As NAME=VALUE lines, for a CI system's environment file");
    env->callback([this] { action_ = [this] { return print_env(dir_, plain_); }; });
    CLI::App* completion = app_.add_subcommand("completion", "Print a completion script");
    completion->add_option("SHELL", shell_, "bash")->required();
    completion->callback([this] { action_ = [this] { return tool::completion(shell_); }; });
  }

  // Passed on to softrnicd in their order: each property belongs to the port before it.
  void add_ports(CLI::App* sub) {
    const auto add = [this, sub](const std::string& name, const char* type, const char* help) {
      sub->add_option_function<std::string>(
             name,
             [this, name](const std::string& value) {
               ports_.push_back(name);
               ports_.push_back(value);
             },
             help)
          ->type_name(type)
          ->trigger_on_parse()
          ->group("Network");
    };
    add("--config", "FILE", "Configuration file with the ports");
    add("--port", "DEVICE",
        "DPDK device, e.g. net_af_packet0,iface=veth0; the options below are for the port before them");
    add("--ip", "ADDRESS/LENGTH[%VLAN]", "Address of the port; several are possible");
    add("--route", "[PREFIX/LENGTH=]GATEWAY[%VLAN]", "Route; without a prefix the default one");
    add("--mac", "MAC", "MAC address. Default: derived from the device's");
    add("--mtu", "BYTES", "MTU. Default: the device's");
    add("--detect-duplicates", "yes|no", "Probe for the addresses before they are used");
  }

  void add_address() {
    CLI::App* sub =
        app_.add_subcommand("address", "Add an address to a port of the running NIC process, or remove one");
    sub->require_subcommand(1);
    for (const bool add : {true, false}) {
      CLI::App* verb = sub->add_subcommand(add ? "add" : "del", add ? "Add an address" : "Remove an address");
      verb->add_option("--dir", address_.dir, "Runtime directory of the NIC process")->type_name("DIR");
      verb->add_option("--device", address_.device, "Device of the port")->type_name("NAME")->capture_default_str();
      verb->add_option("ADDRESS", address_.address, "ADDRESS/LENGTH[%VLAN]")->required();
      verb->callback([this, add] {
        address_.add = add;
        action_ = [this] { return change_address(address_); };
      });
    }
  }

  void add_views() {
    CLI::App* status = app_.add_subcommand("status", "Show devices, attached processes, queue pairs and counters");
    add_dir(status);
    status->add_flag("--json", json_, "As JSON");
    status->callback([this] { action_ = [this] { return tool::status(dir_, json_); }; });
    CLI::App* devices = app_.add_subcommand("devices", "Show devices with their GIDs");
    add_dir(devices);
    devices->add_option("NAME", device_, "Only this device");
    devices->callback([this] { action_ = [this] { return tool::devices(dir_, device_); }; });
  }

  CLI::App app_;
  std::function<int()> action_;
  std::vector<std::string> ports_;
  std::string dir_, shell_, device_;
  bool plain_ = false, json_ = false;
  RunOptions run_;
  AddressOptions address_;
  ObserveCommands observe_{action_};
  NetCommands net_{action_};
};

}  // namespace
}  // namespace softrnic::tool

int main(int argc, char** argv) {
  softrnic::tool::Command command;
  return command.run(argc, argv);
}
