#include "engine/nic/memory_table.h"

#include <cerrno>

#include "engine/nic/guarded_copy.h"

namespace softrnic::nic {

namespace {
// Freed indices wait until this many of them have collected, so that a stale key stays invalid for long.
constexpr std::size_t kReuseDelay = 1024;
}  // namespace

MemoryTable::~MemoryTable() {
  for (auto& c : chunks_) delete[] c.load(std::memory_order_relaxed);
}

MemoryTable::Slot* MemoryTable::allocate(std::uint32_t* key) {
  SpinGuard g(lock_);
  std::uint32_t index;
  if (next_ < kIndices && freed_.size() < kReuseDelay) {
    index = next_++;
    auto& chunk = chunks_[index >> kChunkShift];
    if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Slot[kChunk], std::memory_order_release);
  } else if (!freed_.empty()) {
    index = freed_.front();
    freed_.pop_front();
  } else {
    return nullptr;
  }
  Slot* s = slot_at(index);
  ++s->key_part;
  *key = index << 8 | s->key_part;
  return s;
}

int MemoryTable::add_region(MemoryRegion& mr) {
  std::uint32_t key;
  Slot* s = allocate(&key);
  if (s == nullptr) return ENOMEM;
  s->bound = false;
  s->access = mr.access;
  s->pd = mr.pd->handle;
  s->start = mr.iova;
  s->length = mr.length;
  s->host = reinterpret_cast<std::uint8_t*>(mr.addr);
  s->mr = &mr;
  s->kind.store(Kind::region, std::memory_order_release);
  mr.lkey = mr.rkey = key;
  return 0;
}

int MemoryTable::add_window(MemoryWindow& mw) {
  std::uint32_t key;
  Slot* s = allocate(&key);
  if (s == nullptr) return ENOMEM;
  s->bound = false;
  s->pd = mw.pd->handle;
  s->length = 0;
  s->mr = nullptr;
  s->kind.store(mw.type == 1 ? Kind::window1 : Kind::window2, std::memory_order_release);
  mw.rkey = key;
  return 0;
}

void MemoryTable::unbind(Slot& s) {
  if (s.bound) s.mr->windows.fetch_sub(1, std::memory_order_relaxed);
  s.bound = false;
  s.mr = nullptr;
  s.length = 0;
}

void MemoryTable::remove(std::uint32_t key) {
  Slot* s = slot_at(key >> 8);
  if (s->kind.load(std::memory_order_relaxed) != Kind::region) unbind(*s);
  s->kind.store(Kind::none, std::memory_order_release);
  SpinGuard g(lock_);
  freed_.push_back(key >> 8);
}

std::uint32_t MemoryTable::current_rkey(std::uint32_t any_rkey_of_it) const {
  const Slot* s = slot_at(any_rkey_of_it >> 8);
  return s == nullptr ? any_rkey_of_it : (any_rkey_of_it & ~0xFFu) | s->key_part;
}

// IBA 10.6.3.1: bounds, also against wrap-around, then rights.
MemStatus MemoryTable::resolve_in(const Slot& s, std::uint64_t addr, std::uint64_t length, std::uint32_t access,
                                  std::uint8_t** out) {
  const std::uint64_t offset = addr - s.start;
  if (addr < s.start || offset > s.length || length > s.length - offset) return MemStatus::bad_bounds;
  if ((s.access & access) != access) return MemStatus::bad_access;
  *out = s.host + offset;
  return MemStatus::ok;
}

MemStatus MemoryTable::resolve_local(PdHandle pd, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length,
                                     std::uint32_t access, std::uint8_t** out) {
  const Slot* s = find(lkey);
  if (s == nullptr || s->kind.load(std::memory_order_relaxed) != Kind::region || s->pd != pd) return MemStatus::bad_key;
  return resolve_in(*s, addr, length, access, out);
}

MemStatus MemoryTable::resolve_remote(PdHandle pd, std::uint32_t qpn, std::uint32_t rkey, std::uint64_t addr,
                                      std::uint64_t length, std::uint32_t access, std::uint8_t** out) {
  const Slot* s = find(rkey);
  if (s == nullptr || s->pd != pd) return MemStatus::bad_key;
  const Kind kind = s->kind.load(std::memory_order_relaxed);
  if (kind != Kind::region) {
    if (!s->bound) return MemStatus::bad_key;
    if (kind == Kind::window2 && s->qpn != qpn) return MemStatus::bad_key;  // IBA 10.6.7.2.3
  }
  return resolve_in(*s, addr, length, access, out);
}

