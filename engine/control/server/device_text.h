// Identifiers of devices as people and programs read them.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "engine/control/wire.h"

namespace softrnic::control {

// A GUID as sysfs has it, in four groups. `guid` is in network byte order.
inline std::string guid_text(std::uint64_t guid) {
  std::uint8_t b[8];
  std::memcpy(b, &guid, sizeof(b));
  return fmt::format("{:02x}{:02x}:{:02x}{:02x}:{:02x}{:02x}:{:02x}{:02x}", b[0], b[1], b[2], b[3], b[4], b[5], b[6],
                     b[7]);
}

inline std::string mac_text(const DeviceRecord& d) { return fmt::format("{:02x}", fmt::join(d.mac, ":")); }

}  // namespace softrnic::control
