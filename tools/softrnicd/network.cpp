#include "tools/softrnicd/network.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <nlohmann/json.hpp>

#include "engine/nic/clock.h"
#include "engine/ports/host_port.h"

namespace softrnic::daemon {
namespace {

using nlohmann::json;

constexpr int kBurst = 32;               // frames of a port in one turn, while the eSwitch does not run
constexpr std::uint8_t kHopLimit = 64;   // of packets to other hosts
constexpr useconds_t kProbePoll = 1000;  // microseconds between two of them

struct Port {
  std::shared_ptr<ports::HostPort> port;
  std::string netdev;  // kernel's interface under it, or the name of the port
};

control::PortView view_of(const Port& p) {
  control::PortView view;
  view.netdev = p.netdev;
  view.ifindex = p.port->device().kernel_ifindex();
  view.mac = p.port->mac();
  view.roce_mtu = ports::roce_mtu(p.port->mtu());
  for (const neigh::OwnAddress& a : p.port->host().addresses()) view.addresses.push_back({a.ip, a.vlan});
  return view;
}

json status_of(const ports::HostPort& port) {
  const ports::PortCounters c = port.counters();
  const ports::EthdevStats s = port.device().stats();
  return {{"name", port.name()},
          {"mac", ports::to_string(port.mac())},
          {"mtu", port.mtu()},
          {"link", port.device().link_up() ? "up" : "down"},
          {"counters",
           {{"rx_frames", c.rx_frames},
            {"rx_bytes", c.rx_bytes},
            {"tx_frames", c.tx_frames},
            {"tx_bytes", c.tx_bytes},
            {"rx_other_station", c.rx_other_station},
            {"rx_too_short", c.rx_too_short},
            {"rx_reflected", c.rx_reflected},
            {"rx_own", c.rx_own},
            {"tx_unreachable", c.tx_unreachable},
            {"tx_too_long", c.tx_too_long},
            {"tx_dropped", c.tx_dropped},
            {"rx_missed", s.rx_missed},
            {"rx_errors", s.rx_errors},
            {"rx_no_buffer", s.rx_no_buffer},
            {"rx_too_long", s.rx_too_long},
            {"tx_errors", s.tx_errors}}}};
}

// RFC 4861 s5.1, s7.3.2.
const char* state_name(neigh::NeighbourState state) {
  using State = neigh::NeighbourState;
  switch (state) {
    case State::incomplete:
      return "incomplete";
    case State::reachable:
      return "reachable";
    case State::stale:
      return "stale";
    case State::delay:
      return "delay";
    case State::probe:
      return "probe";
    case State::failed:
      return "failed";
  }
  return "unknown";
}

class PortNetwork final : public control::Network {
 public:
  explicit PortNetwork(spdlog::logger& log) : log_(log) {}

  int open(const ports::PortConfig& config, std::string* why);
  int settle(std::string* why);

  std::vector<std::shared_ptr<sw::Uplink>> uplinks() override;
  std::string status() override;
  std::string neighbours() override;
  control::DeviceConfig devices() override;
  int change_address(std::size_t port, bool add, const std::string& address, std::string* why) override;
  void find_route(const Gid& destination, const Gid& source, std::function<void(const Route&)> answer) override;
  void set_on_change(std::function<void()> on_change) override { on_change_ = std::move(on_change); }

 private:
  void on_event(const ports::HostPort& port, const neigh::HostEvent& e);