bool MemoryTable::copy_to_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) {
  return guarded_copy(dst, src, length);
}

bool MemoryTable::copy_from_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) {
  return guarded_copy(dst, src, length);
}

bool MemoryTable::atomic64(std::uint8_t* p, bool compare_swap, std::uint64_t compare, std::uint64_t swap_or_add,
                           std::uint64_t* original) {
  auto* word = reinterpret_cast<std::uint64_t*>(p);
  return compare_swap ? guarded_compare_swap(word, compare, swap_or_add, original)
                      : guarded_fetch_add(word, swap_or_add, original);
}

// Only type 2 windows can be invalidated: a region of ibv_reg_mr is no fast-register region (IBA 10.6.5).
MemStatus MemoryTable::invalidate(PdHandle pd, std::uint32_t qpn, std::uint32_t rkey) {
  Slot* s = find(rkey);
  if (s == nullptr || s->pd != pd) return MemStatus::bad_key;
  if (s->kind.load(std::memory_order_relaxed) != Kind::window2) return MemStatus::bad_access;
  if (!s->bound || s->qpn != qpn) return MemStatus::bad_key;
  unbind(*s);
  return MemStatus::ok;
}

// What the region must be: IBA C10-72, C10-73, C10-74, C10-75.
MemStatus MemoryTable::check_bind_target(const Slot* region, PdHandle pd, const MwBind& bind) {
  if (region == nullptr || region->kind.load(std::memory_order_relaxed) != Kind::region || region->pd != pd) {
    return MemStatus::bad_key;
  }
  if ((region->access & kAccessMwBind) == 0 || (region->access & kAccessZeroBased) != 0) return MemStatus::bad_access;
  if ((bind.access & (kAccessRemoteWrite | kAccessRemoteAtomic)) != 0 && (region->access & kAccessLocalWrite) == 0) {
    return MemStatus::bad_access;
  }
  std::uint8_t* unused;
  return resolve_in(*region, bind.addr, bind.length, 0, &unused);
}

MemStatus MemoryTable::bind_mw(PdHandle pd, std::uint32_t qpn, const MwBind& bind) {
  Slot* w = find(bind.mw_rkey);
  if (w == nullptr || w->pd != pd) return MemStatus::bad_key;
  const Kind kind = w->kind.load(std::memory_order_relaxed);
  if (kind == Kind::region || (bind.new_rkey ^ bind.mw_rkey) >> 8 != 0) return MemStatus::bad_key;
  constexpr std::uint32_t kWindowAccess = kAccessRemoteRead | kAccessRemoteWrite | kAccessRemoteAtomic;
  if ((bind.access & ~(kWindowAccess | kAccessZeroBased)) != 0) return MemStatus::bad_access;
  if (kind == Kind::window2) {
    if (w->bound) return MemStatus::bad_access;          // IBA o10-37.2.30: only from the free state
    if (bind.length == 0) return MemStatus::bad_bounds;  // IBA o10-37.2.40
  } else if ((bind.access & kAccessZeroBased) != 0) {
    return MemStatus::bad_access;
  }
  Slot* region = bind.length == 0 ? nullptr : find(bind.mr_lkey);
  if (bind.length != 0) {
    const MemStatus st = check_bind_target(region, pd, bind);
    if (st != MemStatus::ok) return st;
  }
  unbind(*w);
  w->key_part = static_cast<std::uint8_t>(bind.new_rkey);
  if (region == nullptr) return MemStatus::ok;  // a type 1 window is unbound by a length of 0
  w->access = bind.access & kWindowAccess;
  w->start = (bind.access & kAccessZeroBased) != 0 ? 0 : bind.addr;
  w->length = bind.length;
  w->host = region->host + (bind.addr - region->start);
  w->mr = region->mr;
  w->qpn = qpn;
  w->bound = true;
  w->mr->windows.fetch_add(1, std::memory_order_relaxed);
  return MemStatus::ok;
}

}  // namespace softrnic::nic
