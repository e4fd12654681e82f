// The stream of events: what happened in the NIC process, for `softrnic events`.
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "engine/control/server/server.h"
#include "engine/observe/wall_clock.h"

namespace softrnic::control {
namespace {

constexpr std::chrono::milliseconds kDropInterval{
    250};  // counters are looked at so often while somebody waits for events

}  // namespace

void NicHost::Impl::tell(std::string_view kind, std::initializer_list<observe::EventField> fields,
                         const std::string& text, bool logged) {
  if (logged) log->info("{}", text);
  events.add(observe::wall_clock(), kind, fields, text);
  answer_waiting();
}

bool NicHost::Impl::on_events(Session& s, const Request& r) {
  EventsRequest request{};
  if (r.body.size() != sizeof(request)) return false;
  std::memcpy(&request, r.body.data(), sizeof(request));
  if (request.wait > 1 || request.reserved != 0) return false;
  collect_fault_events();
  collect_drops();
  if (request.wait == 1 && request.after >= events.last()) {
    event_waiters.push_back({s.id(), r.header.seq, request.after});
    watch_drops();
  } else {
    send_events(s, r.header.seq, request.after);
  }
  return true;
}

void NicHost::Impl::send_events(Session& s, std::uint32_t seq, std::uint64_t after) {
  const auto batch = events.read(after, kMaxMessage - sizeof(MsgHeader) - sizeof(EventsReply));
  EventsReply reply{};
  reply.last = batch.last;
  reply.missed = batch.missed;
  std::string body(reinterpret_cast<const char*>(&reply), sizeof(reply));
  body += batch.lines;
  s.send(MsgType::events, seq, 0, body.data(), body.size());
}

void NicHost::Impl::answer_waiting() {
  const auto waiters = std::exchange(event_waiters, {});
  for (const EventWaiter& w : waiters) {
    const auto it = sessions.find(w.session);
    if (it == sessions.end()) continue;
    if (w.after >= events.last()) {
      event_waiters.push_back(w);
    } else {
      send_events(*it->second, w.seq, w.after);
    }
  }
}

// Drops are counted one by one and told in sums.
void NicHost::Impl::collect_drops() {
  const auto compare = [this](const std::string& where, const sw::PortCounters& now) {
    sw::PortCounters& told = told_drops[where];
    const struct {
      const char* reason;
      std::uint64_t sw::PortCounters::*counter;
    } kReasons[] = {{"rx_out_of_buffer", &sw::PortCounters::rx_out_of_buffer},
                    {"tx_malformed", &sw::PortCounters::tx_malformed},
                    {"tx_bad_source", &sw::PortCounters::tx_bad_source},
                    {"tx_unknown_destination", &sw::PortCounters::tx_unknown_destination}};
    for (const auto& reason : kReasons) {
      const std::uint64_t count = now.*reason.counter - told.*reason.counter;
      if (count == 0) continue;
      tell("drops", {{"at", where}, {"reason", std::string(reason.reason)}, {"count", count}},
           fmt::format("{} packets dropped at {}: {}", count, where, reason.reason), false);
    }
    told = now;
  };
  for (const auto& [id, vf] : vfs->all()) compare(fmt::format("vf{}", id), eswitch->counters(id));
  const std::size_t ports = network != nullptr ? options.devices.devices.size() : 0;  // device i is on uplink i
  for (std::size_t i = 0; i < ports; ++i) compare(fmt::format("port{}", i), eswitch->uplink_counters(i));
}

void NicHost::Impl::watch_drops() {
  if (watching_drops) return;
  watching_drops = true;
  drop_timer.expires_after(kDropInterval);
  drop_timer.async_wait([this](const boost::system::error_code& error) {
    watching_drops = false;
    if (error) return;
    std::erase_if(event_waiters, [this](const EventWaiter& w) { return !sessions.contains(w.session); });
    if (event_waiters.empty()) return;
    collect_drops();
    if (!event_waiters.empty()) watch_drops();
  });
}

}  // namespace softrnic::control
