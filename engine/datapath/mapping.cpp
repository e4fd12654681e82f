#include "engine/datapath/mapping.h"

#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engine/nic/raw_io.h"
#include "engine/nic/raw_syscall.h"

namespace softrnic::dp {
namespace {

int do_map(int fd, std::size_t size, int prot, int flags, std::uint8_t** out) {
  long p = raw_syscall(SYS_mmap, 0, static_cast<long>(size), prot, flags, fd, 0);
  if (p < 0 && p > -4096) return static_cast<int>(-p);
  *out = reinterpret_cast<std::uint8_t*>(p);
  return 0;
}

}  // namespace

Mapping::Mapping(Mapping&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& o) noexcept {
  if (this != &o) {
    unmap();
    data_ = std::exchange(o.data_, nullptr);
    size_ = std::exchange(o.size_, 0);
  }
  return *this;
}

int Mapping::map(int fd, std::size_t size, bool writable) {
  struct stat st {};
  if (raw_syscall(SYS_fstat, fd, raw_pointer(&st)) != 0) return EBADF;
  if (size == 0 || st.st_size < 0 || static_cast<std::size_t>(st.st_size) < size) return EINVAL;
  long seals = raw_syscall(SYS_fcntl, fd, F_GET_SEALS);
  constexpr long kWanted = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & kWanted) != kWanted) return EINVAL;
  std::uint8_t* p = nullptr;
  int rc = do_map(fd, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, &p);
  if (rc != 0) return rc;
  unmap();
  data_ = p;
  size_ = size;
  return 0;
}

int Mapping::map_private(std::size_t size) {
  std::uint8_t* p = nullptr;
  int rc = do_map(-1, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, &p);
  if (rc != 0) return rc;
  unmap();
  data_ = p;
  size_ = size;
  return 0;
}

void Mapping::unmap() {
  if (data_ != nullptr) raw_syscall(SYS_munmap, raw_pointer(data_), static_cast<long>(size_));
  data_ = nullptr;
  size_ = 0;
}

int make_sealed_memfd(const char* name, std::size_t size, bool final) {
  long fd = raw_syscall(SYS_memfd_create, raw_pointer(name), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return static_cast<int>(fd);
  long rc = raw_syscall(SYS_ftruncate, fd, static_cast<long>(size));
  const long seals = F_SEAL_SHRINK | F_SEAL_GROW | (final ? F_SEAL_SEAL : 0);
  if (rc == 0) rc = raw_syscall(SYS_fcntl, fd, F_ADD_SEALS, seals);
  if (rc < 0) {
    raw_close(static_cast<int>(fd));
    return static_cast<int>(rc);
  }
  return static_cast<int>(fd);
}

}  // namespace softrnic::dp
