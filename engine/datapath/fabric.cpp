// Attaching to the NIC process and the control path: QPN blocks, paths to peers.
#include "engine/datapath/fabric.h"

#include <cerrno>
#include <cstring>
#include <new>

#include <sched.h>

#include "engine/datapath/fabric_impl.h"
#include "engine/datapath/fences.h"
#include "engine/nic/raw_io.h"

namespace softrnic::dp {
namespace {

using control::MsgType;

constexpr std::uint32_t kLoopbackRing = 256 * 1024;
enum AttachFd { kInboxFd, kEventFd, kStatusFd, kBlocksFd, kChannelFd, kSwitchInboxFd, kSwitchEventFd, kAttachFds };

unsigned allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  int n = CPU_COUNT(&set);
  return n > 0 ? static_cast<unsigned>(n) : 1;
}

std::string connect_error(int rc, const std::string& path) {
  std::string why = "cannot connect to the NIC process at " + path + ": ";
  if (rc == ENOENT) return why + "there is no such socket (start the program with 'softrnic run')";
  if (rc == ECONNREFUSED) return why + "nobody listens there any more (start the program with 'softrnic run')";
  return why + strerrordesc_np(rc);
}

}  // namespace

Fabric::Fabric() : impl_(std::make_unique<Impl>()) {}
Fabric::~Fabric() = default;

int Fabric::attach(const std::string& socket_path, std::unique_ptr<Fabric>* out, std::string* why) {
  std::unique_ptr<Fabric> f(new Fabric);
  int rc = f->impl_->attach(socket_path, why);
  if (rc == 0) *out = std::move(f);
  return rc;
}

int Fabric::Impl::attach(const std::string& socket_path, std::string* why) {
  control::Connection& c = link.connection();
  if (int rc = c.connect(socket_path); rc != 0) {
    *why = connect_error(rc, socket_path);
    return rc;
  }
  if (int rc = control::hello(c, &info); rc != 0) {
    *why = "the NIC process does not answer as expected";
    if (rc == EPROTONOSUPPORT) *why = std::string("the NIC process is of version ") + info.reply.daemon_version;
    return rc;
  }
  control::AttachRequest request{};
  control::Message reply;
  std::vector<control::Message> early;
  int rc = c.call(MsgType::attach, &request, sizeof request, &reply, &early);
  if (rc != 0) {
    *why = std::string("the NIC process refuses to attach this process: ") + strerrordesc_np(rc);
  } else if (rc = map_shared(reply); rc != 0) {
    *why = "the NIC process shares memory in an unexpected way";
  }
  reply.close_fds();
  link.queue_notices(std::move(early));
  if (rc != 0) return rc;
  cpus = allowed_cpus();
  link.set_wake_fd(eventfd);
  link.set_peer_hook([](void* self, control::Message& m) { static_cast<Impl*>(self)->add_peer(m); }, this);
  dirty.reserve(1);
  heat(to_switch);
  return 0;
}

int Fabric::Impl::map_shared(control::Message& m) {
  control::AttachReply reply;
  if (m.body.size() != sizeof reply || m.num_fds != kAttachFds) return EPROTO;
  std::memcpy(&reply, m.body.data(), sizeof reply);
  if (reply.vf_id == kNoVf || reply.switch_slot >= kInboxSlots || reply.first_block >= kQpnBlocks ||
      reply.route_mode > static_cast<std::uint32_t>(control::RouteMode::via_switch)) {
    return EPROTO;
  }
  if (int rc = inbox_memory.map(m.fds[kInboxFd], sizeof(Inbox)); rc != 0) return rc;
  if (int rc = status_memory.map(m.fds[kStatusFd], sizeof(StatusPage)); rc != 0) return rc;
  if (int rc = blocks_memory.map(m.fds[kBlocksFd], sizeof(BlockTable), false); rc != 0) return rc;
  int channel_fds[3] = {m.fds[kChannelFd], m.fds[kSwitchInboxFd], m.fds[kSwitchEventFd]};
  m.fds[kChannelFd] = m.fds[kSwitchInboxFd] = m.fds[kSwitchEventFd] = -1;
  if (int rc = to_switch.open(kNoVf, reply.ring_size, 0, 0, reply.switch_slot, channel_fds); rc != 0) return rc;
  eventfd = m.fds[kEventFd];
  m.fds[kEventFd] = -1;
  inbox = inbox_memory.as<Inbox>();
  status = status_memory.as<StatusPage>();
  blocks = blocks_memory.as<BlockTable>();
  registered = register_producer();
  announce_fences(*inbox);
  by_slot[0] = &to_switch;
  vf_id = reply.vf_id;
  spare_block = reply.first_block;
  route = static_cast<control::RouteMode>(reply.route_mode);
  route_epoch = reply.route_epoch;
  status->route_epoch_done.store(route_epoch, std::memory_order_relaxed);
  return 0;
}

Fabric::Impl::~Impl() {
  if (status != nullptr) count_as_poller(false);
  if (eventfd >= 0) raw_close(eventfd);
}

