#include "protocols/neigh/neighbour_cache.h"

#include <algorithm>

namespace softrnic::neigh {

using State = NeighbourState;

NeighbourCache::NeighbourCache(const NeighbourTiming& timing, std::uint64_t seed)
    : timing_(timing), random_(seed | 1) {}

// Between half and one and a half of the base time (RFC 4861 s6.3.2).
Nanos NeighbourCache::reachable_time() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return timing_.base_reachable / 2 + random_ % (timing_.base_reachable + 1);
}

void NeighbourCache::arm(Entry& e, Nanos at) {
  e.deadline = at;
  next_ = std::min(next_, at);
}

// The end of the reachable time needs no timer: it matters only when the entry is used or shown.
void NeighbourCache::settle(Nanos now, Entry& e) {
  if (e.state == State::reachable && now >= e.deadline) e.state = State::stale;
}

NeighbourCache::Entry* NeighbourCache::create(Nanos now, const NeighbourKey& key) {
  if (entries_.size() >= kMaxEntries) {
    // An address scan must not push out neighbours that are in use: room is made by old and by failed entries only.
    auto victim = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      const Entry& e = it->second;
      const bool old = e.state != State::incomplete && now - std::min(now, e.used) >= timing_.unused_age;
      if (!old && e.state != State::failed) continue;
      if (victim == entries_.end() || e.used < victim->second.used) victim = it;
    }
    if (victim == entries_.end()) return nullptr;
    entries_.erase(victim);
  }
  Entry& e = entries_[key];
  e.used = now;
  return &e;
}

void NeighbourCache::solicit(Nanos now, const NeighbourKey& key, Entry& e, bool unicast) {
  ++e.tries;
  solicits_.push_back({key, unicast, e.mac});
  arm(e, now + timing_.retransmit);
}

NeighbourCache::Result NeighbourCache::use(Nanos now, const NeighbourKey& key, Mac* mac) {
  auto it = entries_.find(key);
  if (it == entries_.end()) {
    Entry* e = create(now, key);
    if (e == nullptr) return Result::failed;
    solicit(now, key, *e, false);
    return Result::pending;
  }
  Entry& e = it->second;
  e.used = now;
  settle(now, e);
  switch (e.state) {
    case State::incomplete:
      return Result::pending;
    case State::failed:
      if (now < e.deadline) return Result::failed;
      e.state = State::incomplete;
      e.tries = 0;
      solicit(now, key, e, false);
      return Result::pending;
    case State::stale:  // RFC 4861 s7.3.3: the first frame sent starts the delay
      e.state = State::delay;
      arm(e, now + timing_.delay_first_probe);
      break;
    default:
      break;
  }
  *mac = e.mac;
  return Result::ready;
}

bool NeighbourCache::hold(const NeighbourKey& key, Bytes frame) {
  const auto it = entries_.find(key);
  if (it == entries_.end() || it->second.state != State::incomplete) return false;
  auto& pending = it->second.pending;
  if (pending.size() >= kMaxPending) {
    pending.pop_front();
    ++dropped_;
  }
  pending.emplace_back(frame.begin(), frame.end());
  return true;
}

void NeighbourCache::resolved(Nanos now, Entry& e, const Mac& mac, State state) {
  e.mac = mac;
  e.state = state;
  e.tries = 0;
  e.deadline = state == State::reachable ? now + reachable_time() : kNever;
  for (auto& frame : e.pending) ready_.push_back({std::move(frame), mac});
  e.pending.clear();
}

void NeighbourCache::on_advertisement(Nanos now, const NeighbourKey& key, const Mac& mac, bool solicited,
                                      bool replace) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  Entry& e = it->second;
  settle(now, e);
  if (e.state == State::incomplete || e.state == State::failed) {
    resolved(now, e, mac, solicited ? State::reachable : State::stale);
    return;
  }
  const bool differs = e.mac != mac;
  if (differs && !replace) {
    if (e.state == State::reachable) {
      e.state = State::stale;
      e.deadline = kNever;
    }
    return;
  }
  if (solicited) {
    resolved(now, e, mac, State::reachable);
  } else if (differs) {
    resolved(now, e, mac, State::stale);
  }
}

void NeighbourCache::on_source(Nanos now, const NeighbourKey& key, const Mac& mac, bool create_entry) {
  const auto it = entries_.find(key);
  Entry* e = it != entries_.end() ? &it->second : nullptr;
  if (e == nullptr) {
    if (!create_entry || (e = create(now, key)) == nullptr) return;
  } else if (e->mac == mac && e->state != State::incomplete && e->state != State::failed) {
    return;
  }
  resolved(now, *e, mac, State::stale);
}

void NeighbourCache::forget(const NeighbourKey& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  dropped_ += it->second.pending.size();
  entries_.erase(it);
}

void NeighbourCache::forget_vlan(std::uint16_t vlan) {
  std::erase_if(entries_, [&](const auto& item) {
    if (item.first.vlan != vlan) return false;
    dropped_ += item.second.pending.size();
    return true;
  });
}

void NeighbourCache::give_up(Nanos now, const NeighbourKey& key, Entry& e) {
  e.state = State::failed;
  e.tries = 0;
  e.deadline = now + timing_.failed_hold;
  dropped_ += e.pending.size();
  e.pending.clear();
  failed_.push_back(key);
}

void NeighbourCache::on_timeout(Nanos now) {
  next_ = kNever;
  for (auto& [key, e] : entries_) {
    const bool timed = e.state == State::incomplete || e.state == State::delay || e.state == State::probe;
    if (!timed) continue;
    if (now < e.deadline) {
      next_ = std::min(next_, e.deadline);
    } else if (e.state == State::incomplete) {
      e.tries < timing_.max_multicast_solicit ? solicit(now, key, e, false) : give_up(now, key, e);
    } else if (e.state == State::delay) {
      e.state = State::probe;
      e.tries = 0;
      solicit(now, key, e, true);
    } else {
      e.tries < timing_.max_unicast_solicit ? solicit(now, key, e, true) : give_up(now, key, e);
    }
  }
}

bool NeighbourCache::poll_solicit(Solicit* out) {
  if (solicits_.empty()) return false;
  *out = solicits_.front();
  solicits_.pop_front();
  return true;
}

bool NeighbourCache::poll_ready(Ready* out) {
  if (ready_.empty()) return false;
  *out = std::move(ready_.front());
  ready_.pop_front();
  return true;
}

bool NeighbourCache::poll_failed(NeighbourKey* out) {
  if (failed_.empty()) return false;
  *out = failed_.front();
  failed_.pop_front();
  return true;
}

std::vector<NeighbourCache::Info> NeighbourCache::entries() const {
  std::vector<Info> all;
  for (const auto& [key, e] : entries_) all.push_back({key, e.state, e.mac});
  return all;
}

}  // namespace softrnic::neigh
