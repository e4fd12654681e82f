#include "engine/control/server/block_allocator.h"

#include <algorithm>

namespace softrnic::control {

BlockAllocator::BlockAllocator(Nanos quarantine) : quarantine_(quarantine), owner_(dp::kQpnBlocks, dp::kNoVf) {
  for (std::uint32_t block = 1; block + 1 < dp::kQpnBlocks; ++block) free_.push_back({block, 0});
}

std::optional<std::uint32_t> BlockAllocator::allocate(std::uint16_t vf, Nanos now) {
  if (free_.empty() || free_.front().ready_at > now) return std::nullopt;
  const std::uint32_t block = free_.front().block;
  free_.pop_front();
  owner_[block] = vf;
  return block;
}

bool BlockAllocator::release(std::uint16_t vf, std::uint32_t block, Nanos now) {
  if (vf == dp::kNoVf || owner(block) != vf) return false;
  owner_[block] = dp::kNoVf;
  free_.push_back({block, now + quarantine_});
  return true;
}

void BlockAllocator::release_all(std::uint16_t vf, Nanos now) {
  for (std::uint32_t block = 0; block < owner_.size(); ++block)
    if (owner_[block] == vf) release(vf, block, now);
}

std::uint32_t BlockAllocator::owned_by(std::uint16_t vf) const {
  return static_cast<std::uint32_t>(std::count(owner_.begin(), owner_.end(), vf));
}

}  // namespace softrnic::control
