#include "tests/unit/datapath/fake_nic.h"

#include <catch2/catch.hpp>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/datapath/wakeup.h"

namespace softrnic::test {

using control::MsgType;

void FakeNic::Shared::make(std::size_t size) {
  fd = dp::make_sealed_memfd("test", size);
  if (fd < 0 || memory.map(fd, size) != 0) std::abort();
}
FakeNic::Shared::~Shared() {
  if (fd >= 0) close(fd);
}

FakeNic::FakeNic(std::uint32_t ring_size) : ring_size_(ring_size) {
  std::string name = "/tmp/softrnic-test-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  dir_ = name;
  path_ = dir_ + "/control.sock";
  switch_inbox_.make(sizeof(dp::Inbox));
  blocks_.make(sizeof(dp::BlockTable));
  switch_eventfd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  listen_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un addr{};
  addr.sun_family = AF_UNIX;
  std::strcpy(addr.sun_path, path_.c_str());
  if (bind(listen_, reinterpret_cast<sockaddr*>(&addr), sizeof addr) != 0 || listen(listen_, 16) != 0) std::abort();
  control_ = std::thread([this] { control_loop(); });
  switch_ = std::thread([this] { switch_loop(); });
}

FakeNic::~FakeNic() {
  die();
  close(switch_eventfd_);
  unlink(path_.c_str());
  rmdir(dir_.c_str());
}

void FakeNic::die() {
  stop_ = true;
  if (control_.joinable()) control_.join();
  if (switch_.joinable()) switch_.join();
  std::lock_guard g(mutex_);
  for (auto* list : {&vfs_}) {
    for (auto& [id, vf] : *list) {
      if (vf->socket >= 0) close(vf->socket);
      vf->socket = -1;
      if (vf->eventfd >= 0) close(vf->eventfd);
      vf->eventfd = -1;
    }
  }
  if (listen_ >= 0) close(listen_);
  listen_ = -1;
}

void FakeNic::control_loop() {
  while (!stop_) {
    std::vector<pollfd> fds{{listen_, POLLIN, 0}};
    std::vector<std::uint16_t> ids{0};
    {
      std::lock_guard g(mutex_);
      for (auto& [id, vf] : vfs_) {
        if (vf->socket < 0) continue;
        fds.push_back({vf->socket, POLLIN, 0});
        ids.push_back(id);
      }
    }
    if (::poll(fds.data(), fds.size(), 2) <= 0) continue;
    if (fds[0].revents != 0) {
      int s = accept4(listen_, nullptr, nullptr, SOCK_CLOEXEC);
      std::lock_guard g(mutex_);
      auto vf = std::make_unique<Vf>();
      vf->socket = s;
      vf->id = next_id_++;
      vfs_[vf->id] = std::move(vf);
    }
    for (std::size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents == 0 || requests_paused_) continue;
      std::lock_guard g(mutex_);
      auto it = vfs_.find(ids[i]);
      if (it == vfs_.end()) continue;
      std::vector<std::uint8_t> buffer(4096);
      ssize_t n = recv(it->second->socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) continue;
      if (n < static_cast<ssize_t>(sizeof(control::MsgHeader))) {
        drop(ids[i]);
        continue;
      }
      control::MsgHeader h;
      std::memcpy(&h, buffer.data(), sizeof h);
      buffer.resize(static_cast<std::size_t>(n));
      buffer.erase(buffer.begin(), buffer.begin() + sizeof h);
      handle(*it->second, h, buffer);
    }
  }
}

