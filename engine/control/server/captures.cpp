// Captures: each belongs to a connection. While there is one, as while there are faults, every VF sends through the
// eSwitch.
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>

#include "engine/control/server/server.h"

namespace softrnic::control {
namespace {

std::string interface_name(const Vf& vf) { return fmt::format("vf{} ({} pid {})", vf.id, vf.comm, vf.pid); }

}  // namespace

bool NicHost::Impl::on_capture(Session& s, Request& r) {
  CaptureRequest request{};
  if (r.body.size() < sizeof(request)) return false;
  std::memcpy(&request, r.body.data(), sizeof(request));
  if (request.flags != 0 || s.capturing || s.vf_id != dp::kNoVf) return false;
  observe::Capture::Options o;
  o.snaplen = request.snaplen;
  const std::string filter(reinterpret_cast<const char*>(r.body.data()) + sizeof(request),
                           r.body.size() - sizeof(request));
  if (!filter.empty()) {
    std::string why;
    o.filter = observe::PacketFilter::compile(filter, &why);
    if (o.filter == nullptr) return s.send(MsgType::capture, r.header.seq, EINVAL, why.data(), why.size()), true;
  }
  auto capture = std::make_shared<observe::Capture>(
      std::move(r.fds[0]), o, [this, id = s.id()](const observe::CaptureResult& result) {
        boost::asio::post(io, [this, id, result] { on_capture_end(id, result); });
      });
  s.capturing = true;
  start_capture(s.id(), r.header.seq, std::move(capture));
  return true;
}

// First the switch shows its frames, then the VFs change their route, then the client hears that it runs: so it sees
// all that is sent from then on.
void NicHost::Impl::start_capture(std::uint64_t session, std::uint32_t seq, std::shared_ptr<observe::Capture> capture) {
  captures[session].capture = capture;
  for (const auto& [id, vf] : vfs->all()) capture->add_interface(id, interface_name(*vf));
  tell("capture-on", {{"capture", session}}, fmt::format("capture {} starts", session));
  apply_captures([this, session, seq, capture] {
    routes.change(RouteMode::via_switch, [this, session, seq, capture] {
      capture->begin();
      const auto it = sessions.find(session);
      if (it != sessions.end()) it->second->send(MsgType::capture, seq, 0);
    });
  });
  review_users();
}

void NicHost::Impl::apply_captures(std::function<void()> done) {
  std::vector<std::shared_ptr<sw::FrameTap>> taps;
  for (const auto& [id, entry] : captures)
    if (entry.running) taps.push_back(entry.capture);
  eswitch->set_taps(std::move(taps),
                    [this, done = std::move(done)]() mutable { boost::asio::post(io, std::move(done)); });
}

std::size_t NicHost::Impl::running_captures() const {
  return static_cast<std::size_t>(
      std::count_if(captures.begin(), captures.end(), [](const auto& c) { return c.second.running; }));
}

// Takes it from the switch and lets it write what it has; on_capture_end() follows, unless it came before because of an
// error. It is kept until then: a slow reader still gets everything.
void NicHost::Impl::stop_capture(std::uint64_t session) {
  const auto it = captures.find(session);
  if (it == captures.end() || !it->second.running) return;
  it->second.running = false;
  apply_captures([this, session] {
    const auto stopped = captures.find(session);
    if (stopped != captures.end()) stopped->second.capture->finish();
  });
  review_route();
}

void NicHost::Impl::on_capture_end(std::uint64_t session, const observe::CaptureResult& result) {
  tell("capture-off",
       {{"capture", session}, {"packets", result.packets}, {"lost", result.lost}, {"error", result.error}},
       fmt::format("capture {} ended: {} packets, {} lost{}{}", session, result.packets, result.lost,
                   result.error != 0 ? ", " : "", result.error != 0 ? std::strerror(result.error) : ""));
  stop_capture(session);
  captures.erase(session);
  const auto it = sessions.find(session);
  if (it == sessions.end()) return;
  CaptureEnd end{};
  end.error = result.error;
  end.packets = result.packets;
  end.lost = result.lost;
  it->second->send(MsgType::capture_end, 0, 0, &end, sizeof(end));
  it->second->close_when_sent();
}

// Back to the direct routes when nothing has to see or disturb the packets any more.
void NicHost::Impl::review_route() {
  if (running_captures() == 0 && faults->size() == 0) routes.change(RouteMode::direct, [] {});
}

void NicHost::Impl::name_interface(const Vf& vf) {
  for (const auto& [id, entry] : captures) entry.capture->add_interface(vf.id, interface_name(vf));
}

}  // namespace softrnic::control
