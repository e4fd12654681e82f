// The requests of the control protocol. A handler returns false for a message that breaks the protocol: the connection
// is closed then. What is well-formed but cannot be done gets an errno value in the reply.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>

#include "engine/control/server/server.h"

namespace softrnic::control {
namespace {

template <class T>
bool take_body(const Request& r, T* out) {
  if (r.body.size() != sizeof(T)) return false;
  std::memcpy(out, r.body.data(), sizeof(T));
  return true;
}

MsgType type_of(const Request& r) { return static_cast<MsgType>(r.header.type); }

// A name that another process gave, safe for logs and terminals.
std::string printable(const char* text, std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < size && text[i] != '\0'; ++i) out += text[i] >= 0x20 && text[i] < 0x7F ? text[i] : '?';
  return out;
}

// As the kernel's rdma_is_multicast_addr(): an IPv6 multicast address, or an IPv4 one as mapped.
bool is_multicast(const Gid& gid) {
  if (gid.raw[0] == 0xFF) return true;
  static constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::memcmp(gid.raw, mapped, sizeof(mapped)) == 0 && (gid.raw[12] & 0xF0) == 0xE0;
}

}  // namespace

void NicHost::Impl::on_request(Session& s, Request& r) {
  const bool is_notice = type_of(r) == MsgType::route_done;
  // Only capture brings a descriptor; replies have no status; a request has a number to be answered with.
  const bool formed = r.header.status == 0 && (r.header.seq == 0) == is_notice &&
                      r.fds.size() == (type_of(r) == MsgType::capture ? 1u : 0u) &&
                      s.greeted == (type_of(r) != MsgType::hello);
  if (!formed || !handle(s, r))
    s.close(fmt::format("malformed message: type {}, {} bytes, {} descriptors", r.header.type, r.body.size(),
                        r.fds.size()));
}

bool NicHost::Impl::handle(Session& s, Request& r) {
  switch (type_of(r)) {
    case MsgType::hello:
      return on_hello(s, r);
    case MsgType::attach:
      return on_attach(s, r);
    case MsgType::get_block:
      return on_get_block(s, r);
    case MsgType::connect_peer:
      return on_connect_peer(s, r);
    case MsgType::mcast:
      return on_mcast(s, r);
    case MsgType::return_block:
      return on_return_block(s, r);
    case MsgType::address:
      return on_address(s, r);
    case MsgType::route_done:
      return on_route_done(s, r);
    case MsgType::capture:
      return on_capture(s, r);
    case MsgType::fault_add:
      return on_fault_add(s, r);
    case MsgType::fault_del:
      return on_fault_del(s, r);
    case MsgType::events:
      return on_events(s, r);
    case MsgType::status:
      if (!r.body.empty()) return false;
      send_status(s, r.header.seq);
      return true;
    case MsgType::fault_list:
      if (!r.body.empty()) return false;
      send_report(s, MsgType::fault_list, r.header.seq, faults_report());
      return true;
    case MsgType::cm_open:
      return on_cm_open(s, r);
    case MsgType::cm_close:
      return on_cm_close(s, r);
    case MsgType::cm_command:
      return on_cm_command(s, r);
    case MsgType::sysfs:
      if (!r.body.empty()) return false;
      refresh_counters();
      s.send(MsgType::sysfs, r.header.seq, 0);
      return true;
    case MsgType::shutdown:
      if (!r.body.empty()) return false;
      log->info("ending: process {} ({}) asked for it", s.pid(), s.comm);
      s.send(MsgType::shutdown, r.header.seq, 0);
      boost::asio::post(io, [this] { io.stop(); });
      return true;
    case MsgType::keep:
      if (!r.body.empty()) return false;
      options.end_with_last_user = false;
      end_timer.cancel();
      s.send(MsgType::keep, r.header.seq, 0);
      return true;
    case MsgType::hold:
      if (!r.body.empty()) return false;
      s.holding = true;
      s.send(MsgType::hold, r.header.seq, 0);
      review_users();
      return true;
    default:
      return false;
  }
}

Session* NicHost::Impl::session_of(std::uint16_t vf_id) {
  const auto it = vf_sessions.find(vf_id);
  return it == vf_sessions.end() ? nullptr : it->second;
}

