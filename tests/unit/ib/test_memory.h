// Registered memory for tests: regions with keys, memory windows, and switches that make accesses fail.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "protocols/common/memory_port.h"

namespace softrnic::test {

class TestMemory : public MemoryPort {
 public:
  struct Region {
    std::uint64_t addr = 0;
    std::uint64_t length = 0;
    std::uint32_t access = 0;
    PdHandle pd = 1;
    bool valid = true;
    bool window = false;    // a bound memory window
    std::uint32_t qpn = 0;  // window: only this QP
    bool invalidatable = false;
  };

  // Registers [p, p + length) and returns its key (lkey == rkey).
  std::uint32_t add(const void* p, std::uint64_t length, std::uint32_t access, PdHandle pd = 1) {
    const std::uint32_t key = next_key_;
    next_key_ += 0x100;
    Region r;
    r.addr = reinterpret_cast<std::uint64_t>(p);
    r.length = length;
    r.access = access;
    r.pd = pd;
    regions_[key] = r;
    return key;
  }
  Region& region(std::uint32_t key) { return regions_.at(key); }
  void remove(std::uint32_t key) { regions_.erase(key); }

  MemStatus resolve_local(PdHandle pd, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length,
                          std::uint32_t access, std::uint8_t** out) override {
    ++resolved;
    return resolve(pd, lkey, addr, length, access, out);
  }
  MemStatus resolve_remote(PdHandle pd, std::uint32_t qpn, std::uint32_t rkey, std::uint64_t addr, std::uint64_t length,
                           std::uint32_t access, std::uint8_t** out) override {
    ++resolved;
    auto it = regions_.find(rkey);
    if (it != regions_.end() && it->second.window && it->second.qpn != qpn) return MemStatus::bad_key;
    return resolve(pd, rkey, addr, length, access, out);
  }
  bool copy_to_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) override {
    if (write_faults) return false;
    std::memcpy(dst, src, length);
    return true;
  }
  bool copy_from_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) override {
    if (read_faults) return false;
    std::memcpy(dst, src, length);
    return true;
  }
  bool atomic64(std::uint8_t* p, bool compare_swap, std::uint64_t compare, std::uint64_t swap_or_add,
                std::uint64_t* original) override {
    if (write_faults) return false;
    ++atomics;
    std::uint64_t v;
    std::memcpy(&v, p, 8);
    *original = v;
    if (compare_swap) {
      if (v == compare) v = swap_or_add;
    } else {
      v += swap_or_add;
    }
    std::memcpy(p, &v, 8);
    return true;
  }
  MemStatus invalidate(PdHandle pd, std::uint32_t, std::uint32_t rkey) override {
    auto it = regions_.find(rkey);
    if (it == regions_.end() || !it->second.valid || it->second.pd != pd) return MemStatus::bad_key;
    if (!it->second.invalidatable) return MemStatus::bad_access;
    it->second.valid = false;
    ++invalidations;
    return MemStatus::ok;
  }
  MemStatus bind_mw(PdHandle pd, std::uint32_t qpn, const MwBind& bind) override {
    auto mr = regions_.find(bind.mr_lkey);
    if (mr == regions_.end() || mr->second.pd != pd) return MemStatus::bad_key;
    if (bind.addr < mr->second.addr || bind.addr + bind.length > mr->second.addr + mr->second.length) {
      return MemStatus::bad_bounds;
    }
    Region w = mr->second;
    w.addr = bind.addr;
    w.length = bind.length;
    w.access = bind.access;
    w.window = true;
    w.invalidatable = true;
    w.qpn = qpn;
    regions_[(bind.mw_rkey & ~0xFFu) | (bind.new_rkey & 0xFF)] = w;
    ++binds;
    return MemStatus::ok;
  }

  bool write_faults = false, read_faults = false;  // memory is unmapped
  int atomics = 0, invalidations = 0, binds = 0;
  std::uint64_t resolved = 0;

 private:
  MemStatus resolve(PdHandle pd, std::uint32_t key, std::uint64_t addr, std::uint64_t length, std::uint32_t access,
                    std::uint8_t** out) {
    auto it = regions_.find(key);
    if (it == regions_.end() || !it->second.valid || it->second.pd != pd) return MemStatus::bad_key;
    const Region& r = it->second;
    if ((r.access & access) != access) return MemStatus::bad_access;
    if (addr < r.addr || length > r.length || addr - r.addr > r.length - length) return MemStatus::bad_bounds;
    *out = reinterpret_cast<std::uint8_t*>(addr);
    return MemStatus::ok;
  }

  std::map<std::uint32_t, Region> regions_;
  std::uint32_t next_key_ = 0x1000;
};

}  // namespace softrnic::test