  spdlog::logger& log_;
  std::vector<Port> ports_;
  std::function<void()> on_change_;
  std::string duplicate_;  // what settle() has to say
};

int PortNetwork::open(const ports::PortConfig& config, std::string* why) {
  std::unique_ptr<ports::EthdevPort> device;
  if (const int error = ports::EthdevPort::open(config, &device, why)) return error;
  auto port = std::make_shared<ports::HostPort>(std::move(device), config, nic::Clock::system_now());
  for (const Port& other : ports_) {
    if (other.port->mac() != port->mac()) continue;
    *why = fmt::format("ports {} and {} have the same MAC {}: give one of them another by --mac", other.port->name(),
                       port->name(), ports::to_string(port->mac()));
    return EINVAL;
  }
  port->set_on_event([this, raw = port.get()](const neigh::HostEvent& e) { on_event(*raw, e); });
  log_.info("port {}: MAC {}, MTU {}", port->name(), ports::to_string(port->mac()), port->mtu());
  const std::string iface = ports::device_argument(config.device, "iface");
  const std::string netdev = iface.empty() ? port->name() : iface;
  ports_.push_back({std::move(port), netdev});
  return 0;
}

// Waits until all addresses have been probed for: the device lists are right from the first moment.
int PortNetwork::settle(std::string* why) {
  const auto probing = [](const Port& p) {
    return p.port->host().configured().size() != p.port->host().addresses().size();
  };
  while (duplicate_.empty() && std::any_of(ports_.begin(), ports_.end(), probing)) {
    const Nanos now = nic::Clock::system_now();
    for (const Port& p : ports_) {
      p.port->receive(
          now, kBurst, [](void*, Bytes) {}, nullptr);
      if (p.port->next_timeout() <= now) p.port->on_timeout(now);
      p.port->flush();
    }
    ::usleep(kProbePoll);
  }
  *why = duplicate_;
  return duplicate_.empty() ? 0 : EADDRINUSE;
}

void PortNetwork::on_event(const ports::HostPort& port, const neigh::HostEvent& e) {
  using Kind = neigh::HostEvent::Kind;
  const std::string ip = ports::to_string(e.ip), mac = ports::to_string(e.mac);
  switch (e.kind) {
    case Kind::address_ready:
      log_.info("port {}: address {} is ready", port.name(), ip);
      break;
    case Kind::address_duplicate:
      duplicate_ = fmt::format("port {}: address {} is not used: the station {} has it", port.name(), ip, mac);
      log_.error("{}", duplicate_);
      break;
    case Kind::address_conflict:
      log_.warn("port {}: the station {} claims our address {}", port.name(), mac, ip);
      return;
    case Kind::neighbour_failed:
      log_.info("port {}: neighbour {} does not answer", port.name(), ip);
      return;
  }
  if (on_change_) on_change_();
}

std::vector<std::shared_ptr<sw::Uplink>> PortNetwork::uplinks() {
  std::vector<std::shared_ptr<sw::Uplink>> all;
  for (const Port& p : ports_) all.push_back(p.port);
  return all;
}

std::string PortNetwork::status() {
  json list = json::array();
  for (const Port& p : ports_) list.push_back(status_of(*p.port));
  return list.dump();
}

std::string PortNetwork::neighbours() {
  json all = json::array();
  for (const Port& p : ports_) {
    json list = json::array();
    for (const neigh::NeighbourCache::Info& n : p.port->host().neighbours().entries()) {
      list.push_back({{"address", ports::to_string(n.key.ip)}, {"state", state_name(n.state)}});
      if (n.key.vlan != neigh::kNoVlan) list.back()["vlan"] = n.key.vlan;
      if (n.mac != neigh::Mac{}) list.back()["mac"] = ports::to_string(n.mac);
    }
    all.push_back(std::move(list));
  }
  return all.dump();
}

control::DeviceConfig PortNetwork::devices() {
  std::vector<control::PortView> views;
  for (const Port& p : ports_) views.push_back(view_of(p));
  return control::port_devices(views);
}

int PortNetwork::change_address(std::size_t port, bool add, const std::string& text, std::string* why) {
  neigh::OwnAddress address;
  if (!ports::parse_address(text, &address, why)) return EINVAL;
  for (std::size_t i = 0; add && i < ports_.size(); ++i) {
    for (const neigh::OwnAddress& a : ports_[i].port->host().configured()) {
      if (a.ip != address.ip || (i == port && a.vlan != address.vlan)) continue;
      *why = fmt::format("{}: port {} has this address already", text, ports_[i].port->name());
      return EEXIST;
    }
  }
  ports::HostPort& host = *ports_[port].port;
  const Nanos now = nic::Clock::system_now();
  const int error = add ? host.add_address(now, address) : host.remove_address(now, address.ip, address.vlan);
  if (error == EADDRNOTAVAIL) *why = fmt::format("{}: port {} does not have this address", text, host.name());
  if (error == EPERM) *why = fmt::format("{}: the link-local address of the port's MAC stays", text);
  if (error == 0 && on_change_) on_change_();
  return error;
}

// The address whose prefix has the destination on the link, the longest of them; else one in a VLAN with a route.
void PortNetwork::find_route(const Gid& destination, const Gid& source, std::function<void(const Route&)> answer) {
  Route best{ENETUNREACH, {}, kHopLimit};
  int best_length = -1;
  for (const Port& p : ports_) {
    neigh::HostStack& host = p.port->host();
    for (const neigh::OwnAddress& a : host.addresses()) {
      if (neigh::is_ipv4(a.ip) != neigh::is_ipv4(destination) || (source != Gid{} && a.ip != source)) continue;
      const bool on_link = neigh::same_prefix(a.ip, destination, a.prefix_length);
      Gid hop{};
      if (!on_link && (neigh::is_link_local(a.ip) || !host.routes().next_hop(destination, a.vlan, &hop))) continue;
      const int length = on_link ? a.prefix_length + 1 : 0;
      if (length <= best_length) continue;
      best_length = length;
      best = {0, a.ip, kHopLimit};
    }
  }
  answer(best);
}

}  // namespace

int open_network(const std::vector<ports::PortConfig>& configs, spdlog::logger& log,
                 std::unique_ptr<control::Network>* out, std::string* why) {
  auto network = std::make_unique<PortNetwork>(log);
  for (const ports::PortConfig& config : configs)
    if (const int error = network->open(config, why)) return error;
  if (const int error = network->settle(why)) return error;
  *out = std::move(network);
  return 0;
}

}  // namespace softrnic::daemon
