// Deals out the 24-bit queue pair number space in blocks of 4096.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/datapath/shm_layout.h"
#include "protocols/common/types.h"

namespace softrnic::control {

class BlockAllocator {
 public:
  // A block that was given back is not dealt out again before `quarantine` has passed: late packets and
  // a peer in its time-wait (IBA 12.9.8.4) still know its numbers.
  explicit BlockAllocator(Nanos quarantine);

  // The block that has been free longest. The first block (QPN 0 and 1 are the management QPs, IBA
  // 3.5.10) and the last (QPN 0xFFFFFF is the multicast QPN, IBA 9.2.3) are never dealt out.
  // Nothing when all are in use or in quarantine.
  std::optional<std::uint32_t> allocate(std::uint16_t vf, Nanos now);
  // Takes a block back; false when `vf` does not own it.
  bool release(std::uint16_t vf, std::uint32_t block, Nanos now);
  // Takes back all blocks of a VF that is gone.
  void release_all(std::uint16_t vf, Nanos now);

  std::uint16_t owner(std::uint32_t block) const { return block < owner_.size() ? owner_[block] : dp::kNoVf; }
  std::uint32_t owned_by(std::uint16_t vf) const;

 private:
  struct Free {
    std::uint32_t block;
    Nanos ready_at;
  };
  Nanos quarantine_;
  std::deque<Free> free_;
  std::vector<std::uint16_t> owner_;
};

}  // namespace softrnic::control
