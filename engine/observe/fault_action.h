// What a fault does to the bytes of a packet.
#pragma once

#include <cstdint>
#include <string>

#include "engine/observe/fault_rule.h"

namespace softrnic::observe {

// True when the action can be applied to such a packet: it has the bit, the bytes or the fields.
bool is_applicable(const FaultAction& action, const Packet& p);

// Changes the packet as `action`, which is applicable, says. `random` chooses the bit where the rule leaves that open.
// Says what was done: "bth.psn 5 set to 6".
std::string change_packet(const FaultAction& action, std::uint64_t random, Packet* p);

}  // namespace softrnic::observe
