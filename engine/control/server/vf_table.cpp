#include "engine/control/server/vf_table.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

namespace softrnic::control {
namespace {

using sw::SharedMemory;

std::shared_ptr<SharedMemory> make_channel(const char* name, std::uint32_t ring_size) {
  auto memory = SharedMemory::create(name, dp::channel_bytes(ring_size));
  if (memory == nullptr) return nullptr;
  memory->as<dp::RingHeader>()->data_size = ring_size;
  memory->as<dp::RingHeader>(dp::ring_bytes(ring_size))->data_size = ring_size;
  return memory;
}

}  // namespace

VfTable::VfTable(const Sizes& sizes, Nanos quarantine) : sizes_(sizes), blocks_(quarantine) {
  for (std::uint16_t id = 1; id <= kMaxVfs; ++id) free_ids_.push_back(id);
}

std::unique_ptr<VfTable> VfTable::create(const Sizes& sizes, Nanos block_quarantine) {
  std::unique_ptr<VfTable> t(new VfTable(sizes, block_quarantine));
  t->table_memory_ =
      SharedMemory::create("softrnic-blocks", sizeof(dp::BlockTable), SharedMemory::Access::read_only_outside);
  return t->table_memory_ ? std::move(t) : nullptr;
}

Vf* VfTable::attach(pid_t pid, std::string comm, Nanos now, std::uint32_t* first_block, int* error) {
  *error = EUSERS;
  if (free_ids_.empty()) return nullptr;
  auto vf = std::make_unique<Vf>();
  vf->pid = pid;
  vf->comm = std::move(comm);
  vf->inbox = SharedMemory::create("softrnic-inbox", sizeof(dp::Inbox));
  vf->status = SharedMemory::create("softrnic-status", sizeof(dp::StatusPage));
  vf->switch_channel = make_channel("softrnic-switch-channel", sizes_.switch_ring);
  vf->eventfd.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!vf->inbox || !vf->status || !vf->switch_channel || !vf->eventfd) {
    *error = errno;
    return nullptr;
  }
  for (std::uint32_t slot = 1; slot < dp::kInboxSlots; ++slot)
    vf->free_slots.push_back(static_cast<std::uint16_t>(slot));
  vf->id = free_ids_.front();
  *error = allocate_block(*vf, now, first_block);
  if (*error != 0) return nullptr;
  free_ids_.pop_front();
  forget_former_owner(vf->id, *first_block);
  Vf* raw = vf.get();
  vfs_[raw->id] = std::move(vf);
  return raw;
}

// The id belonged to another VF before: its blocks are not this one's.
void VfTable::forget_former_owner(std::uint16_t id, std::uint32_t own_block) {
  for (std::uint32_t block = 0; block < dp::kQpnBlocks; ++block) {
    std::atomic<std::uint16_t>& owner = block_table().owner[block];
    if (block != own_block && owner.load(std::memory_order_relaxed) == id) {
      owner.store(dp::kNoVf, std::memory_order_release);
    }
  }
}

std::vector<std::uint16_t> VfTable::detach(std::uint16_t id, Nanos now) {
  std::vector<std::uint16_t> peers;
  Vf* vf = find(id);
  if (vf == nullptr) return peers;
  // The table goes on naming it: what it sent before it ended is still in rings, and receivers check the source of a
  // datagram against the table. The blocks get a new owner only after the quarantine.
  blocks_.release_all(id, now);
  for (const auto& [peer_id, channel] : vf->channels) {
    peers.push_back(peer_id);
    peer_bytes_ -= channel->memory->size();
    Vf* peer = find(peer_id);
    peer->free_slots.push_back(peer_id == channel->low ? channel->slot_at_low : channel->slot_at_high);
    peer->channels.erase(id);
  }
  vfs_.erase(id);
  free_ids_.push_back(id);
  return peers;
}

Vf* VfTable::find(std::uint16_t id) {
  const auto it = vfs_.find(id);
  return it == vfs_.end() ? nullptr : it->second.get();
}

Vf* VfTable::owner(std::uint32_t block) { return find(blocks_.owner(block)); }

int VfTable::allocate_block(Vf& vf, Nanos now, std::uint32_t* block) {
  if (blocks_.owned_by(vf.id) >= sizes_.max_blocks_per_vf) return ENOSPC;
  const auto got = blocks_.allocate(vf.id, now);
  if (!got) return ENOSPC;
  *block = *got;
  block_table().owner[*got].store(vf.id, std::memory_order_release);
  return 0;
}

int VfTable::release_block(Vf& vf, std::uint32_t block, Nanos now) {
  if (!blocks_.release(vf.id, block, now)) return EINVAL;
  block_table().owner[block].store(dp::kNoVf, std::memory_order_release);
  return 0;
}

// Memory must not grow with the square of the processes at full size: past half the budget each new channel may take
// a sixteenth of what is left.
std::uint32_t VfTable::next_ring_size() const {
  if (peer_bytes_ <= sizes_.peer_budget / 2) return sizes_.peer_ring;
  const std::uint64_t left = sizes_.peer_budget > peer_bytes_ ? sizes_.peer_budget - peer_bytes_ : 0;
  std::uint32_t size = sizes_.peer_ring;
  while (size > sizes_.min_peer_ring && dp::channel_bytes(size) > left / 16) size /= 2;
  return size;
}

std::shared_ptr<PeerChannel> VfTable::connect(Vf& a, Vf& b, bool* created, int* error) {
  *created = false;
  *error = 0;
  if (const auto it = a.channels.find(b.id); it != a.channels.end()) return it->second;
  *error = ENOSPC;
  if (a.free_slots.empty() || b.free_slots.empty()) return nullptr;
  Vf& low = a.id < b.id ? a : b;
  Vf& high = a.id < b.id ? b : a;
  auto channel = std::make_shared<PeerChannel>();
  channel->ring_size = next_ring_size();
  channel->memory = make_channel("softrnic-channel", channel->ring_size);
  if (channel->memory == nullptr) {
    *error = errno;
    return nullptr;
  }
  channel->low = low.id;
  channel->high = high.id;
  channel->slot_at_low = low.free_slots.front();
  channel->slot_at_high = high.free_slots.front();
  low.free_slots.pop_front();
  high.free_slots.pop_front();
  low.channels[high.id] = channel;
  high.channels[low.id] = channel;
  peer_bytes_ += channel->memory->size();
  *created = true;
  *error = 0;
  return channel;
}

}  // namespace softrnic::control
