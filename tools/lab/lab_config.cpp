#include "tools/lab/lab_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

namespace softrnic::lab {
namespace {

using json = nlohmann::ordered_json;  // hosts and networks keep the order of the file

constexpr const char* kRoot = "the lab";

// What is wrong, in the form of the public functions.
struct Mistake {
  std::string text;
};

[[noreturn]] void refuse(const std::string& key, const std::string& reason) {
  throw Mistake{fmt::format("{}: {}", key.empty() ? kRoot : key, reason)};
}

std::string join(const std::string& key, const std::string& member) {
  return key.empty() ? member : key + "." + member;
}

bool is_name(std::string_view text, std::size_t longest, std::string_view more) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto good = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || more.find(c) != more.npos; };
  return !text.empty() && text.size() <= longest && letter(text[0]) && std::all_of(text.begin(), text.end(), good);
}

void check_name(const std::string& key, const std::string& name) {
  if (!is_name(name, kMaxName, "-"))
    refuse(key, fmt::format("a name has 1 to {} letters, digits and '-', a letter first", kMaxName));
}

const json& object(const json& value, const std::string& key) {
  if (!value.is_object()) refuse(key, "must be an object, {...}");
  return value;
}

void check_keys(const json& value, const std::string& key, std::initializer_list<std::string_view> known) {
  for (const auto& [name, ignored] : object(value, key).items()) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      refuse(join(key, name), fmt::format("there is no such key (there is: {})", fmt::join(known, ", ")));
  }
}

bool boolean(const json& in, const char* name, const std::string& key) {
  const auto it = in.find(name);
  if (it == in.end()) return false;
  if (!it->is_boolean()) refuse(join(key, name), "must be true or false");
  return it->get<bool>();
}

// A value as it would stand on a command line.
std::string word(const json& value, const std::string& key) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_unsigned()) return std::to_string(value.get<std::uint64_t>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  refuse(key, "must be a string, or a number without sign and fraction, or true or false");
}

// The settings of a port in `in`, in the order in which they build on each other. A list is several of them.
void read_port(const json& in, const std::string& key, std::initializer_list<const char*> settings,
               std::vector<ports::PortConfig>* ports, std::vector<std::string>* options) {
  const auto set = [&](const char* name, const json& value, const std::string& where) {
    const std::string text = word(value, where);
    std::string why;
    if (!ports::set_property(ports, name, text, &why)) refuse(where, why);
    options->insert(options->end(), {std::string("--") + name, text});
  };
  for (const char* name : settings) {
    const auto it = in.find(name);
    if (it == in.end()) continue;
    const std::string where = join(key, name);
    if (!it->is_array()) {
      set(name, *it, where);
      continue;
    }
    for (std::size_t i = 0; i < it->size(); ++i) set(name, (*it)[i], fmt::format("{}[{}]", where, i));
  }
}

class Reader {
 public:
  explicit Reader(Lab* out) : lab_(*out) {}

  void read(const json& in) {
    check_keys(in, "", {"name", "networks", "hosts"});
    if (in.contains("name")) {
      if (!in["name"].is_string()) refuse("name", "must be a string");
      lab_.name = in["name"].get<std::string>();
    }
    if (!is_lab_name(lab_.name))
      refuse("name", fmt::format("'{}': a lab's name has 1 to 32 letters, digits, '-', '_' and '.', a letter first",
                                 lab_.name));
    for (const char* part : {"networks", "hosts"})
      if (!in.contains(part) || object(in[part], part).empty()) refuse(part, "there must be at least one");
    for (const auto& [name, value] : in["networks"].items()) read_network(name, value);
    for (const auto& [name, value] : in["hosts"].items()) read_host(name, value);
    for (std::size_t i = 0; i < lab_.networks.size(); ++i) check_cable(i);
  }

 private:
  void read_network(const std::string& name, const json& in) {
    const std::string key = join("networks", name);
    check_name(key, name);
    if (name == "lo" || name == "all" || name == "default") refuse(key, "the kernel uses this name");
    check_keys(in, key, {"mtu", "cable"});
    Network n{.name = name};
    n.cable = boolean(in, "cable", key);
    if (const auto mtu = in.find("mtu"); mtu != in.end()) {
      const bool number = mtu->is_number_unsigned();
      if (!number || *mtu < ports::kMinMtu || *mtu > ports::kMaxMtu)
        refuse(join(key, "mtu"), fmt::format("an MTU is a number from {} to {}", ports::kMinMtu, ports::kMaxMtu));
      n.mtu = mtu->get<std::uint32_t>();
    }
    lab_.networks.push_back(n);
  }

  void read_host(const std::string& name, const json& in) {
    const std::string key = join("hosts", name);
    check_name(key, name);
    check_keys(in, key, {"router", "interfaces"});
    Host host;
    host.name = name;
    host.router = boolean(in, "router", key);
    const auto list = in.find("interfaces");
    const std::string where = join(key, "interfaces");
    if (list == in.end() || !list->is_array() || list->empty() || list->size() > kMaxInterfaces)
      refuse(where, fmt::format("must be a list, [...], of 1 to {} interfaces", kMaxInterfaces));
    for (std::size_t i = 0; i < list->size(); ++i) read_interface(&host, (*list)[i], fmt::format("{}[{}]", where, i));
    lab_.hosts.push_back(std::move(host));
  }

