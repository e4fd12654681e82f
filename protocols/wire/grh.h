// Global Route Header (IBA 8.3): an IPv6 header whose payload is an IBA transport packet.
#pragma once

#include "protocols/wire/ipv6.h"

namespace softrnic::wire {

// NxtHdr of an IBA transport packet (IBA 8.3.4). PayLen counts BTH through ICRC.
inline constexpr std::uint8_t kGrhNextHeaderIba = 0x1B;

using GrhHeader = Ipv6Header;
using GrhView = Ipv6View;
static_assert(GrhHeader::kSize == 40);

}  // namespace softrnic::wire
