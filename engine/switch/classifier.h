// Where a frame goes, and whether its sender may have sent it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/datapath/shm_layout.h"
#include "protocols/common/types.h"

namespace softrnic::sw {

struct Verdict {
  enum class Kind : std::uint8_t {
    forward,     // to `destinations`; nobody: the destination is unknown
    malformed,   // no valid RoCE frame
    bad_source,  // not an address of this NIC, or a source QPN of somebody else
  };
  Kind kind = Kind::malformed;
  std::span<const std::uint16_t> destinations;  // VF ids; valid until the next call
};

class Classifier {
 public:
  explicit Classifier(const dp::BlockTable& blocks) : blocks_(blocks) {}

  void set_addresses(std::vector<Gid> own) { own_ = std::move(own); }
  void set_group_member(const Gid& mgid, std::uint16_t vf, bool member);
  // The VF is gone: leaves all groups.
  void forget(std::uint16_t vf);

  // `frame` came from `source`. Multicast packets (destination QPN 0xFFFFFF, IBA 9.2.3) go to the other members of the
  // group; a sender's own copy is its own business (IBA 10.5.2.2).
  Verdict classify(Bytes frame, std::uint16_t source);

 private:
  std::uint16_t owner_of(std::uint32_t qpn) const {
    return blocks_.owner[qpn >> dp::kQpnBlockShift].load(std::memory_order_acquire);
  }
  bool is_own(const Gid& gid);
  struct GidLess {
    bool operator()(const Gid& a, const Gid& b) const;
  };

  const dp::BlockTable& blocks_;
  std::vector<Gid> own_;
  std::map<Gid, std::vector<std::uint16_t>, GidLess> groups_;
  std::vector<std::uint16_t> destinations_;  // of the last call
};

}  // namespace softrnic::sw
