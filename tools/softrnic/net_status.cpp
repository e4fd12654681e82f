// softrnic net status.
#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tools/lab/lab_config.h"
#include "tools/softrnic/lab_keeper.h"
#include "tools/softrnic/lab_store.h"
#include "tools/softrnic/net.h"
#include "tools/softrnic/nic_process.h"

namespace softrnic::tool {
namespace {

using json = nlohmann::ordered_json;

json addresses(const ports::PortConfig& port) {
  json list = json::array();
  for (const neigh::OwnAddress& a : port.addresses) {
    const std::string vlan = a.vlan == neigh::kNoVlan ? "" : fmt::format("%{}", a.vlan);
    list.push_back(fmt::format("{}/{}{}", ports::to_string(a.ip), a.prefix_length, vlan));
  }
  return list;
}

json report_host(const lab::Lab& lab, const lab::Host& host, const std::string& dir) {
  json out = {{"name", host.name}, {"router", host.router}, {"interfaces", json::array()}, {"nic", nullptr}};
  std::size_t port = 0;
  for (const lab::Interface& i : host.interfaces) {
    json entry = {{"name", i.name}, {"network", lab.networks[i.network].name}, {"ip", addresses(i.kernel)}};
    if (i.has_nic) {
      entry["device"] = fmt::format("roce{}", port);
      entry["nic_ip"] = addresses(host.ports[port++]);
    }
    out["interfaces"].push_back(entry);
  }
  if (port != 0) {
    control::Connection nic;
    control::HelloInfo info;
    std::string why;
    const bool running = connect_nic(dir + "/control.sock", &nic, &info, &why) == 0;
    out["nic"] = {{"running", running}, {"dir", dir}};
  }
  return out;
}

json report_lab(const LabStore& store, const std::string& name) {
  json out = {{"name", name}, {"dir", store.dir(name)}, {"state", "dead"}};
  LabState state;
  const pid_t keeper = store.keeper(name);
  std::ifstream in(store.file(name));
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  lab::Lab lab;
  std::string why;
  if (keeper == 0 || !lab::parse_lab(text, name, &lab, &why)) return out;
  out["state"] = read_state(store.state(name), &state) ? "up" : "starting";
  out["keeper"] = keeper;
  out["started"] = state.started;
  out["hosts"] = json::array();
  for (const lab::Host& host : lab.hosts)
    out["hosts"].push_back(report_host(lab, host, store.host_dir(name, host.name)));
  return out;
}

std::string joined(const json& list) {
  std::string text;
  for (const json& item : list) text += (text.empty() ? "" : ", ") + item.get<std::string>();
  return text;
}

void print_lab(const json& lab) {
  const std::string name = lab["name"].get<std::string>();
  if (lab["state"] == "dead") {
    fmt::print("lab {}  has died: 'softrnic net down {}' removes what is left of it\n", name, name);
    return;
  }
  const auto started = lab["started"].get<std::int64_t>();
  fmt::print("lab {}  {}  kept by process {}\n", name,
             lab["state"] == "up" ? fmt::format("up {} s", std::time(nullptr) - started) : "is being made",
             lab["keeper"].get<int>());
  for (const json& host : lab["hosts"]) {
    fmt::print("  {:10}{}{}\n", host["name"].get<std::string>(), host["router"].get<bool>() ? "  router" : "",
               host["nic"].is_null()                ? ""
               : host["nic"]["running"].get<bool>() ? "  NIC process runs"
                                                    : "  NIC process DOES NOT RUN");
    for (const json& i : host["interfaces"]) {
      fmt::print("    {}  in {}  {}\n", i["name"].get<std::string>(), i["network"].get<std::string>(), joined(i["ip"]));
      if (i.contains("device")) fmt::print("      {}  {}\n", i["device"].get<std::string>(), joined(i["nic_ip"]));
    }
  }
}

}  // namespace

int net_status(const std::string& dir, bool as_json) {
  const LabStore store(dir);
  json labs = json::array();
  for (const std::string& name : store.names()) labs.push_back(report_lab(store, name));
  if (as_json) {
    fmt::print("{}\n", json{{"labs", labs}}.dump(2));
    return 0;
  }
  for (const json& lab : labs) print_lab(lab);
  if (labs.empty()) fmt::print("no lab is up\n");
  return 0;
}

}  // namespace softrnic::tool
