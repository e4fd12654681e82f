// Shared memory that arrived as a descriptor: mapped only when it is as large as promised and sealed against
// shrinking, so that no peer can make an access fault.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softrnic::dp {

class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { unmap(); }
  Mapping(Mapping&& o) noexcept;
  Mapping& operator=(Mapping&& o) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Maps `size` bytes of the memfd. 0 or errno: EINVAL when it is smaller, or not sealed (F_SEAL_SHRINK and
  // F_SEAL_GROW). The caller keeps and closes the descriptor.
  int map(int fd, std::size_t size, bool writable = true);
  // Private zeroed memory.
  int map_private(std::size_t size);
  void unmap();

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <class T>
  T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

// Makes a memfd of `size` zero bytes with both size seals (NIC process, tests); `final`: and no others may be added.
// Descriptor, or -errno.
int make_sealed_memfd(const char* name, std::size_t size, bool final = true);

}  // namespace softrnic::dp
