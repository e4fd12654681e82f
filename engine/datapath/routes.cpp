// Changes of route with their barriers (design rule 5), and the notices of the NIC process.
#include <algorithm>
#include <cstring>

#include "engine/datapath/fabric_impl.h"

namespace softrnic::dp {

using control::MsgType;
using control::RouteMode;

// Paths that control-path threads have opened meanwhile: their channels are polled from now on.
void Fabric::Impl::adopt_new_paths() {
  std::vector<std::pair<Path*, std::unique_ptr<Channel>>> list;
  {
    SpinGuard g(tables);
    has_newcomers.store(false, std::memory_order_relaxed);
    list.swap(newcomers);
  }
  for (auto& [path, channel] : list) {
    Channel& ch = *channel;
    channels.push_back(std::move(channel));
    dirty.reserve(channels.size() + 1);
    if (ch.peer == vf_id) {
      loopback = &ch;
    } else {
      by_slot[ch.my_slot] = &ch;
    }
    path->adopted = true;
    live_paths.push_back(path);
    barriers.reserve(live_paths.size());
    heat(ch);  // the peer may have used the channel already
    if (auto it = early_marks.find(ch.peer); it != early_marks.end()) {
      ack_mark(ch, it->second);
      early_marks.erase(it);
    }
    // Datagrams may have gone to this peer through the eSwitch before.
    path->active = route == RouteMode::via_switch || switch_used ? RouteMode::via_switch : RouteMode::direct;
    if (link.dead()) {
      make_sink(*path);
    } else if (path->active != route) {
      start_barrier(*path);
    }
  }
}

bool Fabric::Impl::apply_notices() {
  std::vector<control::Message> notices = link.take_notices();
  for (control::Message& m : notices) {
    apply_notice(m);
    m.close_fds();
  }
  if (link.dead() && !nic_death_handled) {
    on_nic_death();
    return true;
  }
  return !notices.empty();
}

void Fabric::Impl::apply_notice(control::Message& m) {
  auto type = static_cast<MsgType>(m.header.type);
  if (type == MsgType::peer_added) {
    add_peer(m);
    adopt_new_paths();
  } else if (type == MsgType::peer_gone && m.body.size() == sizeof(control::PeerGone)) {
    control::PeerGone gone;
    std::memcpy(&gone, m.body.data(), sizeof gone);
    peer_gone(gone.vf_id);
  } else if (type == MsgType::route && m.body.size() == sizeof(control::RouteNotice)) {
    control::RouteNotice notice;
    std::memcpy(&notice, m.body.data(), sizeof notice);
    if (notice.mode <= static_cast<std::uint32_t>(RouteMode::via_switch)) {
      set_route(static_cast<RouteMode>(notice.mode), notice.epoch);
    }
  } else if (type == MsgType::gid_change && m.body.size() % sizeof(control::GidRecord) == 0) {
    new_gids.resize(m.body.size() / sizeof(control::GidRecord));
    if (!new_gids.empty()) std::memcpy(new_gids.data(), m.body.data(), m.body.size());
    has_new_gids = true;
  }
}

void Fabric::Impl::set_route(RouteMode mode, std::uint32_t epoch) {
  adopt_new_paths();
  route = mode;
  route_epoch = epoch;
  owes_route_done = true;
  for (Path* p : live_paths) {
    // One with an open barrier goes on from there.
    if (p->barrier == Path::Barrier::none && p->active != route) start_barrier(*p);
  }
  if (barriers.empty()) report_route_done();
}

void Fabric::Impl::start_barrier(Path& p) {
  if (++p.mark == 0) p.mark = 1;
  p.barrier = Path::Barrier::mark_unsent;
  barriers.push_back(&p);
  send_mark(p);
}

void Fabric::Impl::send_mark(Path& p) {
  Channel& ch = p.route(to_switch);
  MarkBody body{p.peer, {}};
  std::uint32_t length = &ch == &to_switch ? sizeof body : 0;
  while (!ch.tx.put_mark(p.mark, &body, length)) {
    if (ch.tx.broken() || !ch.tx.request_space(1)) return;
  }
  p.barrier = Path::Barrier::mark_sent;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (ch.tx.consumer_armed()) ch.ring_peer();
}

// True when the new route is open (and `p` has no barrier any more).
bool Fabric::Impl::barrier_passed(Path& p) {
  if (!p.sink) {
    if (p.route(to_switch).tx.broken()) break_channel(p.route(to_switch));
    if (!p.sink && p.barrier == Path::Barrier::mark_unsent) send_mark(p);
    if (!p.sink && (p.barrier != Path::Barrier::mark_sent || p.direct->tx.acked_mark() != p.mark)) return false;
  }
  p.barrier = Path::Barrier::none;
  if (!p.sink) {
    p.active = p.active == RouteMode::direct ? RouteMode::via_switch : RouteMode::direct;
    ++p.generation;
  }
  return true;
}

void Fabric::Impl::advance_barriers() {
  for (std::size_t i = 0; i < barriers.size();) {
    Path& p = *barriers[i];
    if (!barrier_passed(p)) {
      ++i;
      continue;
    }
    barriers[i] = barriers.back();
    barriers.pop_back();
    if (!p.sink && p.active != route) start_barrier(p);
  }
  if (barriers.empty()) report_route_done();
}

void Fabric::Impl::report_route_done() {
  if (!owes_route_done) return;
  owes_route_done = false;
  status->route_epoch_done.store(route_epoch, std::memory_order_release);
  control::RouteDone done{route_epoch};
  link.notify(MsgType::route_done, &done, sizeof done);
}

void Fabric::Impl::mark_received(Channel& from, const RingConsumer::Entry& e) {
  if (&from != &to_switch) {
    ack_mark(from, e.aux);
    return;
  }
  if (e.length != sizeof(MarkBody)) return;
  MarkBody body;
  std::memcpy(&body, e.data, sizeof body);
  Path* p = known_path(body.vf_id);
  if (p != nullptr && p->adopted && p->direct != nullptr) {
    ack_mark(*p->direct, e.aux);
  } else {
    early_marks[body.vf_id] = e.aux;  // the notice about the channel is still in the control socket
  }
}

void Fabric::Impl::ack_mark(Channel& direct, std::uint16_t number) {
  direct.rx.ack_mark(number);
  direct.ring_peer();
}

void Fabric::Impl::peer_gone(VfId vf) {
  adopt_new_paths();
  early_marks.erase(vf);
  Path* p = nullptr;
  {
    SpinGuard g(tables);
    auto it = path_by_vf.find(vf);
    if (it == path_by_vf.end() || vf == vf_id) return;
    p = it->second;
    path_by_vf.erase(it);
  }
  if (!p->sink) make_sink(*p);
}

// What is sent to `p` from now on is swallowed; what came from there is still taken in.
void Fabric::Impl::make_sink(Path& p) {
  p.sink = true;
  if (p.direct != nullptr && !p.direct->closing) {
    p.direct->closing = true;
    ++closing;
    heat(*p.direct);
  }
  std::erase(live_paths, &p);  // an open barrier ends with the next advance_barriers()
}

// The other side wrote what no honest one writes.
void Fabric::Impl::break_channel(Channel& ch) {
  if (ch.hot) drop_from_hot(ch);
  set_state(ch, false);
  if (&ch == &to_switch) {
    switch_path.sink = true;
    std::vector<Path*> affected = live_paths;
    for (Path* p : affected) {
      if (p->active == RouteMode::via_switch || p->barrier != Path::Barrier::none) make_sink(*p);
    }
    return;
  }
  for (Path* p : live_paths) {
    if (p->direct == &ch) {
      make_sink(*p);
      return;
    }
  }
}

void Fabric::Impl::close_drained_channels() {
  for (std::size_t i = 0; i < channels.size();) {
    Channel& ch = *channels[i];
    if (!ch.closing || ch.rx.pending()) {
      ++i;
      continue;
    }
    if (ch.hot) drop_from_hot(ch);
    if (by_slot[ch.my_slot] == &ch) by_slot[ch.my_slot] = nullptr;
    if (loopback == &ch) loopback = nullptr;
    std::erase(dirty, &ch);
    {
      SpinGuard g(tables);
      for (const auto& p : paths) {
        if (p->direct == &ch) p->direct = nullptr;
      }
    }
    channels[i] = std::move(channels.back());
    channels.pop_back();
    --closing;
  }
}

void Fabric::Impl::on_nic_death() {
  nic_death_handled = true;
  adopt_new_paths();
  switch_path.sink = true;
  std::vector<Path*> affected = live_paths;
  for (Path* p : affected) make_sink(*p);
}

}  // namespace softrnic::dp
