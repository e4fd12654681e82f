// Packets out: which queue pair sends next, and how a packet becomes a frame in a ring.
#include <cstring>

#include "engine/datapath/paths.h"
#include "engine/nic/vf_impl.h"

namespace softrnic::nic {
namespace {

constexpr std::uint32_t kIcrcSize = 4;
constexpr int kTurn = 32;

}  // namespace

void Vf::Impl::serve(QpImpl& qp, int budget) {
  if (qp.waiting != Waiting::blocked || (qp.held_valid && qp.ib.state() == ib::QpState::err)) {
    switch (transmit(qp, budget)) {
      case Sent::nothing_left:
        if (qp.waiting != Waiting::no) stop_waiting(qp);
        break;
      case Sent::budget:
        if (qp.waiting == Waiting::no) {
          qp.waiting = Waiting::active;
          active.push_back(qp);
        }
        break;
      case Sent::blocked:
        stop_waiting(qp);
        block_on(qp, *qp.waits_for);
        break;
    }
  }
  // No completion is visible before the ACK of what it reports is in the ring (design rule 10): the transport keeps a
  // receive completion back until it has handed out its ACK, which transmit() has put there.
  if (!qp.held_valid) report_events(qp);
  timers.arm(qp, qp.ib.next_timeout());
  if (dirty.empty()) dirty_since = now();
  dirty.push_back(qp);
}

Vf::Impl::Sent Vf::Impl::transmit(QpImpl& qp, int budget) {
  return qp.type == ib::QpType::ud ? transmit_datagrams(qp, budget) : transmit_connected(qp, budget);
}

Vf::Impl::Sent Vf::Impl::transmit_connected(QpImpl& qp, int budget) {
  if (qp.path == nullptr) return Sent::nothing_left;
  dp::Path& path = *qp.path->path;
  qp.waits_for = qp.path;
  // The transport starts a timer with the time. While one runs, an earlier reading of the clock will do.
  const Nanos t = qp.ib.next_timeout() == kNever ? now() : now_cached;
  Sent result = Sent::budget;
  bool requests = false;
  for (int sent = 0; sent < budget; ++sent) {
    // Those who wait already come first.
    if (!qp.path->blocked.empty() || !fabric->has_room(path, qp.frame_room)) {
      result = qp.ib.wants_transmit(t) ? Sent::blocked : Sent::nothing_left;
      break;
    }
    if (!qp.ib.poll_transmit(t, memory, &tx)) {
      result = Sent::nothing_left;
      break;
    }
    if (!send_frame(qp.headers, path, tx)) {
      qp.ib.on_gather_fault(t);
      continue;
    }
    requests |= tx.is_request;
    if (!tx.more) {
      result = Sent::nothing_left;
      break;
    }
  }
  if (requests) {
    qp.last_request = fabric->position(path);
    qp.request_sent = true;
  }
  return result;
}

Vf::Impl::Sent Vf::Impl::transmit_datagrams(QpImpl& qp, int budget) {
  if (qp.held_valid && qp.ib.state() == ib::QpState::err) qp.held_valid = false;  // it must not hold up the flush
  for (int sent = 0; sent < budget; ++sent) {
    if (!qp.held_valid) {
      if (!qp.ib.wants_transmit(now()) || !qp.ib.poll_transmit(now(), memory, qp.held.get())) return Sent::nothing_left;
      qp.held_valid = true;
    }
    // Where it goes is known only now; the packet stays in `held`, and its completion with it, until there is room.
    const AddressEntry* ah = addresses.at(qp.held->ah);
    PathState* p = datagram_path(*ah, qp.held->dest_qpn);
    if (!p->blocked.empty() || !fabric->has_room(*p->path, qp.frame_room)) {
      qp.waits_for = p;
      return Sent::blocked;
    }
    qp.held_valid = false;
    if (!send_frame(ah->headers, *p->path, *qp.held)) {
      qp.ib.on_gather_fault(now());
      continue;
    }
    if (ah->multicast) loop_back_multicast(qp, *ah);
  }
  return Sent::budget;
}

bool Vf::Impl::send_frame(roce::HeaderTemplate& headers, dp::Path& path, const ib::TxPacket& packet) {
  const std::uint32_t transport = packet.header_len + packet.payload.length + packet.pad;
  const std::uint32_t size = headers.size() + transport + kIcrcSize;
  std::uint8_t* frame = fabric->begin(path, size);
  std::uint8_t* bth = frame + headers.size();
  // All of the array: what the packet does not have is written over, and a copy of that size is no call.
  std::memcpy(bth, packet.header, sizeof packet.header);
  if (packet.payload.length != 0 && !ib::gather(memory, packet, bth + packet.header_len)) return false;
  headers.write(frame, transport);
  const std::uint32_t icrc = headers.icrc(frame, transport);
  std::memcpy(bth + transport, &icrc, kIcrcSize);  // least significant byte first
  fabric->commit(path, size);
  return true;
}

// A datagram goes straight to a VF that a path is known to; to everybody else through the eSwitch.
PathState* Vf::Impl::datagram_path(const AddressEntry& ah, std::uint32_t dest_qpn) {
  if (ah.multicast || !ah.local) return switch_path;
  const dp::VfId owner =
      fabric->blocks().owner[(dest_qpn >> dp::kQpnBlockShift) & (dp::kQpnBlocks - 1)].load(std::memory_order_relaxed);
  if (owner == fabric->vf_id()) return self_path;
  return owner == dp::kNoVf ? switch_path : path_to(owner);
}

PathState* Vf::Impl::path_to(dp::VfId vf) {
  const auto it = path_by_vf.find(vf);
  if (it != path_by_vf.end() && !it->second->path->sink) return it->second;
  // Not met yet, or the number belongs to another process now.
  dp::Path* found = nullptr;
  {
    SpinGuard g(peers_lock);
    if (const auto n = new_peers.find(vf); n != new_peers.end()) {
      found = n->second;
      new_peers.erase(n);
    }
  }
  if (found == nullptr || found->sink) return switch_path;
  return path_by_vf[vf] = path_state(found);
}

void Vf::Impl::resolve_datagram_peer(QpImpl& qp, std::uint32_t dest_qpn) {
  const std::uint32_t block = dest_qpn >> dp::kQpnBlockShift;
  const dp::VfId owner = fabric->blocks().owner[block].load(std::memory_order_acquire);
  const std::uint32_t destination = std::uint32_t{owner} << 16 | block;
  if (owner == dp::kNoVf || owner == fabric->vf_id() || destination == qp.resolved) return;
  dp::Path* p = fabric->path_for_qpn(dest_qpn);
  qp.resolved = destination;
  if (dp::Fabric::peer(*p) != owner) return;
  SpinGuard g(peers_lock);
  new_peers[owner] = p;
}

// The other members of the group in this VF: the eSwitch does not send a frame back to where it came from.
void Vf::Impl::loop_back_multicast(QpImpl& qp, const AddressEntry& ah) {
  const auto group = groups.find(ah.dgid);
  if (group == groups.end() || group->second.empty()) return;
  const bool others = group->second.size() > 1 || group->second.front() != &qp;
  // A datagram: without room it is lost.
  if (others && fabric->has_room(*self_path->path, qp.frame_room)) send_frame(ah.headers, *self_path->path, *qp.held);
}

void Vf::Impl::serve_active(int budget) {
  for (; budget > 0 && !active.empty(); budget -= kTurn) {
    QpImpl* qp = active.pop_front();
    qp->waiting = Waiting::no;
    serve(*qp, kTurn);
  }
}

void Vf::Impl::block_on(QpImpl& qp, PathState& path) {
  qp.waiting = Waiting::blocked;
  qp.waits_for = &path;
  path.blocked.push_back(qp);
  if (!path.in_blocked_list) {
    path.in_blocked_list = true;
    blocked_paths.push_back(&path);
  }
}

void Vf::Impl::stop_waiting(QpImpl& qp) {
  if (qp.waiting == Waiting::active) active.remove(qp);
  if (qp.waiting == Waiting::blocked) qp.waits_for->blocked.remove(qp);
  qp.waiting = Waiting::no;
}

// Paths with room again: their queue pairs go on, in the order in which they came to wait.
void Vf::Impl::retry_blocked() {
  for (std::size_t i = 0; i < blocked_paths.size();) {
    PathState& p = *blocked_paths[i];
    if (QpImpl* first = p.blocked.front(); first != nullptr && !fabric->has_room(*p.path, first->frame_room)) {
      ++i;
      continue;
    }
    while (QpImpl* qp = p.blocked.pop_front()) {
      qp->waiting = Waiting::active;
      active.push_back(*qp);
    }
    p.in_blocked_list = false;
    blocked_paths[i] = blocked_paths.back();
    blocked_paths.pop_back();
  }
}

}  // namespace softrnic::nic
