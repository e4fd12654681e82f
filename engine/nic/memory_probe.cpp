#include "engine/nic/memory_probe.h"

#include <cerrno>

#include "engine/nic/guarded_copy.h"
#include "engine/nic/raw_syscall.h"

namespace softrnic::nic {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr long kMadvPopulateRead = 22;  // Linux 5.14
constexpr long kMadvPopulateWrite = 23;

// One access a page: kernels before 5.14, and mappings (device memory) that cannot be populated.
int touch_pages(std::uint64_t first, std::uint64_t last, std::uint64_t addr, bool write) {
  for (std::uint64_t page = first; page <= last; page += kPage) {
    auto* p = reinterpret_cast<std::uint8_t*>(page < addr ? addr : page);
    if (!(write ? guarded_probe_write(p) : guarded_probe_read(p))) return EFAULT;
    if (page == last) break;
  }
  return 0;
}

}  // namespace

int probe_memory(std::uint64_t addr, std::uint64_t length, bool write) {
  const std::uint64_t first = addr & ~(kPage - 1);
  const std::uint64_t last = (addr + length - 1) & ~(kPage - 1);
  for (;;) {
    const long rc = raw_syscall(SYS_madvise, static_cast<long>(first), static_cast<long>(last - first + kPage),
                                write ? kMadvPopulateWrite : kMadvPopulateRead);
    if (rc == 0) return 0;
    if (rc == -EAGAIN || rc == -EINTR) continue;
    if (rc == -EINVAL) return touch_pages(first, last, addr, write);
    return EFAULT;  // ENOMEM: not mapped; EFAULT: a fault failed; EHWPOISON
  }
}

}  // namespace softrnic::nic