void Fabric::abandon_after_fork() {
  Impl& f = *impl_;
  new (&f.tables) SpinLock;  // a thread that is not here may have held it
  f.link.abandon();
  if (f.eventfd >= 0) raw_close(f.eventfd);
  f.eventfd = -1;
  // Private memory instead of the parent's: whatever still refers to it stays harmless.
  f.inbox_memory.map_private(sizeof(Inbox));
  f.status_memory.map_private(sizeof(StatusPage));
  f.blocks_memory.map_private(sizeof(BlockTable));
  f.to_switch.inbox_memory.map_private(sizeof(Inbox));
  f.inbox = f.inbox_memory.as<Inbox>();
  f.status = f.status_memory.as<StatusPage>();
  f.blocks = f.blocks_memory.as<BlockTable>();
  f.to_switch.peer_inbox = f.to_switch.inbox_memory.as<Inbox>();
  f.switch_path.sink = true;
  for (const auto& p : f.paths) {
    p->sink = true;
    p->direct = nullptr;
  }
  for (Channel*& slot : f.by_slot) slot = nullptr;
  f.loopback = nullptr;
  f.hot.clear();
  f.dirty.clear();
  f.live_paths.clear();
  f.barriers.clear();
  f.channels.clear();
  f.newcomers.clear();
  f.has_newcomers = false;
  f.closing = 0;
  f.owes_route_done = false;
  f.counted_as_poller = false;
  f.spare_block = -1;
}

VfId Fabric::vf_id() const { return impl_->vf_id; }
const control::HelloInfo& Fabric::info() const { return impl_->info; }
StatusPage& Fabric::status() { return *impl_->status; }
const BlockTable& Fabric::blocks() const { return *impl_->blocks; }

bool Fabric::take_gids(std::vector<control::GidRecord>* out) {
  if (!impl_->has_new_gids) return false;
  impl_->has_new_gids = false;
  *out = std::move(impl_->new_gids);
  impl_->new_gids.clear();
  return true;
}

std::int64_t Fabric::get_block() {
  if (std::int64_t spare = impl_->spare_block.exchange(-1); spare >= 0) return spare;
  control::Message reply;
  int rc = impl_->link.call(MsgType::get_block, nullptr, 0, &reply);
  reply.close_fds();
  control::BlockReply block;
  if (rc != 0 || reply.body.size() != sizeof block) return -1;
  std::memcpy(&block, reply.body.data(), sizeof block);
  return block.block < kQpnBlocks ? block.block : -1;
}

void Fabric::return_block(std::uint32_t block) {
  control::BlockReply request{block};
  control::Message reply;
  impl_->link.call(MsgType::return_block, &request, sizeof request, &reply);
  reply.close_fds();
}

int Fabric::mcast(const Gid& mgid, bool attach) {
  control::McastRequest request{mgid, attach ? 1u : 0u};
  control::Message reply;
  int rc = impl_->link.call(MsgType::mcast, &request, sizeof request, &reply);
  reply.close_fds();
  return rc;
}

int Fabric::request(control::MsgType type, const void* body, std::uint32_t length, control::Message* reply) {
  return impl_->link.call(type, body, length, reply);
}

Path* Fabric::path_for_qpn(std::uint32_t qpn) {
  Impl& f = *impl_;
  control::ConnectPeerRequest request{(qpn >> kQpnBlockShift) & (kQpnBlocks - 1)};
  VfId owner = f.blocks->owner[request.block].load(std::memory_order_acquire);
  if (owner == kNoVf) return &f.switch_path;
  if (owner == f.vf_id) return f.self_path();
  if (Path* p = f.known_path(owner)) return p;
  control::Message reply;
  int rc = f.link.call(MsgType::connect_peer, &request, sizeof request, &reply);
  reply.close_fds();
  control::PeerReply peer;
  if (rc != 0 || reply.body.size() != sizeof peer) return &f.switch_path;
  std::memcpy(&peer, reply.body.data(), sizeof peer);
  if (peer.vf_id == f.vf_id) return f.self_path();
  Path* p = f.known_path(peer.vf_id);  // the peer hook of the link has added it
  return p != nullptr ? p : &f.switch_path;
}

Path* Fabric::Impl::known_path(VfId vf) {
  SpinGuard g(tables);
  auto it = path_by_vf.find(vf);
  return it == path_by_vf.end() ? nullptr : it->second;
}

void Fabric::Impl::add_peer(control::Message& m) {
  control::PeerReply peer{};
  if (m.body.size() == sizeof peer) std::memcpy(&peer, m.body.data(), sizeof peer);
  // Both sides may have asked for the channel at once: then it is there already.
  if (m.num_fds != 3 || peer.vf_id == kNoVf || peer.vf_id == vf_id || peer.my_slot == 0 ||
      known_path(peer.vf_id) != nullptr) {
    m.close_fds();
    return;
  }
  auto channel = std::make_unique<Channel>();
  m.num_fds = 0;
  if (channel->open(peer.vf_id, peer.ring_size, peer.ring_index, peer.my_slot, peer.peer_slot, m.fds) != 0) return;
  auto path = std::make_unique<Path>();
  path->peer = peer.vf_id;
  path->direct = channel.get();
  publish_path(std::move(path), std::move(channel));
}

Path* Fabric::Impl::publish_path(std::unique_ptr<Path> path, std::unique_ptr<Channel> channel) {
  SpinGuard g(tables);
  auto [it, fresh] = path_by_vf.try_emplace(path->peer, path.get());
  if (!fresh) return it->second;
  newcomers.emplace_back(path.get(), std::move(channel));
  paths.push_back(std::move(path));
  has_newcomers.store(true, std::memory_order_release);
  return it->second;
}

Path* Fabric::Impl::self_path() {
  if (Path* p = known_path(vf_id)) return p;
  auto channel = std::make_unique<Channel>();
  if (channel->open_loopback(vf_id, kLoopbackRing, inbox, eventfd) != 0) return &switch_path;
  auto path = std::make_unique<Path>();
  path->peer = vf_id;
  path->direct = channel.get();
  return publish_path(std::move(path), std::move(channel));
}

}  // namespace softrnic::dp
