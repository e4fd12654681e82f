// Management datagrams as frames on the devices' links: what the general services interface (QP 1) of the NIC sends and
// receives.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/control/wire.h"
#include "protocols/mad/mad.h"

namespace softrnic::rdmacm {

// MadRoute::context here: a GID table entry.
inline std::uint64_t context_of(std::uint32_t device, std::uint32_t gid_index) {
  return std::uint64_t{device} << 32 | gid_index;
}
inline std::uint32_t device_of(std::uint64_t context) { return static_cast<std::uint32_t>(context >> 32); }
inline std::uint32_t gid_index_of(std::uint64_t context) { return static_cast<std::uint32_t>(context); }

struct GidTable {
  const std::vector<control::DeviceRecord>& devices;
  const std::vector<control::GidRecord>& gids;
  // Null when there is no such entry, or it is empty.
  const control::GidRecord* find(std::uint32_t device, std::uint32_t index) const;
  // An entry with this GID of a RoCE version (1: v2) in a VLAN (0xFFFF: none). Null when nobody has it.
  const control::GidRecord* find(const Gid& gid, std::uint8_t type, std::uint16_t vlan) const;
  // The same in any VLAN.
  const control::GidRecord* find(const Gid& gid, std::uint8_t type) const;
};

// The frame of a MAD to send. False when its route names no address of this NIC.
bool build_mad_frame(const GidTable& table, const mad::OutMad& mad, std::vector<std::uint8_t>* frame);
// Takes a frame for QP 1 apart; `*mad` points into it. False when it is no MAD for an address of this NIC: bad ICRC or
// Q_Key, another length (IBA 13.5.3.1).
bool parse_mad_frame(const GidTable& table, Bytes frame, mad::MadRoute* route, Bytes* mad);

}  // namespace softrnic::rdmacm
