// IEEE 802.1Q tag: what follows the EtherType 0x8100.
#pragma once

#include "protocols/common/bytes.h"

namespace softrnic::wire {

// Untagged, where a VLAN id is asked for: no id that a tag can have.
inline constexpr std::uint16_t kNoVlan = 0xFFFF;

// Tag control information and the EtherType of what the tag encloses, as values.
struct VlanTag {
  static constexpr std::uint32_t kSize = 4;
  static constexpr std::uint16_t kIdMask = 0x0FFF;
  std::uint16_t tci = 0;
  std::uint16_t ethertype = 0;

  // PCP[15:13], DEI[12] = 0, VID[11:0].
  static constexpr std::uint16_t make_tci(std::uint8_t priority, std::uint16_t vlan_id) {
    return static_cast<std::uint16_t>((priority & 7) << 13 | (vlan_id & kIdMask));
  }
  // The VLAN that a frame with this tag is in. The id 0 is only a priority (IEEE 802.1Q table 9-2).
  static constexpr std::uint16_t vlan_of(std::uint16_t tci) {
    const std::uint16_t id = tci & kIdMask;
    return id != 0 ? id : kNoVlan;
  }
  // Writes kSize bytes.
  void store(std::uint8_t* p) const {
    store_be16(p, tci);
    store_be16(p + 2, ethertype);
  }
};
static_assert(VlanTag::kSize == sizeof(VlanTag));

// The tag in a frame: kSize bytes from just behind the first EtherType.
class VlanView {
 public:
  explicit VlanView(const std::uint8_t* p) : p_(p) {}
  std::uint16_t tci() const { return load_be16(p_); }
  std::uint16_t ethertype() const { return load_be16(p_ + 2); }

 private:
  const std::uint8_t* p_;
};

}  // namespace softrnic::wire
