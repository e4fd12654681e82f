// Whether application memory can be accessed, asked at registration (as pinning it would tell real hardware).
#pragma once

#include <cstdint>

namespace softrnic::nic {

// Makes the pages of [addr, addr + length) present. 0, or EFAULT when some of it is not mapped, or not writable with
// `write`. `length` is at least 1 and the range does not wrap around.
int probe_memory(std::uint64_t addr, std::uint64_t length, bool write);

}  // namespace softrnic::nic
