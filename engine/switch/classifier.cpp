#include "engine/switch/classifier.h"

#include <algorithm>
#include <cstring>

#include "protocols/roce/framing.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::sw {
namespace {

constexpr std::uint32_t kMulticastQpn = 0xFFFFFF;  // IBA 9.2.3
// Transport in the upper three bits of the opcode (IBA 9.2.1).
constexpr std::uint8_t kTransportMask = 0xE0;
constexpr std::uint8_t kTransportUd = 0x60;

}  // namespace

bool Classifier::GidLess::operator()(const Gid& a, const Gid& b) const {
  return std::memcmp(a.raw, b.raw, sizeof(a.raw)) < 0;
}

void Classifier::set_group_member(const Gid& mgid, std::uint16_t vf, bool member) {
  auto& members = groups_[mgid];
  std::erase(members, vf);
  if (member) members.push_back(vf);
  if (members.empty()) groups_.erase(mgid);
}

void Classifier::forget(std::uint16_t vf) {
  for (auto it = groups_.begin(); it != groups_.end();) {
    std::erase(it->second, vf);
    it = it->second.empty() ? groups_.erase(it) : std::next(it);
  }
}

// The address that matched moves to the front: senders keep using the same one.
bool Classifier::is_own(const Gid& gid) {
  const auto it = std::find(own_.begin(), own_.end(), gid);
  if (it == own_.end()) return false;
  std::iter_swap(own_.begin(), it);
  return true;
}

Verdict Classifier::classify(Bytes frame, std::uint16_t source) {
  destinations_.clear();
  roce::RxFrame rx;
  if (roce::parse(frame, &rx) != roce::FrameError::none) return {Verdict::Kind::malformed, {}};
  if (!is_own(rx.sgid)) return {Verdict::Kind::bad_source, {}};

  const wire::BthView bth(rx.transport.data());
  if ((bth.opcode() & kTransportMask) == kTransportUd) {
    if (rx.transport.size() < wire::kBthSize + wire::Deth::kSize) return {Verdict::Kind::malformed, {}};
    const auto deth = wire::Deth::read(rx.transport.data() + wire::kBthSize);
    if (owner_of(deth.src_qpn) != source) return {Verdict::Kind::bad_source, {}};
  }
  const std::uint32_t qpn = bth.dest_qpn();
  if (qpn == kMulticastQpn) {
    if (const auto it = groups_.find(rx.dgid); it != groups_.end())
      std::copy_if(it->second.begin(), it->second.end(), std::back_inserter(destinations_),
                   [source](std::uint16_t vf) { return vf != source; });
  } else if (const std::uint16_t owner = owner_of(qpn); owner != dp::kNoVf) {
    destinations_.push_back(owner);
  }
  return {Verdict::Kind::forward, destinations_};
}

}  // namespace softrnic::sw
