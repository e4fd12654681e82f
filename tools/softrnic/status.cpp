// softrnic status and softrnic devices.
#include <fmt/format.h>

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tools/softrnic/commands.h"
#include "tools/softrnic/nic_process.h"
#include "tools/softrnic/paths.h"

namespace softrnic::tool {
namespace {

using nlohmann::json;

void print_devices(const json& devices, bool with_gids) {
  for (const json& d : devices) {
    fmt::print("{}  {}  {}  netdev {}  mtu {}  guid {}\n", d.value("name", ""), d.value("state", ""),
               d.value("link_layer", ""), d.value("netdev", ""), d.value("active_mtu", 0), d.value("node_guid", ""));
    if (!with_gids) continue;
    for (const json& g : d["gids"])
      fmt::print("  GID {:>3}  {:<8} {:<40} {}{}\n", g.value("index", 0), g.value("type", ""), g.value("gid", ""),
                 g.value("netdev", ""), g.contains("vlan") ? fmt::format(" VLAN {}", g.value("vlan", 0)) : "");
  }
}

void print_port(const json& p) {
  fmt::print("port {}  link {}  MAC {}  MTU {} ", p.value("name", ""), p.value("link", ""), p.value("mac", ""),
             p.value("mtu", 0));
  for (const char* group : {"counters", "switch"})
    for (const auto& [name, value] : p[group].items())
      if (value != 0) fmt::print("  {}{} {}", group[0] == 's' ? "switch_" : "", name, value.get<unsigned long long>());
  fmt::print("\n");
  if (!p.contains("neighbours")) return;
  for (const json& n : p["neighbours"])
    fmt::print("  neighbour {}{}  {}  {}\n", n.value("address", ""),
               n.contains("vlan") ? fmt::format(" VLAN {}", n.value("vlan", 0)) : "", n.value("mac", "-"),
               n.value("state", ""));
}

void print_queue_pair(const json& q) {
  const json& c = q["counters"];
  const unsigned peer = q.value("peer_vf", 0u);
  fmt::print("    QP 0x{:06x}  {:<2} {:<5}  to {}  tx {} pkts {} B  rx {} pkts {} B", q.value("qpn", 0u),
             q.value("type", ""), q.value("state", ""),
             q.value("dest_qpn", 0u) == 0
                 ? std::string("-")
                 : fmt::format("0x{:06x}{}", q.value("dest_qpn", 0u), peer != 0 ? fmt::format(" (vf{})", peer) : ""),
             c.value("sent_pkts", 0ull), c.value("sent_bytes", 0ull), c.value("rcvd_pkts", 0ull),
             c.value("rcvd_bytes", 0ull));
  // What is wrong is only shown when it happened.
  for (const auto& [name, value] : c.items()) {
    if (name.find("_pkts") == std::string::npos && name.find("_bytes") == std::string::npos && value != 0)
      fmt::print("  {} {}", name, value.get<unsigned long long>());
  }
  fmt::print("\n");
}

void print_process(const json& p) {
  fmt::print("vf{}  {} pid {}  {} QPs, {} MRs, {} CQs", p.value("vf", 0), p.value("comm", ""), p.value("pid", 0),
             p["queue_pairs"].size(), p.value("mrs", 0u), p.value("cqs", 0u));
  for (const auto& [name, value] : p["switch"].items())
    if (value != 0) fmt::print("  {} {}", name, value.get<unsigned long long>());
  for (const auto& [name, value] : p["received"].items())
    if (name != "frames" && value != 0) fmt::print("  drops_{} {}", name, value.get<unsigned long long>());
  fmt::print("\n");
  for (const json& q : p["queue_pairs"]) print_queue_pair(q);
}

void print_report(const json& report) {
  const json& nic = report["nic_process"];
  fmt::print("NIC process {}  version {}  up {} s  {}\n", nic.value("pid", 0), nic.value("version", ""),
             nic.value("uptime_seconds", 0ull), nic.value("dir", ""));
  fmt::print("Frames go {}{}\n",
             report.value("route", "") == "direct" ? "directly from process to process" : "through the eSwitch",
             report.value("route", "") == "direct"
                 ? ""
                 : fmt::format(" ({} captures, {} faults)", report.value("captures", 0u), report.value("faults", 0u)));
  print_devices(report["devices"], false);
  if (report.contains("ports"))
    for (const json& p : report["ports"]) print_port(p);
  for (const json& p : report["processes"]) print_process(p);
  if (report["processes"].empty()) fmt::print("no process is attached\n");
}

// Null with a message on stderr when there is none.
json fetch_report(const std::string& dir) {
  control::Connection nic;
  control::HelloInfo info;
  std::string why;
  if (connect_nic(socket_path(dir), &nic, &info, &why) != 0) return complain(why), json();
  control::Message reply;
  if (const int error = nic.call(control::MsgType::status, nullptr, 0, &reply))
    return complain(fmt::format("the NIC process gives no status: {}", std::strerror(error))), json();
  json report = json::parse(report_text(reply), nullptr, false);
  if (report.is_discarded()) return complain("the NIC process gives a status that is no JSON"), json();
  return report;
}

}  // namespace

int status(const std::string& dir, bool as_json) {
  const json report = fetch_report(dir);
  if (report.is_null()) return kExitFailure;
  if (as_json) {
    fmt::print("{}\n", report.dump(2));
  } else {
    print_report(report);
  }
  return 0;
}

int devices(const std::string& dir, const std::string& name) {
  const json report = fetch_report(dir);
  if (report.is_null()) return kExitFailure;
  json shown = json::array();
  std::string known;
  for (const json& d : report["devices"]) {
    if (name.empty() || d.value("name", "") == name) shown.push_back(d);
    known += (known.empty() ? "" : ", ") + d.value("name", "");
  }
  if (shown.empty() && !name.empty()) {
    complain(fmt::format("there is no device '{}' (there is: {})", name, known));
    return kExitFailure;
  }
  print_devices(shown, true);
  return 0;
}

}  // namespace softrnic::tool
