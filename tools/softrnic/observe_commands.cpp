// The subcommands that observe and disturb: capture, extcap, fault, events.
#include "tools/softrnic/observe_commands.h"

#include "tools/softrnic/commands.h"

namespace softrnic::tool {
namespace {

constexpr const char* kFaultFooter = R"~(A rule is ACTION [if CONDITION...]:
  drop if op=read-response msg=1 psn=msg+5 once     PSN 5 of the first READ response
  drop if prob=1% seed=7                            one packet of a hundred
  delay 2ms if op=ack from=vf2
  set aeth.syndrome=0x62 if op=ack nth=3
Actions: drop, duplicate, delay, reorder, corrupt, truncate, ecn, set. Each fault that was applied is a comment in the running
captures and an event of 'softrnic events'. The guide on faults has the whole language.)~";

void add_dir(CLI::App* sub, std::string* dir) {
  sub->add_option("--dir", *dir, "Runtime directory of the NIC process")->type_name("DIR");
}

}  // namespace

void ObserveCommands::add_to(CLI::App& app) {
  add_capture(app);
  add_extcap(app);
  add_fault(app);
  CLI::App* events =
      app.add_subcommand("events", "Show what happened in the NIC process: VFs, captures, faults, drops");
  add_dir(events, &dir_);
  events->add_flag("--json", json_, "As JSON, an event a line");
  events->add_flag("-f,--follow", follow_, "Wait for more until Ctrl-C or the end of the NIC process");
  events->callback([this] { action_ = [this] { return tool::events(dir_, json_, follow_); }; });
}

void ObserveCommands::add_capture(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("capture", "Write all packets to a pcapng file until Ctrl-C");
  add_dir(sub, &capture_.dir);
  sub->add_option("-w,--write", capture_.file, "File, or - for stdout")->required()->type_name("FILE");
  sub->add_option("--snaplen", capture_.snaplen, "Keep only so many bytes of each packet")->type_name("BYTES");
  sub->add_option("--filter", capture_.filter, "Only packets that match, in the language of pcap-filter(7)")
      ->type_name("EXPRESSION");
  sub->footer(
      "Nothing is missing in a capture: a slow disk slows the traffic down. Only when the reader of a pipe takes "
      "nothing for a second, packets are lost, and counted.");
  sub->callback([this] { action_ = [this] { return tool::capture(capture_); }; });
}

void ObserveCommands::add_extcap(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("extcap", "Capture for Wireshark, which calls this");
  ExtcapOptions& o = extcap_;
  sub->add_flag("--extcap-interfaces", o.list_interfaces, "List the interfaces");
  sub->add_flag("--extcap-dlts", o.list_dlts, "List the link types of the interface");
  sub->add_flag("--extcap-config", o.list_config, "List the options of the interface");
  sub->add_flag("--capture", o.capture, "Capture");
  sub->add_option("--extcap-interface", o.interface, "Interface")->type_name("NAME");
  sub->add_option("--extcap-capture-filter", o.filter, "Filter, in the language of pcap-filter(7)")
      ->type_name("EXPRESSION");
  sub->add_option("--extcap-version", o.caller_version, "Version of Wireshark")->type_name("VERSION");
  sub->add_option("--fifo", o.fifo, "Where the packets go")->type_name("FIFO");
  sub->add_option("--snaplen", o.snaplen, "Keep only so many bytes of each packet")->type_name("BYTES");
  add_dir(sub, &o.dir);
  sub->callback([this] { action_ = [this] { return tool::extcap(extcap_); }; });
}

void ObserveCommands::add_fault(CLI::App& app) {
  CLI::App* fault =
      app.add_subcommand("fault", "Disturb packets: drop, duplicate, delay, reorder, corrupt, change them");
  fault->require_subcommand(1);
  fault->footer(kFaultFooter);

  CLI::App* add = fault->add_subcommand("add", "Add a rule, in force when this returns; prints its number");
  add_dir(add, &dir_);
  auto* rule = add->add_option("RULE", words_, "The rule; several words make one rule");
  auto* file = add->add_option("-f,--file", file_, "Rules from a file, or - for stdin: one a line, # begins a comment");
  file->type_name("FILE")->excludes(rule);
  add->footer(kFaultFooter);
  add->callback([this] {
    if (words_.empty() && file_.empty()) throw CLI::RequiredError("RULE");
    std::string text;
    for (const std::string& word : words_) text += (text.empty() ? "" : " ") + word;
    action_ = [this, text] { return fault_add(dir_, text, file_); };
  });

  CLI::App* list = fault->add_subcommand("list", "Show the rules, and how often each was applied");
  add_dir(list, &dir_);
  list->add_flag("--json", json_, "As JSON");
  list->callback([this] { action_ = [this] { return fault_list(dir_, json_); }; });

  CLI::App* del = fault->add_subcommand("del", "Remove a rule; what it holds back goes on");
  add_dir(del, &dir_);
  del->add_option("ID", which_, "Its number, or all")->required();
  del->callback([this] { action_ = [this] { return fault_del(dir_, which_); }; });
}

}  // namespace softrnic::tool
