#include "engine/observe/flow_tracker.h"

#include <algorithm>

#include "protocols/common/psn.h"

namespace softrnic::observe {

FlowKey flow_of(const sw::Ingress& from, const Packet& p) { return {from, p.dest_qpn(), p.src_qpn()}; }

std::size_t FlowTracker::Hash::operator()(const FlowKey& k) const {
  std::uint64_t h = std::uint64_t{k.dest_qpn} << 32 | k.src_qpn;
  h ^= (std::uint64_t{k.from.vf} << 8 ^ static_cast<std::uint64_t>(k.from.uplink + 1)) * 0x9E3779B97F4A7C15u;
  h ^= h >> 29;
  return static_cast<std::size_t>(h * 0xBF58476D1CE4E5B9u);
}

FlowTracker::Flow& FlowTracker::flow(const FlowKey& key) {
  const auto [it, is_new] = flows_.try_emplace(key);
  if (is_new) {
    by_age_.push_back(key);
    if (by_age_.size() > kMaxFlows) {
      flows_.erase(by_age_.front());
      by_age_.pop_front();
    }
  }
  return it->second;
}

FlowTracker::Place FlowTracker::observe(const sw::Ingress& from, const Packet& p) {
  Flow& f = flow(flow_of(from, p));
  const std::uint32_t psn = p.psn();
  auto& first = p.info().request ? f.first_request : f.first_response;
  if (!first) first = psn;
  Place place;
  place.first_psn = *first;

  Messages& m = f.kinds[static_cast<std::size_t>(p.info().kind)];
  const bool is_later = !m.seen || psn_diff(psn, m.latest_psn) > 0;
  if (is_later) {
    m.seen = true;
    m.latest_psn = psn;
    if (p.info().first) {
      m.recent.push_back({psn, ++m.count});
      if (m.recent.size() > kMaxMessages) m.recent.pop_front();
    }
  }
  const auto it =
      std::find_if(m.recent.rbegin(), m.recent.rend(), [&](const Message& x) { return psn_diff(psn, x.psn) >= 0; });
  if (it != m.recent.rend()) {
    place.message = it->number;
    place.message_psn = it->psn;
  }
  return place;
}

}  // namespace softrnic::observe
