#include "tests/sim/cm_world.h"

namespace softrnic::sim {

namespace {

using namespace softrnic::cm;

constexpr Nanos kMs = 1'000'000;
constexpr std::uint64_t kService = 0x0106'0007;
constexpr std::uint8_t kPacketLife = 12;    // 16.8 ms: more than any packet lives here
constexpr std::uint8_t kResponseTime = 13;  // 33.6 ms
constexpr std::uint8_t kRetries = 15;
constexpr std::uint32_t kQpns = 16;  // a host; so few that they are used again soon
constexpr std::uint32_t kAttempts = 250;
constexpr Nanos kBusy = 4'000 * kMs;  // connections are asked for until then
// REQ, REP and DREQ one after another, each with all its retransmissions, and what programs take in between.
constexpr Nanos kSettled = 6'000 * kMs;

}  // namespace

CmWorld::CmWorld(std::uint64_t seed) : rng_(seed * 0x9E37'79B9u + 5) {
  const auto some = [this](std::uint32_t max) { return rng_.below(3) == 0 ? 0 : rng_.below(max); };
  faults_.drop = some(200);
  faults_.duplicate = some(200);
  faults_.delay = rng_.between(10'000, 3'000'000);
  faults_.jitter = some(12'000'000);
  if (rng_.below(4) == 0) {
    faults_.blackout_from = rng_.below(static_cast<std::uint32_t>(kBusy));
    faults_.blackout_to = faults_.blackout_from + rng_.below(3'000'000'000);
  }
  hosts_.resize(3);
  for (std::size_t h = 0; h < hosts_.size(); ++h) {
    Host& host = hosts_[h];
    host.gid.raw[15] = static_cast<std::uint8_t>(h + 1);
    AgentOptions o;
    o.ca_guid = 0xAA00 + h;
    o.seed = seed * 7 + h;
    o.sidr_linger = 500 * kMs;
    host.agent = std::make_unique<Agent>(o);
    for (std::uint32_t q = 0; q < kQpns; ++q) {
      host.free_qpns.push_back(static_cast<std::uint32_t>(0x1000 * (h + 1)) + q);
    }
    CommId listener;
    require(host.agent->listen(kService, 0, &listener) == Result::ok, "listen");
  }
}

void CmWorld::run() {
  for (std::uint32_t i = 0; i < kAttempts; ++i) {
    const std::size_t h = rng_.below(static_cast<std::uint32_t>(hosts_.size()));
    at(rng_.below(static_cast<std::uint32_t>(kBusy)), [this, h] { connect(h); });
    if (i % 5 == 0) at(rng_.below(static_cast<std::uint32_t>(kBusy)), [this, h] { resolve(h); });
  }
  if (rng_.below(2) == 0) {
    const std::size_t h = rng_.below(static_cast<std::uint32_t>(hosts_.size()));
    at(kBusy / 2, [this, h] { die(h); });
  }
  for (Nanos t = 10 * kMs; t < kBusy + 3 * kSettled; t += 10 * kMs) at(t, [this] { reclaim(); });

  run_until(kBusy);
  hold_ = true;
  run_until(kBusy + kSettled);
  check_agreement();
  hold_ = false;
  for (std::size_t h = 0; h < hosts_.size(); ++h) {
    std::vector<CommId> all;
    for (const auto& [id, i] : hosts_[h].ids) all.push_back(id);
    for (const CommId id : all) end(h, id, hosts_[h].ids.at(id));
  }
  run_until(kBusy + 3 * kSettled);
  for (const Host& host : hosts_) {
    require(host.ids.empty(), "an ID never came to its end");
    require(host.agent->size() == 0, "the agent kept something");
    require(host.agent->next_timeout() == kNever, "a timer was left");
    require(host.free_qpns.size() == kQpns, "a queue pair number was not given back");
  }
}

// ---- time and network ----------------------------------------------------------------------------------------------

void CmWorld::at(Nanos when, std::function<void()> what) { items_.push({when, order_++, std::move(what)}); }

void CmWorld::run_until(Nanos end) {
  while (!items_.empty() && items_.top().time <= end) {
    const Item item = items_.top();
    items_.pop();
    now_ = std::max(now_, item.time);
    item.what();
  }
  now_ = end;
}

void CmWorld::flush(std::size_t h) {
  Host& host = hosts_[h];
  mad::OutMad m;
  while (host.agent->poll_transmit(now_, &m)) send(h, m);
  cm::Event e;
  while (host.agent->poll_event(&e)) on_event(h, e);
  const Nanos due = host.agent->next_timeout();
  if (due >= host.wake) return;
  host.wake = due;
  at(due, [this, h, due] {
    Host& woken = hosts_[h];
    if (woken.wake == due) woken.wake = kNever;
    woken.agent->on_timeout(now_);
    flush(h);
  });
}

void CmWorld::send(std::size_t from, const mad::OutMad& m) {
  std::size_t to = 0;
  while (hosts_[to].gid != m.route.remote_gid) ++to;
  const bool dark = from + to == 1 && now_ >= faults_.blackout_from && now_ < faults_.blackout_to;
  const int copies = dark || (from != to && rng_.permille(faults_.drop)) ? 0 : rng_.permille(faults_.duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    const Nanos delay =
        faults_.delay + (faults_.jitter == 0 ? 0 : rng_.below(static_cast<std::uint32_t>(faults_.jitter)));
    at(now_ + delay, [this, to, m] {
      hosts_[to].agent->on_mad(now_, m.route.reversed(), m.data);
      flush(to);
    });
  }
}

mad::MadRoute CmWorld::route(const Host& from, const Host& to) const {
  mad::MadRoute r;
  r.local_gid = from.gid;
  r.remote_gid = to.gid;
  return r;
}

// ---- programs ------------------------------------------------------------------------------------------------------

void CmWorld::act(Nanos most, std::size_t h, CommId id, std::function<void(Id&)> what) {
  later(most, [this, h, id, what] {
    const auto it = hosts_[h].ids.find(id);
    if (it == hosts_[h].ids.end()) return;
    what(it->second);
    flush(h);
  });
}

std::uint32_t CmWorld::take_qpn(Host& h) {
  if (h.free_qpns.empty()) return 0;
  const std::uint32_t q = h.free_qpns.front();
  h.free_qpns.pop_front();
  return q;
}

void CmWorld::connect(std::size_t h) {
  Host& host = hosts_[h];
  const std::uint32_t qpn = take_qpn(host);
  if (qpn == 0) return;
  const Host& peer = hosts_[rng_.below(static_cast<std::uint32_t>(hosts_.size()))];
  ReqParams p;
  p.service_id = kService + (rng_.below(20) == 0 ? 1 : 0);
  p.qpn = qpn;
  p.starting_psn = rng_.below(1 << 24);
  p.remote_cm_response_timeout = p.local_cm_response_timeout = kResponseTime;
  p.max_cm_retries = kRetries;
  p.path_mtu = 3;
  p.route = route(host, peer);
  p.path.local_gid = host.gid;
  p.path.remote_gid = peer.gid;
  p.path.packet_life_time = kPacketLife;
  CommId id;
  require(host.agent->connect(now_, p, &id) == Result::ok, "connect");
  host.ids[id] = {Phase::asking, qpn};
  ++tally_.connects;
  if (rng_.below(12) == 0) {  // some lose patience
    act(100 * kMs, h, id, [this, h, id](Id&) { give_back(h, id); });
  }
  flush(h);
}

void CmWorld::resolve(std::size_t h) {
  Host& host = hosts_[h];
  SidrReqParams p;
  p.service_id = kService + (rng_.below(4) == 0 ? 1 : 0);
  p.timeout = 60 * kMs;
  p.max_cm_retries = kRetries;
  p.route = route(host, hosts_[rng_.below(static_cast<std::uint32_t>(hosts_.size()))]);
  CommId id;
  require(host.agent->sidr_request(now_, p, &id) == Result::ok, "sidr_request");
  host.ids[id] = {Phase::resolving, 0};
  flush(h);
}

void CmWorld::on_request(std::size_t h, CommId id) {
  const std::uint32_t choice = rng_.below(100);
  if (choice < 5) {  // too busy
    require(hosts_[h].agent->drop(id) == Result::ok, "drop");
    hosts_[h].ids.erase(id);
    return;
  }
  act(80 * kMs, h, id, [this, h, id, choice](Id& i) {
    Agent& agent = *hosts_[h].agent;
    if (i.phase != Phase::asked || choice < 12) return give_back(h, id);
    if (choice < 22) {
      require(agent.reject(now_, id, RejReason::consumer_defined) == Result::ok, "reject");
      i.phase = Phase::over;
      return act(50 * kMs, h, id, [this, h, id](Id&) { give_back(h, id); });
    }
    if (choice < 40) {
      require(agent.mra(now_, id, 14, {}, choice < 30) == Result::ok, "mra");
      return act(150 * kMs, h, id, [this, h, id](Id& later_i) { accept(h, id, later_i); });
    }
    accept(h, id, i);
  });
}

void CmWorld::accept(std::size_t h, CommId id, Id& i) {
  if (i.phase != Phase::asked) return give_back(h, id);
  i.qpn = take_qpn(hosts_[h]);
  if (i.qpn == 0) return give_back(h, id);
  RepParams p;
  p.qpn = i.qpn;
  p.starting_psn = rng_.below(1 << 24);
  require(hosts_[h].agent->accept(now_, id, p) == Result::ok, "accept");
  i.phase = Phase::accepting;
  if (rng_.below(15) == 0) act(60 * kMs, h, id, [this, h, id](Id&) { give_back(h, id); });
}

void CmWorld::on_reply(std::size_t h, CommId id) {
  const std::uint32_t choice = rng_.below(100);
  Agent& agent = *hosts_[h].agent;
  if (choice < 30) require(agent.mra(now_, id, 14, {}, choice < 15) == Result::ok, "mra");
  act(100 * kMs, h, id, [this, h, id, choice](Id& i) {
    if (i.phase != Phase::answered || choice % 10 == 0) return give_back(h, id);
    require(hosts_[h].agent->ready(now_, id) == Result::ok, "ready");
    live(h, id);
  });
}

void CmWorld::live(std::size_t h, CommId id) {
  hosts_[h].ids.at(id).phase = Phase::established;
  act(600 * kMs, h, id, [this, h, id](Id& i) {
    if (!hold_ && i.phase == Phase::established) end(h, id, i);
  });
}

void CmWorld::end(std::size_t h, CommId id, Id& i) {
  if (i.phase != Phase::established || rng_.below(3) == 0) {
    give_back(h, id);
  } else {
    require(hosts_[h].agent->disconnect(now_, id) == Result::ok, "disconnect");
    i.phase = Phase::closing;
  }
  flush(h);
}

void CmWorld::give_back(std::size_t h, CommId id) {
  Host& host = hosts_[h];
  const std::uint32_t qpn = host.ids.at(id).qpn;
  host.ids.erase(id);
  host.agent->destroy(now_, id);
  if (qpn != 0) host.retired.emplace_back(id, qpn);
}

// A program dies, with all its IDs.
void CmWorld::die(std::size_t h) {
  while (!hosts_[h].ids.empty()) give_back(h, hosts_[h].ids.begin()->first);
  flush(h);
}

// A queue pair number is free when its connection is over, time-wait included.
void CmWorld::reclaim() {
  for (Host& host : hosts_) {
    std::erase_if(host.retired, [&](const auto& r) {
      if (host.agent->state(r.first) != State::idle) return false;
      host.free_qpns.push_back(r.second);
      return true;
    });
  }
}

// ---- what must hold ------------------------------------------------------------------------------------------------

void CmWorld::on_event(std::size_t h, const cm::Event& e) {
  Host& host = hosts_[h];
  if (e.kind == EventKind::req_received || e.kind == EventKind::sidr_req_received) {
    const bool sidr = e.kind == EventKind::sidr_req_received;
    require(host.ids.emplace(e.id, Id{sidr ? Phase::resolve_asked : Phase::asked}).second, "an ID was used twice");
    if (!sidr) return on_request(h, e.id);
    return act(100 * kMs, h, e.id, [this, h, id = e.id](Id&) {
      SidrRepParams p;
      p.qpn = 77;
      require(hosts_[h].agent->sidr_reply(now_, id, p) == Result::ok, "sidr_reply");
      give_back(h, id);
    });
  }
  const auto it = host.ids.find(e.id);
  require(it != host.ids.end(), "an event of an ID that was given back");
  Id& i = it->second;
  const Phase was = i.phase;
  const auto over = [&] {
    i.phase = Phase::over;
    act(50 * kMs, h, e.id, [this, h, id = e.id](Id& now_over) {
      // Some wait for the end of time-wait, others do not care.
      if (hosts_[h].agent->state(id) == State::idle || rng_.below(2) == 0 || now_over.timewait_over) give_back(h, id);
    });
  };
  switch (e.kind) {
    case EventKind::rep_received:
      require(was == Phase::asking, "a second answer to a REQ");
      i.phase = Phase::answered;
      return on_reply(h, e.id);
    case EventKind::req_error:
      require(was == Phase::asking, "a second outcome of a REQ");
      ++tally_.timed_out;
      return over();
    case EventKind::rej_received:
      require(was == Phase::asking || was == Phase::asked || was == Phase::answered || was == Phase::accepting ||
                  was == Phase::established,
              "a REJ of what was over");
      require(e.reason != RejReason::stale_connection || faults_.blackout_to != 0, "a stale connection that was none");
      ++tally_.refused;
      return over();
    case EventKind::rtu_received:
    case EventKind::user_established:
      require(was == Phase::accepting, "a second outcome of a REP");
      ++tally_.established;
      return live(h, e.id);
    case EventKind::rep_error:
      require(was == Phase::accepting, "a second outcome of a REP");
      ++tally_.timed_out;
      return over();
    case EventKind::mra_received:
      require((was == Phase::asking || was == Phase::accepting) && !i.mra_seen, "an MRA for nothing");
      i.mra_seen = true;
      return;
    case EventKind::dreq_received:
      require(was == Phase::accepting || was == Phase::established, "a DREQ of what was over");
      i.phase = Phase::peer_closing;
      return act(80 * kMs, h, e.id, [this, h, id = e.id](Id& closing) {
        if (rng_.below(3) == 0) return give_back(h, id);
        require(hosts_[h].agent->confirm_disconnect(now_, id) == Result::ok, "confirm_disconnect");
        closing.phase = Phase::over;
      });
    case EventKind::drep_received:
    case EventKind::dreq_error:
      require(was == Phase::closing || (was == Phase::established && faults_.blackout_to != 0),
              "an end of what was not being ended");
      ++tally_.disconnected;
      return over();
    case EventKind::timewait_exit:
      require(was == Phase::over && !std::exchange(i.timewait_over, true), "time-wait of what was not over");
      return act(20 * kMs, h, e.id, [this, h, id = e.id](Id&) { give_back(h, id); });
    case EventKind::sidr_rep_received:
    case EventKind::sidr_req_error:
      require(was == Phase::resolving, "a second outcome of a SIDR_REQ");
      if (e.kind == EventKind::sidr_rep_received) ++tally_.resolved;
      return give_back(h, e.id);
    default:
      require(false, "an event that does not exist");
  }
}

// Nobody has done anything for a long time: every connection is established on both sides, or on none.
void CmWorld::check_agreement() {
  for (const Host& host : hosts_) {
    for (const auto& [id, i] : host.ids) {
      require(i.phase == Phase::established, "a connection that is neither established nor over");
      require(host.agent->state(id) == State::established, "program and agent disagree");
      if (faults_.blackout_to != 0) continue;  // one side may have given up long ago
      const CommId remote = host.agent->remote_id(id);
      const Host* peer = nullptr;
      for (const Host& other : hosts_) {
        const auto it = other.ids.find(remote);
        if (it != other.ids.end() && it->second.qpn == host.agent->remote_qpn(id)) peer = &other;
      }
      require(peer != nullptr, "established on one side only");
      require(peer->ids.at(remote).phase == Phase::established, "established on one side only");
      require(peer->agent->remote_id(remote) == id, "the two sides mean different connections");
      require(peer->agent->remote_qpn(remote) == i.qpn, "the two sides mean different queue pairs");
      ++tally_.agreed;
    }
  }
}

}  // namespace softrnic::sim
