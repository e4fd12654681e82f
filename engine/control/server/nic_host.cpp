#include "engine/control/server/nic_host.h"

#include <fmt/format.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "engine/control/server/server.h"

namespace softrnic::control {
namespace {

constexpr auto kWaitRead = boost::asio::posix::stream_descriptor::wait_read;
constexpr std::size_t kMaxSessions = 2 * VfTable::kMaxVfs;
constexpr std::chrono::milliseconds kAcceptRetry{50};

}  // namespace

NicHost::Impl::Impl()
    : listener(io), end_timer(io), addresses(io), routes(io), drop_timer(io), cm_timer(io), counter_timer(io) {}

int NicHost::Impl::open(NicHostOptions o, std::string* why) {
  options = std::move(o);
  if (options.socket_path.empty()) options.socket_path = options.dir + "/control.sock";
  const bool host_local = options.devices.devices.empty();
  if (host_local) options.devices = host_devices(read_host());

  if (int error = dir.open(options.dir, why)) return error;
  log = options.make_log
            ? options.make_log()
            : std::make_shared<spdlog::logger>("softrnic", std::make_shared<spdlog::sinks::null_sink_mt>());
  vfs = VfTable::create(options.sizes, static_cast<Nanos>(options.block_quarantine.count()) * 1'000'000u);
  options.eswitch.disturber = faults;
  faults->set_notify([this] { boost::asio::post(io, [this] { collect_fault_events(); }); });
  options.eswitch.on_broken = [this](std::uint16_t vf) {
    boost::asio::post(io, [this, vf] {
      if (Session* s = session_of(vf)) s->close("its ring to the eSwitch is corrupt");
    });
  };
  options.eswitch.on_gsi = [this](Bytes frame) {
    boost::asio::post(io, [this, copy = std::vector<std::uint8_t>(frame.begin(), frame.end())] {
      cm->on_frame(copy);
      arm_cm_timer();
    });
  };
  if (vfs != nullptr) eswitch = sw::ESwitch::create(options.eswitch, vfs->block_table());
  if (eswitch == nullptr) {
    const int error = errno;
    *why = fmt::format("cannot make shared memory: {}", std::strerror(error));
    return error;
  }
  start_cm();
  tell_eswitch_addresses();
  if (host_local && !addresses.start([this] { on_address_change(); }))
    log->warn("changes of this host's addresses will not be seen: {}", std::strerror(errno));
  routes.configure(options.route_timeout, {[this] {
                                             std::vector<std::uint16_t> ids;
                                             for (const auto& [id, session] : vf_sessions) ids.push_back(id);
                                             return ids;
                                           },
                                           [this](std::uint16_t vf, const RouteNotice& notice) {
                                             if (Session* s = session_of(vf))
                                               s->send(MsgType::route, 0, 0, &notice, sizeof(notice));
                                           },
                                           [this](std::uint16_t vf) {
                                             Session* s = session_of(vf);
                                             return s != nullptr && s->has_unread();
                                           },
                                           [this](std::uint16_t vf) {
                                             if (Session* s = session_of(vf))
                                               s->close("did not follow a change of route in time");
                                           }});
  sw::UniqueFd fd;
  if (int error = dir.listen(options.socket_path, &fd, why)) return error;
  listener.assign(fd.release());
  sysfs = std::make_unique<SysfsTree>(options.dir);
  write_sysfs();
  log->info("listening on {}", options.socket_path);
  return 0;
}

void NicHost::Impl::tell_eswitch_addresses() {
  std::vector<sw::OwnGid> own;
  for (const GidRecord& g : options.devices.gids)
    if (g.gid != Gid{})
      own.push_back({g.gid, network != nullptr ? static_cast<int>(g.device) : sw::kNoUplink, g.vlan_id});
  eswitch->set_addresses(std::move(own));
}

void NicHost::Impl::on_address_change() {
  if (network != nullptr) return;  // the addresses are the ports'
  HostView host = read_host();
  const DeviceRecord& device = options.devices.devices.front();
  std::copy_n(device.mac, host.mac.size(), host.mac.begin());  // the device stays the same one
  change_gids(host_devices(host).gids);
}

void NicHost::Impl::change_gids(const std::vector<GidRecord>& fresh) {
  const std::vector<GidRecord> merged = merge_gids(options.devices.gids, fresh);
  auto same = [](const GidRecord& a, const GidRecord& b) {
    return a.device == b.device && a.index == b.index && a.gid == b.gid && a.vlan_id == b.vlan_id;
  };
  if (std::ranges::equal(merged, options.devices.gids, same)) return;
  options.devices.gids = merged;
  for (std::size_t i = 0; i < options.devices.devices.size(); ++i)
    options.devices.devices[i].num_gids =
        static_cast<std::uint32_t>(std::ranges::count_if(merged, [i](const GidRecord& g) { return g.device == i; }));
  log->info("the addresses have changed: {} GIDs", merged.size());
  tell_eswitch_addresses();
  if (const int error = sysfs->write_gids(options.devices)) log->warn("the sysfs tree: {}", std::strerror(error));
  for (const auto& [vf, session] : vf_sessions)
    session->send(MsgType::gid_change, 0, 0, merged.data(), merged.size() * sizeof(GidRecord));
}

void NicHost::Impl::accept_next() {
  listener.async_wait(kWaitRead, [this](const boost::system::error_code& error) {
    if (error) return;
    accept_all();
  });
}

void NicHost::Impl::accept_all() {
  for (;;) {
    sw::UniqueFd fd(::accept4(listener.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) break;
      // Out of descriptors: the connections wait in the queue until there are some again.
      log->error("accept: {}", std::strerror(errno));
      auto timer = std::make_shared<boost::asio::steady_timer>(io, kAcceptRetry);
      timer->async_wait([this, timer](const boost::system::error_code& e) {
        if (!e) accept_all();
      });
      return;
    }
    if (sessions.size() >= kMaxSessions) {
      log->error("connection refused: {} are open", sessions.size());
      continue;
    }
    const std::uint64_t id = next_session++;
    auto s = std::make_shared<Session>(
        io, std::move(fd), id,
        Session::Callbacks{[this](Session& from, Request& r) { on_request(from, r); },
                           [this](Session& from) { return on_end_of_requests(from); },
                           [this](Session& from, const std::string& reason) { on_closed(from, reason); }});
    sessions[id] = s;
    s->start();
  }
  accept_next();
}

void NicHost::Impl::on_closed(Session& s, const std::string& reason) {
  if (reason.empty()) {
    log->debug("connection {} of process {} ({}) ended", s.id(), s.pid(), s.comm);
  } else {
    log->warn("connection {} of process {} ({}) closed: {}", s.id(), s.pid(), s.comm, reason);
  }
  if (s.vf_id != dp::kNoVf) detach_vf(s.vf_id);
  if (s.capturing) stop_capture(s.id());
  remove_faults_of(s.id());
  cm->forget(s.id());
  arm_cm_timer();
  sessions.erase(s.id());
  review_users();
}

bool NicHost::Impl::is_used() const {
  return std::ranges::any_of(
      sessions, [](const auto& s) { return s.second->holding || s.second->capturing || s.second->vf_id != dp::kNoVf; });
}

// Starts or stops the wait for the end of a NIC process that lives only as long as it is used.
void NicHost::Impl::review_users() {
  if (!options.end_with_last_user) return;
  if (is_used()) {
    had_user = true;
    end_timer.cancel();
  } else if (had_user) {
    end_unless_used(options.linger, "the last user is gone");
  }
}

void NicHost::Impl::end_unless_used(std::chrono::milliseconds wait, const char* reason) {
  end_timer.expires_after(wait);
  end_timer.async_wait([this, reason](const boost::system::error_code& error) {
    // Somebody may have come after it ran out.
    if (error || is_used() || !options.end_with_last_user) return;
    log->info("ending: {}", reason);
    io.stop();
  });
}

NicHost::NicHost() : impl_(std::make_unique<Impl>()) {}

int NicHost::create(NicHostOptions options, std::unique_ptr<NicHost>* out, std::string* why) {
  std::unique_ptr<NicHost> host(new NicHost);
  std::string reason;
  const int error = host->impl_->open(std::move(options), &reason);
  if (why != nullptr) *why = reason;
  if (error == 0) *out = std::move(host);
  return error;
}

NicHost::~NicHost() {
  stop();
  if (impl_->control_thread.joinable()) impl_->control_thread.join();
  if (impl_->switch_thread.joinable()) impl_->switch_thread.join();
  // While the lock is still held, so that it is our socket and our tree, and not a successor's.
  if (impl_->sysfs != nullptr) impl_->sysfs->remove();
  if (impl_->listener.is_open()) ::unlink(impl_->options.socket_path.c_str());
}

void NicHost::set_network(std::unique_ptr<Network> network) {
  Impl& d = *impl_;
  d.network = std::move(network);
  d.options.devices = d.network->devices();
  d.eswitch->set_uplinks(d.network->uplinks());
  d.tell_eswitch_addresses();
  d.write_sysfs();
  d.network->set_on_change(
      [&d] { boost::asio::post(d.io, [&d, fresh = d.network->devices().gids] { d.change_gids(fresh); }); });
}

const std::string& NicHost::socket_path() const { return impl_->options.socket_path; }
spdlog::logger& NicHost::log() { return *impl_->log; }
sw::ESwitch& NicHost::eswitch() { return *impl_->eswitch; }

void NicHost::run() {
  Impl& d = *impl_;
  d.accept_next();
  if (d.options.end_with_last_user) d.end_unless_used(d.options.first_user_timeout, "no user came");
  d.io.run();
  d.eswitch->stop();
}

void NicHost::run_switch() { impl_->eswitch->run(); }

void NicHost::start() {
  impl_->control_thread = std::thread([this] { run(); });
  impl_->switch_thread = std::thread([this] { run_switch(); });
}

void NicHost::stop() {
  impl_->io.stop();
  if (impl_->eswitch != nullptr) impl_->eswitch->stop();
}

}  // namespace softrnic::control
