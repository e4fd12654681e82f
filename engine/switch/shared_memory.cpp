#include "engine/switch/shared_memory.h"

#include <fcntl.h>

#include <cerrno>

namespace softrnic::sw {

std::shared_ptr<SharedMemory> SharedMemory::create(const char* name, std::size_t size, Access access) {
  auto mem = std::make_shared<SharedMemory>();
  const int fd = dp::make_sealed_memfd(name, size, access == Access::read_write);
  if (fd < 0) {
    errno = -fd;
    return nullptr;
  }
  mem->fd_.reset(fd);
  if (const int error = mem->mapping_.map(fd, size)) {
    errno = error;
    return nullptr;
  }
  if (access == Access::read_only_outside) {
    // A kernel before 5.1 does not know F_SEAL_FUTURE_WRITE; the region is then writable for its users, who can
    // disturb each other's routing but nothing else.
    ::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
    if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) != 0) return nullptr;
  }
  return mem;
}

}  // namespace softrnic::sw