void FakeNic::send(int fd, MsgType type, std::uint32_t seq, int status, const void* body, std::size_t length,
                   const std::vector<int>& fds) {
  control::MsgHeader h{};
  h.type = static_cast<std::uint16_t>(type);
  h.seq = seq;
  h.status = status;
  h.length = static_cast<std::uint32_t>(length);
  iovec iov[2] = {{&h, sizeof h}, {const_cast<void*>(body), length}};
  msghdr mh{};
  mh.msg_iov = iov;
  mh.msg_iovlen = 2;
  alignas(cmsghdr) char ctl[CMSG_SPACE(sizeof(int) * 8)] = {};
  if (!fds.empty()) {
    mh.msg_control = ctl;
    mh.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* c = CMSG_FIRSTHDR(&mh);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  sendmsg(fd, &mh, MSG_NOSIGNAL);
}

void FakeNic::handle(Vf& vf, const control::MsgHeader& h, const std::vector<std::uint8_t>& body) {
  auto type = static_cast<MsgType>(h.type);
  if (type != MsgType::route_done) ++requests_;
  if (type == MsgType::hello) {
    control::HelloReply reply{};
    reply.version = control::kProtocolVersion;
    send(vf.socket, type, h.seq, 0, &reply, sizeof reply);
  } else if (type == MsgType::attach) {
    attach(vf, h.seq);
  } else if (type == MsgType::get_block) {
    control::BlockReply reply{next_block_++};
    send(vf.socket, type, h.seq, 0, &reply, sizeof reply);
  } else if (type == MsgType::connect_peer) {
    connect_peer(vf, h.seq, body);
  } else if (type == MsgType::route_done) {
    control::RouteDone done;
    std::memcpy(&done, body.data(), sizeof done);
    vf.epoch_done = done.epoch;
    changed_.notify_all();
  } else {
    send(vf.socket, type, h.seq, 0, nullptr, 0);
  }
}

void FakeNic::attach(Vf& vf, std::uint32_t seq) {
  vf.inbox.make(sizeof(dp::Inbox));
  vf.status.make(sizeof(dp::StatusPage));
  vf.channel.make(dp::channel_bytes(ring_size_));
  vf.eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  auto& m = vf.channel.memory;
  std::uint64_t second = dp::ring_bytes(ring_size_);
  vf.in.open(m.as<dp::RingHeader>(), m.data() + dp::kRingDataOffset, ring_size_);
  vf.out.open(m.as<dp::RingHeader>(second), m.data() + second + dp::kRingDataOffset, ring_size_);
  vf.in.set_state(dp::ConsumerState::helper_polling);  // the fake's switch always polls
  blocks_.memory.as<dp::BlockTable>()->owner[vf.id] = vf.id;
  control::AttachReply reply{};
  reply.vf_id = vf.id;
  reply.switch_slot = vf.id;
  reply.first_block = vf.id;
  reply.ring_size = ring_size_;
  reply.route_mode = static_cast<std::uint32_t>(mode_);
  reply.route_epoch = vf.epoch_done = epoch_;
  send(vf.socket, MsgType::attach, seq, 0, &reply, sizeof reply,
       {vf.inbox.fd, vf.eventfd, vf.status.fd, blocks_.fd, vf.channel.fd, switch_inbox_.fd, switch_eventfd_});
}

void FakeNic::send_peer(Vf& to, Vf& peer, Channel& ch, MsgType type, std::uint32_t seq) {
  control::PeerReply reply{};
  bool low = to.id < peer.id;
  reply.vf_id = peer.id;
  reply.my_slot = low ? ch.low_slot : ch.high_slot;
  reply.peer_slot = low ? ch.high_slot : ch.low_slot;
  reply.ring_index = low ? 0 : 1;
  reply.ring_size = ring_size_;
  send(to.socket, type, seq, 0, &reply, sizeof reply, {ch.shared.fd, peer.inbox.fd, peer.eventfd});
}

void FakeNic::connect_peer(Vf& vf, std::uint32_t seq, const std::vector<std::uint8_t>& body) {
  control::ConnectPeerRequest request;
  std::memcpy(&request, body.data(), sizeof request);
  auto owner = blocks_.memory.as<dp::BlockTable>()->owner[request.block].load();
  auto it = vfs_.find(owner);
  if (it == vfs_.end()) {
    control::PeerReply none{};
    send(vf.socket, MsgType::connect_peer, seq, 0, &none, sizeof none);
    return;
  }
  Vf& peer = *it->second;
  auto& ch = channels_[std::minmax(vf.id, peer.id)];
  bool fresh = ch == nullptr;
  if (fresh) {
    ch = std::make_unique<Channel>();
    ch->shared.make(dp::channel_bytes(ring_size_));
    Vf& low = vf.id < peer.id ? vf : peer;
    Vf& high = vf.id < peer.id ? peer : vf;
    ch->low_slot = low.next_slot++;
    ch->high_slot = high.next_slot++;
  }
  send_peer(vf, peer, *ch, MsgType::connect_peer, seq);
  if (!fresh) return;
  if (peer_added_delay_ms_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(peer_added_delay_ms_));
  send_peer(peer, vf, *ch, MsgType::peer_added, 0);
}

std::uint32_t FakeNic::set_route(control::RouteMode mode) {
  std::lock_guard g(mutex_);
  mode_ = mode;
  control::RouteNotice notice{static_cast<std::uint32_t>(mode), ++epoch_};
  for (auto& [id, vf] : vfs_) {
    if (vf->status.fd >= 0) send(vf->socket, MsgType::route, 0, 0, &notice, sizeof notice);
  }
  return epoch_;
}

bool FakeNic::route_reached(std::uint32_t epoch) {
  std::lock_guard g(mutex_);
  for (auto& [id, vf] : vfs_) {
    if (vf->status.fd >= 0 && vf->epoch_done < epoch) return false;
  }
  return true;
}

void FakeNic::wait_route(std::uint32_t epoch) {
  while (!route_reached(epoch)) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void FakeNic::kill(std::uint16_t vf) {
  std::lock_guard g(mutex_);
  drop(vf);
}

void FakeNic::drop(std::uint16_t id) {
  auto it = vfs_.find(id);
  if (it == vfs_.end()) return;
  close(it->second->socket);
  if (it->second->eventfd >= 0) close(it->second->eventfd);
  if (it->second->status.fd >= 0) blocks_.memory.as<dp::BlockTable>()->owner[id] = dp::kNoVf;
  dead_.push_back(std::move(it->second));
  vfs_.erase(it);
  for (auto& [pair, ch] : channels_) {
    if (pair.first != id && pair.second != id) continue;
    control::PeerGone gone{id};
    auto other = vfs_.find(pair.first == id ? pair.second : pair.first);
    if (other != vfs_.end()) send(other->second->socket, MsgType::peer_gone, 0, 0, &gone, sizeof gone);
  }
}

void FakeNic::switch_loop() {
  while (!stop_) {
    if (paused_ || !forward_all()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

bool FakeNic::forward_all() {
  std::lock_guard g(mutex_);
  bool some = false;
  for (auto& [id, vf] : vfs_) {
    if (!vf->in.is_open()) continue;
    std::uint64_t before = vf->in.position();
    take_from(*vf);
    some |= vf->in.position() != before;
  }
  for (auto& [id, vf] : vfs_) some |= vf->out.is_open() && drain(*vf);
  return some;
}

void FakeNic::take_from(Vf& vf) {
  dp::RingConsumer::Entry e;
  while (vf.in.peek(&e)) {
    Item item{e.kind, e.kind == dp::EntryKind::mark ? e.aux : vf.id, {e.data, e.data + e.length}};
    std::uint16_t to = 0;
    if (e.length >= 2) std::memcpy(&to, e.data, 2);
    if (e.kind == dp::EntryKind::mark) {
      dp::MarkBody body{vf.id, {}};
      std::memcpy(item.bytes.data(), &body, sizeof body);
    }
    if (auto it = vfs_.find(to); it != vfs_.end()) it->second->queue.push_back(std::move(item));
    vf.in.pop();
  }
  if (vf.in.publish_head(true)) dp::ring_bell(*vf.inbox.memory.as<dp::Inbox>(), 0, vf.eventfd);
}

bool FakeNic::drain(Vf& vf) {
  bool some = false;
  while (!vf.queue.empty()) {
    Item& item = vf.queue.front();
    auto length = static_cast<std::uint32_t>(item.bytes.size());
    if (item.kind == dp::EntryKind::mark) {
      if (!vf.out.put_mark(item.aux, item.bytes.data(), length)) break;
    } else {
      if (!vf.out.has_room(length)) break;
      std::memcpy(vf.out.begin(length), item.bytes.data(), length);
      vf.out.commit(length, item.aux);
    }
    vf.queue.pop_front();
    some = true;
  }
  if (!some) return false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (vf.out.consumer_armed()) dp::ring_bell(*vf.inbox.memory.as<dp::Inbox>(), 0, vf.eventfd);
  return true;
}

dp::Inbox& FakeNic::inbox(std::uint16_t vf) {
  std::lock_guard g(mutex_);
  return *vfs_.at(vf)->inbox.memory.as<dp::Inbox>();
}
dp::StatusPage& FakeNic::status(std::uint16_t vf) {
  std::lock_guard g(mutex_);
  return *vfs_.at(vf)->status.memory.as<dp::StatusPage>();
}
dp::RingHeader* FakeNic::direct_ring(std::uint16_t from, std::uint16_t to) {
  std::lock_guard g(mutex_);
  const dp::Mapping& m = channels_.at(std::minmax(from, to))->shared.memory;
  return m.as<dp::RingHeader>(from < to ? 0 : dp::ring_bytes(ring_size_));
}
std::uint8_t* FakeNic::direct_data(std::uint16_t from, std::uint16_t to) {
  return reinterpret_cast<std::uint8_t*>(direct_ring(from, to)) + dp::kRingDataOffset;
}

}  // namespace softrnic::test