bool NicHost::Impl::on_hello(Session& s, const Request& r) {
  std::uint32_t version = 0;
  if (r.body.size() < sizeof(version)) return false;
  std::memcpy(&version, r.body.data(), sizeof(version));

  HelloReply reply{};
  reply.version = kProtocolVersion;
  reply.daemon_pid = static_cast<std::uint32_t>(::getpid());
  std::strncpy(reply.daemon_version, SOFTRNIC_VERSION, sizeof(reply.daemon_version) - 1);
  std::strncpy(reply.runtime_dir, options.dir.c_str(), sizeof(reply.runtime_dir) - 1);
  // Other versions may have another request; the version comes first in all of them.
  if (version != kProtocolVersion) {
    log->warn("process {} speaks version {} of the control protocol, not {}", s.pid(), version, kProtocolVersion);
    s.send(MsgType::hello, r.header.seq, EPROTONOSUPPORT, &reply, sizeof(reply));
    return true;
  }
  HelloRequest request{};
  if (!take_body(r, &request)) return false;
  s.greeted = true;
  s.comm = printable(request.comm, sizeof(request.comm));
  log->debug("connection {}: process {} ({}), library {}", s.id(), s.pid(), s.comm,
             printable(request.library_version, sizeof(request.library_version)));

  const DeviceConfig& config = options.devices;
  reply.num_devices = static_cast<std::uint32_t>(config.devices.size());
  reply.num_gids = static_cast<std::uint32_t>(config.gids.size());
  std::vector<std::uint8_t> bytes(sizeof(reply) + config.devices.size() * sizeof(DeviceRecord) +
                                  config.gids.size() * sizeof(GidRecord));
  std::uint8_t* p = bytes.data();
  std::memcpy(p, &reply, sizeof(reply));
  p += sizeof(reply);
  std::memcpy(p, config.devices.data(), config.devices.size() * sizeof(DeviceRecord));
  p += config.devices.size() * sizeof(DeviceRecord);
  std::memcpy(p, config.gids.data(), config.gids.size() * sizeof(GidRecord));
  s.send(MsgType::hello, r.header.seq, 0, bytes.data(), bytes.size());
  return true;
}

bool NicHost::Impl::on_attach(Session& s, const Request& r) {
  AttachRequest request{};
  if (!take_body(r, &request) || request.flags != 0) return false;
  if (s.vf_id != dp::kNoVf) {
    s.send(MsgType::attach, r.header.seq, EISCONN);
    return true;
  }
  AttachReply reply{};
  int error = 0;
  Vf* vf = vfs->attach(s.pid(), s.comm, nic::Clock::system_now(), &reply.first_block, &error);
  sw::UniqueFd switch_side;
  if (vf != nullptr) switch_side.reset(::dup(vf->eventfd.get()));
  if (vf == nullptr || !switch_side) {
    if (vf != nullptr) {
      error = errno;
      vfs->detach(vf->id, nic::Clock::system_now());
    }
    log->error("cannot attach process {} ({}): {}", s.pid(), s.comm, std::strerror(error));
    s.send(MsgType::attach, r.header.seq, error);
    return true;
  }
  s.vf_id = vf->id;
  vf_sessions[vf->id] = &s;
  name_interface(*vf);
  eswitch->attach(
      {vf->id, options.sizes.switch_ring, vf->switch_channel, vf->inbox, vf->status, std::move(switch_side)});
  reply.vf_id = vf->id;
  reply.switch_slot = vf->id;
  reply.ring_size = options.sizes.switch_ring;
  reply.route_mode = static_cast<std::uint32_t>(routes.mode());
  reply.route_epoch = routes.epoch();
  const int fds[] = {vf->inbox->fd(),          vf->eventfd.get(),     vf->status->fd(),  vfs->block_table_memory().fd(),
                     vf->switch_channel->fd(), eswitch->inbox().fd(), eswitch->eventfd()};
  s.send(MsgType::attach, r.header.seq, 0, &reply, sizeof(reply), fds);
  tell("vf-attached", {{"vf", vf->id}, {"pid", s.pid()}, {"comm", s.comm}},
       fmt::format("vf{} attached: process {} ({})", vf->id, s.pid(), s.comm));
  review_users();
  watch_counters();
  return true;
}

// The process of a VF is gone. Its queue pair numbers stay its own until the eSwitch has forwarded its last frames.
void NicHost::Impl::detach_vf(std::uint16_t id) {
  vf_sessions.erase(id);
  routes.forget(id);
  collect_drops();
  eswitch->detach(id, [this, id] { boost::asio::post(io, [this, id] { finish_detach(id); }); });
}

void NicHost::Impl::finish_detach(std::uint16_t id) {
  PeerGone notice{};
  notice.vf_id = id;
  if (const Vf* vf = vfs->find(id)) add_counters(*vf, &gone_counters);
  for (const std::uint16_t peer : vfs->detach(id, nic::Clock::system_now()))
    if (Session* s = session_of(peer)) s->send(MsgType::peer_gone, 0, 0, &notice, sizeof(notice));
  told_drops.erase(fmt::format("vf{}", id));
  tell("vf-gone", {{"vf", id}}, fmt::format("vf{} detached", id));
}

// A client that shut down its direction of the connection ends its capture and waits for the result.
bool NicHost::Impl::on_end_of_requests(Session& s) {
  if (!s.capturing) return false;
  stop_capture(s.id());
  return true;
}

bool NicHost::Impl::on_get_block(Session& s, const Request& r) {
  Vf* vf = vfs->find(s.vf_id);
  if (!r.body.empty() || vf == nullptr) return false;
  BlockReply reply{};
  if (int error = vfs->allocate_block(*vf, nic::Clock::system_now(), &reply.block)) {
    s.send(MsgType::get_block, r.header.seq, error);
  } else {
    s.send(MsgType::get_block, r.header.seq, 0, &reply, sizeof(reply));
  }
  return true;
}

