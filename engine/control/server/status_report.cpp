// What `softrnic status` shows, as JSON. The status pages are written by the applications: nothing in them is believed
// beyond its form.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/control/server/device_text.h"
#include "engine/control/server/server.h"
#include "engine/control/server/status_pages.h"
#include "engine/nic/drop_counters.h"
#include "protocols/cm/rdma_cm.h"
#include "protocols/ib/qp.h"
#include "protocols/ib/qp_state.h"

namespace softrnic::control {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kSwitchPatience{200};

// In the order of ib::QpCounters.
constexpr std::array kCounterNames = {"sent_pkts",
                                      "rcvd_pkts",
                                      "sent_bytes",
                                      "rcvd_bytes",
                                      "duplicate_request",
                                      "out_of_seq_request",
                                      "rcvd_rnr_err",
                                      "send_rnr_err",
                                      "rcvd_seq_err",
                                      "retry_exceeded_err",
                                      "retry_rnr_exceeded_err",
                                      "completer_retry_err",
                                      "local_ack_timeout_err",
                                      "drops"};
static_assert(sizeof(ib::QpCounters) == kCounterNames.size() * sizeof(std::uint64_t));
static_assert(sizeof(dp::QpStatus::counters) >= sizeof(ib::QpCounters));

// In the order of nic::DropCounters; without a name: not used.
constexpr std::array kReceivedNames = {"frames",        "",
                                       "too_short",     "not_roce",
                                       "bad_ip_header", "fragmented",
                                       "bad_length",    "bad_transport_version",
                                       "bad_icrc",      "no_qp",
                                       "wrong_source",  "wrong_destination",
                                       "no_group",      "wrong_transport"};
static_assert(sizeof(nic::DropCounters) == kReceivedNames.size() * sizeof(std::uint64_t));

std::string text_of(const Gid& gid) {
  char text[INET6_ADDRSTRLEN]{};
  ::inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  return text;
}

std::string netdev_name(std::uint32_t ifindex) {
  char name[IF_NAMESIZE]{};
  return ::if_indextoname(ifindex, name) != nullptr ? name : "";
}

std::string type_name(std::uint8_t type) {
  switch (static_cast<ib::QpType>(type)) {
    case ib::QpType::rc:
      return "RC";
    case ib::QpType::uc:
      return "UC";
    case ib::QpType::ud:
      return "UD";
    case ib::QpType::raw_packet:
      return "RAW_PACKET";
    case ib::QpType::xrc_send:
      return "XRC_SEND";
    case ib::QpType::xrc_recv:
      return "XRC_RECV";
  }
  return fmt::format("type {}", type);
}

std::string state_name(std::uint8_t state) {
  static constexpr std::array names = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return state < names.size() ? names[state] : fmt::format("state {}", state);
}

json queue_pair(const std::uint8_t* entry) {
  using S = dp::QpStatus;
  json q{{"qpn", field<std::uint32_t>(entry, offsetof(S, qpn))},
         {"type", type_name(field<std::uint8_t>(entry, offsetof(S, type)))},
         {"state", state_name(field<std::uint8_t>(entry, offsetof(S, state)))},
         {"peer_vf", field<std::uint16_t>(entry, offsetof(S, peer_vf))},
         {"dest_qpn", field<std::uint32_t>(entry, offsetof(S, dest_qpn)) & 0xFFFFFF},
         {"sq_psn", field<std::uint32_t>(entry, offsetof(S, sq_psn)) & 0xFFFFFF},
         {"rq_psn", field<std::uint32_t>(entry, offsetof(S, rq_psn)) & 0xFFFFFF}};
  json& counters = q["counters"];
  for (std::size_t i = 0; i < kCounterNames.size(); ++i)
    counters[kCounterNames[i]] = field<std::uint64_t>(entry, offsetof(S, counters) + i * sizeof(std::uint64_t));
  return q;
}

json switch_counters(const sw::PortCounters& c) {
  return {{"tx_frames", c.tx_frames},
          {"tx_bytes", c.tx_bytes},
          {"rx_frames", c.rx_frames},
          {"rx_bytes", c.rx_bytes},
          {"rx_out_of_buffer", c.rx_out_of_buffer},
          {"tx_malformed", c.tx_malformed},
          {"tx_bad_source", c.tx_bad_source},
          {"tx_unknown_destination", c.tx_unknown_destination},
          {"tx_management", c.tx_management}};
}

// Frames that came for the VF by any way, and those of them that no queue pair got.
json received_frames(const sw::SharedMemory& page) {
  std::array<std::uint64_t, kReceivedNames.size()> values{};
  json out;
  if (::pread(page.fd(), values.data(), sizeof(values), offsetof(dp::StatusPage, received)) !=
      static_cast<ssize_t>(sizeof(values)))
    return out;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (*kReceivedNames[i] != '\0') out[kReceivedNames[i]] = values[i];
  return out;
}

json process(const Vf& vf, VfTable& table, const sw::PortCounters& c) {
  const auto* page = vf.status->as<dp::StatusPage>();
  json p{{"vf", vf.id},
         {"pid", vf.pid},
         {"comm", vf.comm},
         {"contexts", page->contexts.load()},
         {"mrs", page->mrs.load()},
         {"cqs", page->cqs.load()},
         {"channels", vf.channels.size()},
         {"switch", switch_counters(c)},
         {"received", received_frames(*vf.status)}};
  json qps = json::array();
  for_each_qp(*vf.status, [&](const std::uint8_t* entry) {
    const auto qpn = field<std::uint32_t>(entry, offsetof(dp::QpStatus, qpn));
    if (qpn != 0 && table.owner(qpn >> dp::kQpnBlockShift) == &vf) qps.push_back(queue_pair(entry));
  });
  p["queue_pairs"] = std::move(qps);
  return p;
}

json device(const DeviceRecord& d, std::size_t index, const std::vector<GidRecord>& gids) {
  json out{{"name", d.name},
           {"state", "PORT_ACTIVE"},
           {"link_layer", d.link_layer == 1 ? "InfiniBand" : "Ethernet"},
           {"mac", mac_text(d)},
           {"node_guid", guid_text(d.node_guid)},
           {"active_mtu", d.active_mtu},
           {"netdev", d.netdev}};
  json list = json::array();
  for (const GidRecord& g : gids) {
    if (g.device != index || g.gid == Gid{}) continue;
    list.push_back({{"index", g.index},
                    {"gid", text_of(g.gid)},
                    {"type", g.type == 0 ? "RoCE v1" : "RoCE v2"},
                    {"netdev", netdev_name(g.ndev_ifindex)}});
    if (g.vlan_id != 0xFFFF) list.back()["vlan"] = g.vlan_id;
  }
  out["gids"] = std::move(list);
  return out;
}

std::string port_space_name(std::uint64_t service) {
  switch (cm::port_space_of(service).value_or(cm::PortSpace::ib)) {
    case cm::PortSpace::tcp:
      return "TCP";
    case cm::PortSpace::udp:
      return "UDP";
    case cm::PortSpace::ipoib:
      return "IPoIB";
    default:
      return "IB";
  }
}

json connection_manager(const rdmacm::Service& cm) {
  json listeners = json::array();
  for (const std::uint64_t service : cm.services())
    listeners.push_back({{"port_space", port_space_name(service)}, {"port", cm::port_of(service)}});
  return {{"channels", cm.channels()},
          {"ids", cm.ids()},
          {"connections", cm.connections()},
          {"listeners", std::move(listeners)}};
}

}  // namespace