  void read_interface(Host* host, const json& in, const std::string& key) {
    check_keys(in, key, {"network", "ip", "route", "nic"});
    Interface interface;
    interface.name = fmt::format("eth{}", host->interfaces.size());
    interface.network = find_network(in, key);
    std::vector<ports::PortConfig> kernel(1);
    kernel[0].device = interface.name;
    std::vector<std::string> unused;
    read_port(in, key, {"ip", "route"}, &kernel, &unused);
    for (const neigh::OwnAddress& a : kernel[0].addresses)
      if (a.vlan != neigh::kNoVlan) refuse(join(key, "ip"), "only addresses of the NIC can be in a VLAN");
    interface.kernel = kernel[0];
    add_addresses(interface.kernel, host->name, join(key, "ip"));
    if (in.contains("nic")) read_nic(host, &interface, in["nic"], join(key, "nic"));
    host->interfaces.push_back(std::move(interface));
  }

  void read_nic(Host* host, Interface* interface, const json& in, const std::string& key) {
    check_keys(in, key, {"mac", "mtu", "detect-duplicates", "ip", "route"});
    interface->has_nic = true;
    const std::string device = fmt::format("net_af_packet{},iface={}", host->ports.size(), interface->name);
    std::string why;
    if (!ports::set_property(&host->ports, "port", device, &why)) refuse(key, why);
    host->nic_options.insert(host->nic_options.end(), {"--port", device});
    read_port(in, key, {"mac", "mtu", "detect-duplicates", "ip", "route"}, &host->ports, &host->nic_options);
    const std::uint32_t most = lab_.networks[interface->network].mtu;
    if (host->ports.back().mtu > most) refuse(join(key, "mtu"), fmt::format("is more than the network's, {}", most));
    add_addresses(host->ports.back(), host->name, join(key, "ip"));
  }

  std::size_t find_network(const json& in, const std::string& key) {
    const auto it = in.find("network");
    const std::string where = join(key, "network");
    if (it == in.end() || !it->is_string()) refuse(where, "must be the name of a network");
    std::vector<std::string_view> known;
    for (std::size_t i = 0; i < lab_.networks.size(); ++i) {
      known.push_back(lab_.networks[i].name);
      if (lab_.networks[i].name == it->get<std::string>()) return i;
    }
    refuse(where,
           fmt::format("there is no network '{}' (there is: {})", it->get<std::string>(), fmt::join(known, ", ")));
  }

  // Nobody in a lab shares an address with somebody else.
  void add_addresses(const ports::PortConfig& port, const std::string& host, const std::string& key) {
    for (const neigh::OwnAddress& a : port.addresses) {
      for (const Taken& other : taken_) {
        if (other.address.ip == a.ip && other.address.vlan == a.vlan)
          refuse(key, fmt::format("host {} has the address {} already", other.host, ports::to_string(a.ip)));
      }
      taken_.push_back({a, host});
    }
  }

  void check_cable(std::size_t network) {
    if (!lab_.networks[network].cable) return;
    std::size_t ends = 0;
    for (const Host& h : lab_.hosts)
      for (const Interface& i : h.interfaces) ends += i.network == network ? 1 : 0;
    if (ends != 2)
      refuse(join(join("networks", lab_.networks[network].name), "cable"),
             fmt::format("a cable has two ends, but {} interfaces are in this network", ends));
  }

  struct Taken {
    neigh::OwnAddress address;
    std::string host;
  };
  Lab& lab_;
  std::vector<Taken> taken_;
};

// A key that an object has twice would silently replace the first one: the second host of a name, say.
class TwiceFinder {
 public:
  bool operator()(int /*depth*/, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event == json::parse_event_t::key && !keys_.back().insert(parsed.get<std::string>()).second)
      refuse(parsed.get<std::string>(), "this key is there twice");
    return true;
  }

 private:
  std::vector<std::set<std::string>> keys_;
};

// nlohmann's messages begin with a number in brackets that says nothing to users.
std::string plain(const std::string& message) {
  const auto end = message.find("] ");
  return end == std::string::npos ? message : message.substr(end + 2);
}

}  // namespace

bool is_lab_name(std::string_view text) { return is_name(text, 32, "-_."); }

bool parse_lab(std::string_view text, const std::string& default_name, Lab* out, std::string* why) {
  try {
    const json in = json::parse(text.begin(), text.end(), TwiceFinder(), true, true);
    *out = Lab{};
    out->name = default_name;
    Reader(out).read(in);
    return true;
  } catch (const json::parse_error& e) {
    *why = plain(e.what());
  } catch (const Mistake& mistake) {
    *why = mistake.text;
  }
  return false;
}

std::string hosts_file(const Lab& lab) {
  std::string text = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n";
  const auto add = [&text](const ports::PortConfig& port, const std::string& name) {
    for (const neigh::OwnAddress& a : port.addresses) text += fmt::format("{} {}\n", ports::to_string(a.ip), name);
  };
  for (const Host& host : lab.hosts) {
    for (const Interface& i : host.interfaces) add(i.kernel, host.name);
    for (std::size_t i = 0; i < host.ports.size(); ++i) add(host.ports[i], fmt::format("{}-roce{}", host.name, i));
  }
  return text;
}

}  // namespace softrnic::lab
