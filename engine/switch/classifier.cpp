#include "engine/switch/classifier.h"

#include <algorithm>
#include <cstring>

#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::sw {
namespace {

constexpr std::uint32_t kMulticastQpn = 0xFFFFFF;  // IBA 9.2.3
constexpr std::uint32_t kGsiQpn = 1;               // IBA 9.2.3
// Transport in the upper three bits of the opcode (IBA 9.2.1).
constexpr std::uint8_t kTransportMask = 0xE0;
constexpr std::uint8_t kTransportUd = 0x60;

}  // namespace

bool Classifier::set_group_member(const Gid& mgid, std::uint16_t vf, bool member) {
  auto& members = groups_[mgid];
  const bool was = std::erase(members, vf) != 0;
  if (member) members.push_back(vf);
  if (members.empty()) groups_.erase(mgid);
  return was != member;
}

std::vector<Gid> Classifier::forget(std::uint16_t vf) {
  std::vector<Gid> left;
  for (auto it = groups_.begin(); it != groups_.end();) {
    if (std::erase(it->second, vf) != 0) left.push_back(it->first);
    it = it->second.empty() ? groups_.erase(it) : std::next(it);
  }
  return left;
}

// The address that matched moves to the front: senders keep using the same one.
template <class Match>
const OwnGid* Classifier::find_own(const Gid& gid, Match&& match) {
  const auto it = std::find_if(own_.begin(), own_.end(), [&](const OwnGid& o) {
    return std::memcmp(o.gid.raw, gid.raw, sizeof(gid.raw)) == 0 && match(o);
  });
  if (it == own_.end()) return nullptr;
  if (it != own_.begin()) std::iter_swap(own_.begin(), it);
  return &own_.front();
}

const OwnGid* Classifier::find_own(const Gid& gid) {
  return find_own(gid, [](const OwnGid&) { return true; });
}

void Classifier::add_members(const Gid& mgid, std::uint16_t except) {
  if (const auto it = groups_.find(mgid); it != groups_.end())
    std::copy_if(it->second.begin(), it->second.end(), std::back_inserter(destinations_),
                 [except](std::uint16_t vf) { return vf != except; });
}

inline std::optional<int> Classifier::read_own(Bytes frame, roce::RxFrame* rx, Verdict* verdict) {
  if (roce::parse(frame, rx) != roce::FrameError::none) return std::nullopt;
  verdict->kind = Verdict::Kind::bad_source;
  verdict->dgid = rx->dgid;
  const std::uint16_t vlan = rx->vlan();
  verdict->vlan = vlan;
  const OwnGid* from = find_own(rx->sgid, [vlan](const OwnGid& o) { return o.vlan == vlan; });
  if (from == nullptr) return std::nullopt;
  return from->uplink;
}

Verdict Classifier::classify(Bytes frame, std::uint16_t source) {
  destinations_.clear();
  roce::RxFrame rx;
  Verdict verdict;
  const std::optional<int> uplink = read_own(frame, &rx, &verdict);
  if (!uplink) return verdict;

  const wire::BthView bth(rx.transport.data());
  if ((bth.opcode() & kTransportMask) == kTransportUd) {
    if (rx.transport.size() < wire::kBthSize + wire::Deth::kSize) {
      verdict.kind = Verdict::Kind::malformed;
      return verdict;
    }
    const auto deth = wire::Deth::read(rx.transport.data() + wire::kBthSize);
    if (owner_of(deth.src_qpn) != source) return verdict;
  }
  verdict.kind = Verdict::Kind::forward;
  const std::uint32_t qpn = bth.dest_qpn();
  if (qpn == kMulticastQpn) {
    add_members(rx.dgid, source);
    verdict.uplink = *uplink;
  } else if (*uplink != kNoUplink && find_own(rx.dgid) == nullptr) {
    verdict.uplink = *uplink;
  } else if (const std::uint16_t owner = owner_of(qpn); owner != dp::kNoVf) {
    destinations_.push_back(owner);
  }
  verdict.destinations = destinations_;
  return verdict;
}

// Towards other queue pairs than 1 the NIC sends only to networks: no VF has asked for it.
Verdict Classifier::classify_own(Bytes frame) {
  destinations_.clear();
  roce::RxFrame rx;
  Verdict verdict;
  const std::optional<int> uplink = read_own(frame, &rx, &verdict);
  if (!uplink) return verdict;
  verdict.kind = Verdict::Kind::forward;
  if (find_own(rx.dgid) == nullptr) {
    verdict.uplink = *uplink;
  } else {
    verdict.gsi = wire::BthView(rx.transport.data()).dest_qpn() == kGsiQpn;
  }
  return verdict;
}

Verdict Classifier::classify_from(Bytes frame, int uplink) {
  destinations_.clear();
  roce::RxFrame rx;
  Verdict verdict;
  if (roce::parse(frame, &rx) != roce::FrameError::none) return verdict;
  verdict.kind = Verdict::Kind::bad_source;
  if (find_own(rx.sgid) != nullptr) return verdict;
  verdict.kind = Verdict::Kind::forward;
  const std::uint32_t qpn = wire::BthView(rx.transport.data()).dest_qpn();
  if (qpn == kMulticastQpn) {
    add_members(rx.dgid, dp::kNoVf);
  } else {
    const auto here = [uplink, vlan = rx.vlan()](const OwnGid& o) { return o.uplink == uplink && o.vlan == vlan; };
    const bool ours = find_own(rx.dgid, here) != nullptr;
    verdict.gsi = ours && qpn == kGsiQpn;
    const std::uint16_t owner = ours ? owner_of(qpn) : dp::kNoVf;
    if (owner != dp::kNoVf) destinations_.push_back(owner);
  }
  verdict.destinations = destinations_;
  return verdict;
}

}  // namespace softrnic::sw
