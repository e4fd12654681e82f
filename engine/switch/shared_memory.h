// Memory that the NIC process shares with applications: a memfd, mapped here and handed out by descriptor.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/datapath/mapping.h"
#include "engine/switch/unique_fd.h"

namespace softrnic::sw {

class SharedMemory {
 public:
  enum class Access {
    read_write,         // whoever has the descriptor may map it writable
    read_only_outside,  // only the mapping made here is writable (F_SEAL_FUTURE_WRITE)
  };

  // A zeroed region of `size` bytes, sealed against shrinking and growing, so that no holder of the
  // descriptor can make another one's access fault. Null with errno set on failure.
  static std::shared_ptr<SharedMemory> create(const char* name, std::size_t size, Access access = Access::read_write);

  int fd() const { return fd_.get(); }
  std::size_t size() const { return mapping_.size(); }
  template <class T>
  T* as(std::size_t offset = 0) const {
    return mapping_.as<T>(offset);
  }

 private:
  UniqueFd fd_;
  dp::Mapping mapping_;
};

}  // namespace softrnic::sw
