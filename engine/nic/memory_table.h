// The keys of a VF: memory regions and memory windows, found by the upper 24 bits of their key in O(1). The lower 8
// bits are the key part: each use of an index has another one, so that a stale key is noticed (IBA 10.6.3.3).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "engine/nic/nic.h"
#include "engine/nic/spinlock.h"
#include "protocols/common/memory_port.h"

namespace softrnic::nic {

class MemoryTable final : public MemoryPort {
 public:
  MemoryTable() = default;
  ~MemoryTable();

  // Adds a region whose fields but the keys are filled, and fills lkey and rkey. 0, or ENOMEM when all indices are in
  // use. Any thread.
  int add_region(MemoryRegion& mr);
  // Adds a window of type 1 or 2, not bound yet; fills `rkey`.
  int add_window(MemoryWindow& mw);
  // Takes the key out. Under the progress lock: no lookup is under way then. A window that is bound is unbound.
  void remove(std::uint32_t key);

  // A window was bound to other keys by work requests: its R_Key now. Under the progress lock.
  std::uint32_t current_rkey(std::uint32_t any_rkey_of_it) const;

  // --- MemoryPort, under the progress lock ---
  MemStatus resolve_local(PdHandle pd, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length,
                          std::uint32_t access, std::uint8_t** out) override;
  MemStatus resolve_remote(PdHandle pd, std::uint32_t qpn, std::uint32_t rkey, std::uint64_t addr, std::uint64_t length,
                           std::uint32_t access, std::uint8_t** out) override;
  bool copy_to_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) override;
  bool copy_from_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) override;
  bool atomic64(std::uint8_t* p, bool compare_swap, std::uint64_t compare, std::uint64_t swap_or_add,
                std::uint64_t* original) override;
  MemStatus invalidate(PdHandle pd, std::uint32_t qpn, std::uint32_t rkey) override;
  MemStatus bind_mw(PdHandle pd, std::uint32_t qpn, const MwBind& bind) override;

 private:
  enum class Kind : std::uint8_t { none, region, window1, window2 };
  struct alignas(64) Slot {
    std::atomic<Kind> kind{Kind::none};  // stored last with release order by add_*
    std::uint8_t key_part = 0;           // of the present or last use
    bool bound = false;                  // windows
    std::uint32_t access = 0;
    PdHandle pd = 0;
    std::uint32_t qpn = 0;    // type 2 windows: the QP that bound it (2B, IBA 10.6.7.2.3)
    std::uint64_t start = 0;  // first address that the key reaches
    std::uint64_t length = 0;
    std::uint8_t* host = nullptr;  // memory at `start`
    MemoryRegion* mr = nullptr;    // the region, or the one a window is bound to
  };
  static constexpr std::uint32_t kChunkShift = 12;
  static constexpr std::uint32_t kChunk = 1u << kChunkShift;
  static constexpr std::uint32_t kIndices = 1u << 24;

  Slot* slot_at(std::uint32_t index) const {
    Slot* chunk = chunks_[index >> kChunkShift].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &chunk[index & (kChunk - 1)];
  }
  Slot* find(std::uint32_t key) const {
    Slot* s = slot_at(key >> 8);
    if (s == nullptr || s->kind.load(std::memory_order_acquire) == Kind::none) return nullptr;
    return s->key_part == (key & 0xFF) ? s : nullptr;
  }
  Slot* allocate(std::uint32_t* key);
  static MemStatus resolve_in(const Slot& s, std::uint64_t addr, std::uint64_t length, std::uint32_t access,
                              std::uint8_t** out);
  static MemStatus check_bind_target(const Slot* region, PdHandle pd, const MwBind& bind);
  static void unbind(Slot& s);

  std::atomic<Slot*> chunks_[kIndices >> kChunkShift]{};
  SpinLock lock_;           // allocation
  std::uint32_t next_ = 1;  // index 0 stays unused: no key is 0
  std::deque<std::uint32_t> freed_;
};

}  // namespace softrnic::nic