// Only the switch's thread knows the neighbours. While a slow capture holds that up, the report comes without them.
void NicHost::Impl::send_status(Session& s, std::uint32_t seq) {
  if (network == nullptr) return send_report(s, MsgType::status, seq, status_report("[]"));
  auto answer = [this, session = s.id(), seq, done = std::make_shared<bool>(false)](const std::string& neighbours) {
    if (std::exchange(*done, true)) return;
    const auto it = sessions.find(session);
    if (it != sessions.end()) send_report(*it->second, MsgType::status, seq, status_report(neighbours));
  };
  auto timer = std::make_shared<boost::asio::steady_timer>(io, kSwitchPatience);
  timer->async_wait([answer, timer](const boost::system::error_code&) { answer("[]"); });
  eswitch->submit([this, answer, timer] {
    boost::asio::post(io, [answer, timer, neighbours = network->neighbours()] {
      answer(neighbours);
      timer->cancel();
    });
  });
}

std::string NicHost::Impl::status_report(const std::string& neighbours) {
  json report{{"nic_process",
               {{"pid", ::getpid()},
                {"version", SOFTRNIC_VERSION},
                {"dir", options.dir},
                {"socket", options.socket_path},
                {"uptime_seconds", (nic::Clock::system_now() - started) / 1'000'000'000u}}},
              {"route", routes.mode() == RouteMode::direct ? "direct" : "switch"},
              {"captures", running_captures()},
              {"faults", faults->size()},
              {"devices", json::array()},
              {"processes", json::array()}};
  const DeviceConfig& config = options.devices;
  for (std::size_t i = 0; i < config.devices.size(); ++i)
    report["devices"].push_back(device(config.devices[i], i, config.gids));
  if (network != nullptr) {
    json& ports = report["ports"] = json::parse(network->status());
    const json known = json::parse(neighbours);
    for (std::size_t i = 0; i < ports.size(); ++i) {
      ports[i]["switch"] = switch_counters(eswitch->uplink_counters(i));
      if (i < known.size()) ports[i]["neighbours"] = known[i];
    }
  }
  for (const auto& [id, vf] : vfs->all()) report["processes"].push_back(process(*vf, *vfs, eswitch->counters(id)));
  report["rdma_cm"] = connection_manager(*cm);
  return report.dump(-1, ' ', true, json::error_handler_t::replace);
}

std::string NicHost::Impl::faults_report() {
  json report = json::array();
  for (const observe::FaultStatus& f : faults->list()) {
    report.push_back(
        {{"id", f.id}, {"rule", f.text}, {"matched", f.matched}, {"applied", f.applied}, {"left", nullptr}});
    if (f.left != UINT64_MAX) report.back()["left"] = f.left;
  }
  return report.dump(-1, ' ', true, json::error_handler_t::replace);
}

void NicHost::Impl::send_report(Session& s, MsgType type, std::uint32_t seq, const std::string& text) {
  if (text.size() <= kMaxMessage - sizeof(MsgHeader)) {
    s.send(type, seq, 0, text.data(), text.size());
    return;
  }
  const auto memory = sw::SharedMemory::create("softrnic-report", text.size());
  if (memory == nullptr) {
    s.send(type, seq, errno);
    return;
  }
  std::memcpy(memory->as<char>(), text.data(), text.size());
  const int fd = memory->fd();
  s.send(type, seq, 0, nullptr, 0, {&fd, 1});
}

}  // namespace softrnic::control
