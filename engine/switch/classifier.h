// Where a frame goes, and whether its sender may have sent it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/datapath/shm_layout.h"
#include "protocols/common/types.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/vlan.h"

namespace softrnic::sw {

inline constexpr int kNoUplink = -1;
using wire::kNoVlan;

// An address of this NIC, and the uplink and VLAN whose network it belongs to.
struct OwnGid {
  Gid gid{};
  int uplink = kNoUplink;
  std::uint16_t vlan = kNoVlan;
};

struct Verdict {
  enum class Kind : std::uint8_t {
    forward,     // to `destinations` and `uplink`; nobody: the destination is unknown
    malformed,   // no valid RoCE frame
    bad_source,  // not an address of this NIC, or a source QPN of somebody else; from an uplink: an address of this NIC
  };
  Kind kind = Kind::malformed;
  std::span<const std::uint16_t> destinations;  // VF ids; valid until the next call
  int uplink = kNoUplink;                       // also out by this one, towards
  Gid dgid{};                                   // this address
  std::uint16_t vlan = kNoVlan;                 // in this VLAN
  bool gsi = false;                             // to queue pair 1, which is the NIC process's own (IBA 13.5.3)
};

class Classifier {
 public:
  explicit Classifier(const dp::BlockTable& blocks) : blocks_(blocks) {}

  void set_addresses(std::vector<OwnGid> own) { own_ = std::move(own); }
  // False when it is so already.
  bool set_group_member(const Gid& mgid, std::uint16_t vf, bool member);
  // The VF is gone: leaves all its groups. Returns them.
  std::vector<Gid> forget(std::uint16_t vf);

  // `frame` came from the VF `source`; it must be in the VLAN of its source address. Where the destination is an
  // address of this NIC, or the source's network has no uplink, it goes to the VF that owns the queue pair; else out by
  // the uplink. Multicast packets (destination QPN 0xFFFFFF, IBA 9.2.3) go to the other members of the group and to the
  // network; a sender's own copy is its own business (IBA 10.5.2.2).
  Verdict classify(Bytes frame, std::uint16_t source);
  // `frame` comes from the NIC itself, from its queue pair 1.
  Verdict classify_own(Bytes frame);
  // `frame` came in by an uplink: for an address of that network and VLAN, or a multicast group.
  Verdict classify_from(Bytes frame, int uplink);

 private:
  std::uint16_t owner_of(std::uint32_t qpn) const {
    return blocks_.owner[qpn >> dp::kQpnBlockShift].load(std::memory_order_acquire);
  }
  template <class Match>
  const OwnGid* find_own(const Gid& gid, Match&& match);
  const OwnGid* find_own(const Gid& gid);
  // Reads a frame of this host into `rx`. The uplink of its source address, which must be one of this NIC in the
  // frame's VLAN; none: `verdict` says why it goes nowhere.
  std::optional<int> read_own(Bytes frame, roce::RxFrame* rx, Verdict* verdict);
  void add_members(const Gid& mgid, std::uint16_t except);

  const dp::BlockTable& blocks_;
  std::vector<OwnGid> own_;
  std::map<Gid, std::vector<std::uint16_t>> groups_;
  std::vector<std::uint16_t> destinations_;  // of the last call
};

}  // namespace softrnic::sw
