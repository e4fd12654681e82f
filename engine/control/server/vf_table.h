// The virtual functions (one a process), their shared memory, the channels between them and their QPN blocks. Knows
// nothing of sockets.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/control/server/block_allocator.h"
#include "engine/datapath/shm_layout.h"
#include "engine/switch/shared_memory.h"
#include "engine/switch/unique_fd.h"

namespace softrnic::control {

// Rings and channel of two VFs.
struct PeerChannel {
  std::shared_ptr<sw::SharedMemory> memory;
  std::uint32_t ring_size = 0;
  std::uint16_t low = 0, high = 0;  // VF ids; `low` produces into ring 0
  std::uint16_t slot_at_low = 0, slot_at_high = 0;
};

struct Vf {
  std::uint16_t id = 0;
  pid_t pid = 0;
  std::string comm;
  std::shared_ptr<sw::SharedMemory> inbox;
  std::shared_ptr<sw::SharedMemory> status;
  std::shared_ptr<sw::SharedMemory> switch_channel;
  sw::UniqueFd eventfd;
  std::map<std::uint16_t, std::shared_ptr<PeerChannel>> channels;  // by the other VF's id
  std::map<std::array<std::uint8_t, 16>, std::uint32_t> groups;    // multicast groups and how often it joined
  std::deque<std::uint16_t> free_slots;                            // of its inbox; slot 0 is the eSwitch's
};

class VfTable {
 public:
  struct Sizes {
    std::uint32_t switch_ring = 1u << 19;  // bytes of each ring to and from the eSwitch
    std::uint32_t peer_ring = 1u << 19;    // bytes of each ring of a direct channel, while there are few
    std::uint32_t min_peer_ring = 1u << 16;
    std::uint64_t peer_budget = 256ull << 20;  // bytes of all direct channels beyond which new ones are small
    std::uint32_t max_blocks_per_vf = 1024;
  };
  static constexpr std::uint16_t kMaxVfs = dp::kInboxSlots - 1;  // a VF's id is its slot at the eSwitch

  // Null when the block table cannot be made; errno tells why.
  static std::unique_ptr<VfTable> create(const Sizes& sizes, Nanos block_quarantine);

  // A new VF with its first QPN block. Null with *error: EUSERS too many VFs, ENOSPC no QPN block, or the errno of
  // making its memory.
  Vf* attach(pid_t pid, std::string comm, Nanos now, std::uint32_t* first_block, int* error);
  // Forgets a VF: its blocks go to quarantine, its channels are taken from its peers. Returns the ids of the peers.
  std::vector<std::uint16_t> detach(std::uint16_t id, Nanos now);

  Vf* find(std::uint16_t id);
  const std::map<std::uint16_t, std::unique_ptr<Vf>>& all() const { return vfs_; }
  // VF that owns a QPN block, null when nobody does.
  Vf* owner(std::uint32_t block);

  // 0, or ENOSPC when no block is ready or the VF has as many as it may.
  int allocate_block(Vf& vf, Nanos now, std::uint32_t* block);
  int release_block(Vf& vf, std::uint32_t block, Nanos now);  // EINVAL: not its block

  // The channel of two different VFs, made on first use. Null with *error.
  std::shared_ptr<PeerChannel> connect(Vf& a, Vf& b, bool* created, int* error);

  const sw::SharedMemory& block_table_memory() const { return *table_memory_; }
  dp::BlockTable& block_table() { return *table_memory_->as<dp::BlockTable>(); }
  const Sizes& sizes() const { return sizes_; }

 private:
  VfTable(const Sizes& sizes, Nanos quarantine);
  std::uint32_t next_ring_size() const;
  void forget_former_owner(std::uint16_t id, std::uint32_t own_block);

  const Sizes sizes_;
  BlockAllocator blocks_;
  std::shared_ptr<sw::SharedMemory> table_memory_;
  std::map<std::uint16_t, std::unique_ptr<Vf>> vfs_;
  std::deque<std::uint16_t> free_ids_;  // FIFO, so that an id comes back as late as possible
  std::uint64_t peer_bytes_ = 0;
};

}  // namespace softrnic::control