bool NicHost::Impl::on_return_block(Session& s, const Request& r) {
  BlockReply request{};
  Vf* vf = vfs->find(s.vf_id);
  if (!take_body(r, &request) || vf == nullptr || request.block >= dp::kQpnBlocks) return false;
  s.send(MsgType::return_block, r.header.seq, vfs->release_block(*vf, request.block, nic::Clock::system_now()));
  return true;
}

bool NicHost::Impl::on_connect_peer(Session& s, const Request& r) {
  ConnectPeerRequest request{};
  Vf* self = vfs->find(s.vf_id);
  if (!take_body(r, &request) || self == nullptr || request.block >= dp::kQpnBlocks) return false;
  Vf* peer = vfs->owner(request.block);
  if (peer == nullptr || peer == self) {
    PeerReply reply{};
    reply.vf_id = peer == nullptr ? dp::kNoVf : self->id;
    s.send(MsgType::connect_peer, r.header.seq, 0, &reply, sizeof(reply));
    return true;
  }
  bool created = false;
  int error = 0;
  const auto channel = vfs->connect(*self, *peer, &created, &error);
  if (channel == nullptr) {
    log->error("no channel from vf{} to vf{}: {}", self->id, peer->id, std::strerror(error));
    s.send(MsgType::connect_peer, r.header.seq, error);
    return true;
  }
  send_channel(s, MsgType::connect_peer, r.header.seq, *self, *peer, *channel);
  if (created) {
    if (Session* other = session_of(peer->id)) send_channel(*other, MsgType::peer_added, 0, *peer, *self, *channel);
  }
  return true;
}

void NicHost::Impl::send_channel(Session& to, MsgType type, std::uint32_t seq, const Vf& self, const Vf& peer,
                                 const PeerChannel& channel) {
  const bool low = self.id == channel.low;
  PeerReply reply{};
  reply.vf_id = peer.id;
  reply.my_slot = low ? channel.slot_at_low : channel.slot_at_high;
  reply.peer_slot = low ? channel.slot_at_high : channel.slot_at_low;
  reply.ring_index = low ? 0 : 1;
  reply.ring_size = channel.ring_size;
  const int fds[] = {channel.memory->fd(), peer.inbox->fd(), peer.eventfd.get()};
  to.send(type, seq, 0, &reply, sizeof(reply), fds);
}

bool NicHost::Impl::on_mcast(Session& s, const Request& r) {
  McastRequest request{};
  if (!take_body(r, &request) || s.vf_id == dp::kNoVf || request.attach > 1) return false;
  s.send(MsgType::mcast, r.header.seq, change_membership(*vfs->find(s.vf_id), request.mgid, request.attach == 1));
  return true;
}

// A VF is a member as long as it has joined more often than left.
int NicHost::Impl::change_membership(Vf& vf, const Gid& mgid, bool join) {
  if (!is_multicast(mgid)) return EINVAL;
  const auto key = std::to_array(mgid.raw);
  auto it = vf.groups.find(key);
  if (!join) {
    if (it == vf.groups.end()) return EINVAL;
    if (--it->second != 0) return 0;
    vf.groups.erase(it);
  } else {
    if (it != vf.groups.end()) return ++it->second, 0;
    if (vf.groups.size() >= options.devices.devices.front().max_mcast_grp) return ENOMEM;
    vf.groups[key] = 1;
  }
  eswitch->set_group_member(mgid, vf.id, join);
  return 0;
}

// The ports belong to the switch's thread: the change is made there, and answered when the programs have been told of
// it.
bool NicHost::Impl::on_address(Session& s, const Request& r) {
  AddressRequest request{};
  if (!take_body(r, &request) || request.add > 1) return false;
  const std::string address = printable(request.address, sizeof(request.address));
  const std::uint32_t seq = r.header.seq;
  if (network == nullptr || request.port >= options.devices.devices.size()) {
    s.send(MsgType::address, seq, ENODEV);
    return true;
  }
  log->info("process {} ({}) {} address {} of port {}", s.pid(), s.comm, request.add == 1 ? "adds" : "removes", address,
            request.port);
  eswitch->submit([this, session = s.id(), seq, request, address] {
    std::string why;
    const int error = network->change_address(request.port, request.add == 1, address, &why);
    boost::asio::post(io, [this, session, seq, error, why] {
      const auto it = sessions.find(session);
      if (it != sessions.end()) it->second->send(MsgType::address, seq, error, why.data(), why.size());
    });
  });
  return true;
}

bool NicHost::Impl::on_route_done(Session& s, const Request& r) {
  RouteDone done{};
  return take_body(r, &done) && s.vf_id != dp::kNoVf && routes.acknowledge(s.vf_id, done.epoch);
}

}  // namespace softrnic::control
