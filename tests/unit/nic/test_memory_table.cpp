#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/nic/memory_table.h"

using namespace softrnic;
using namespace softrnic::nic;

namespace {

struct Keys {
  Keys() { table = std::make_unique<MemoryTable>(); }

  MemoryRegion& region(std::uint32_t access, ProtectionDomain& domain, std::uint64_t iova) {
    mrs.push_back(std::make_unique<MemoryRegion>());
    MemoryRegion& mr = *mrs.back();
    mr.pd = &domain;
    mr.addr = reinterpret_cast<std::uint64_t>(bytes);
    mr.length = sizeof bytes;
    mr.iova = iova;
    mr.access = access;
    REQUIRE(table->add_region(mr) == 0);
    return mr;
  }
  MemoryRegion& region(std::uint32_t access) { return region(access, pd, reinterpret_cast<std::uint64_t>(bytes)); }
  MemoryWindow& window(std::uint8_t type) {
    mws.push_back(std::make_unique<MemoryWindow>());
    mws.back()->pd = &pd;
    mws.back()->type = type;
    REQUIRE(table->add_window(*mws.back()) == 0);
    return *mws.back();
  }
  MemStatus remote(std::uint32_t rkey, std::uint64_t addr, std::uint64_t length, std::uint32_t access,
                   std::uint32_t qpn = 5) {
    return table->resolve_remote(1, qpn, rkey, addr, length, access, &out);
  }
  MemoryPort::MwBind bind(const MemoryWindow& mw, const MemoryRegion& mr, std::uint32_t access) {
    return {mw.rkey, mw.rkey + 1, mr.lkey, mr.iova + 100, 200, access};
  }

  std::unique_ptr<MemoryTable> table;
  alignas(64) std::uint8_t bytes[1000]{};
  ProtectionDomain pd{.context = nullptr, .engine = nullptr, .handle = 1};
  ProtectionDomain other{.context = nullptr, .engine = nullptr, .handle = 2};
  std::vector<std::unique_ptr<MemoryRegion>> mrs;
  std::vector<std::unique_ptr<MemoryWindow>> mws;
  std::uint8_t* out = nullptr;
};

constexpr std::uint32_t kAll =
    kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic | kAccessMwBind;

}  // namespace

TEST_CASE("IBA 10.6.3.1: bounds of a region, wrap-around included", "[memory]") {
  Keys k;
  const MemoryRegion& mr = k.region(kAll);
  const std::uint64_t a = mr.iova;
  struct Row {
    std::uint64_t addr, length;
    MemStatus want;
  };
  const Row rows[] = {
      {a, 1000, MemStatus::ok},
      {a, 1001, MemStatus::bad_bounds},
      {a + 999, 1, MemStatus::ok},
      {a + 1000, 1, MemStatus::bad_bounds},
      {a - 1, 2, MemStatus::bad_bounds},
      {a + 500, 501, MemStatus::bad_bounds},
      {a + 8, UINT64_MAX - 3, MemStatus::bad_bounds},
      {UINT64_MAX, 2, MemStatus::bad_bounds},
      {0, 8, MemStatus::bad_bounds},
  };
  for (const Row& r : rows) {
    CAPTURE(r.addr - a, r.length);
    CHECK(k.remote(mr.rkey, r.addr, r.length, kAccessRemoteRead) == r.want);
    if (r.length <= UINT32_MAX) {
      CHECK(k.table->resolve_local(1, mr.lkey, r.addr, static_cast<std::uint32_t>(r.length), 0, &k.out) == r.want);
    }
  }
  CHECK(k.remote(mr.rkey, a + 17, 3, kAccessRemoteRead) == MemStatus::ok);
  CHECK(k.out == k.bytes + 17);
}

TEST_CASE("IBA 10.6.3.1: access rights of a region", "[memory]") {
  Keys k;
  constexpr std::uint32_t kRights[] = {kAccessRemoteWrite, kAccessRemoteRead, kAccessRemoteAtomic};
  for (std::uint32_t granted : {0u, kAccessLocalWrite, kAccessRemoteRead, kAccessLocalWrite | kAccessRemoteWrite,
                                kAccessLocalWrite | kAccessRemoteAtomic, kAll}) {
    const MemoryRegion& mr = k.region(granted);
    for (std::uint32_t asked : kRights) {
      CHECK(k.remote(mr.rkey, mr.iova, 8, asked) == ((granted & asked) != 0 ? MemStatus::ok : MemStatus::bad_access));
    }
    CHECK(k.table->resolve_local(1, mr.lkey, mr.iova, 8, 0, &k.out) == MemStatus::ok);
    CHECK(k.table->resolve_local(1, mr.lkey, mr.iova, 8, kAccessLocalWrite, &k.out) ==
          ((granted & kAccessLocalWrite) != 0 ? MemStatus::ok : MemStatus::bad_access));
  }
}

TEST_CASE("IBA 10.6.3.2: a key of another protection domain is no key", "[memory]") {
  Keys k;
  const MemoryRegion& mr = k.region(kAll, k.other, 0);
  CHECK(k.remote(mr.rkey, mr.iova, 8, kAccessRemoteRead) == MemStatus::bad_key);
  CHECK(k.table->resolve_local(1, mr.lkey, mr.iova, 8, 0, &k.out) == MemStatus::bad_key);
  CHECK(k.table->resolve_local(2, mr.lkey, mr.iova, 8, 0, &k.out) == MemStatus::ok);
}

TEST_CASE("IBA 10.6.3.3: keys that were never given out or were taken back", "[memory]") {
  Keys k;
  const MemoryRegion& mr = k.region(kAll);
  const std::uint32_t key = mr.rkey;
  CHECK(key != 0);
  for (std::uint32_t bad : {0u, key ^ 1, key ^ 0x80, key + 0x100, 0xFFFFFFFFu}) {
    CHECK(k.remote(bad, mr.iova, 8, kAccessRemoteRead) == MemStatus::bad_key);
  }
  k.table->remove(key);
  CHECK(k.remote(key, mr.iova, 8, kAccessRemoteRead) == MemStatus::bad_key);
}

TEST_CASE("a region may overlap others and have an address of its own", "[memory]") {
  Keys k;
  const MemoryRegion& a = k.region(kAccessRemoteRead);
  const MemoryRegion& b = k.region(kAccessRemoteRead, k.pd, 0);
  const MemoryRegion& c = k.region(kAccessRemoteRead, k.pd, 0xFFFFFFFFFFFFF000u);
  CHECK(a.lkey != b.lkey);
  CHECK(k.remote(b.rkey, 0, 1000, kAccessRemoteRead) == MemStatus::ok);
  CHECK(k.out == k.bytes);
  CHECK(k.remote(c.rkey, 0xFFFFFFFFFFFFF000u, 1000, kAccessRemoteRead) == MemStatus::ok);
  CHECK(k.remote(c.rkey, 0xFFFFFFFFFFFFF3E0u, 100, kAccessRemoteRead) == MemStatus::bad_bounds);
}

TEST_CASE("key indices are used again late and never with the same key", "[memory]") {
  Keys k;
  std::vector<std::uint32_t> seen;
  for (int i = 0; i < 3000; ++i) {
    MemoryRegion mr{.pd = &k.pd, .lkey = 0, .rkey = 0, .addr = 0x1000, .length = 1, .iova = 0, .access = 0};
    REQUIRE(k.table->add_region(mr) == 0);
    seen.push_back(mr.lkey);
    k.table->remove(mr.lkey);
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    for (std::size_t j = i + 1; j < seen.size() && j < i + 1000; ++j) REQUIRE(seen[i] >> 8 != seen[j] >> 8);
  }
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

TEST_CASE("IBA 10.6.7.2, C10-72, C10-73, C10-74, C10-75, o10-37.2.40: binding a window checks the region", "[memory]") {
  Keys k;
  const MemoryRegion& mr = k.region(kAll);
  const MemoryWindow& mw = k.window(2);
  auto b = k.bind(mw, mr, kAccessRemoteRead);
  MemStatus want = MemStatus::bad_bounds;
  SECTION("range outside the region") { b.length = 901; }
  SECTION("range that wraps around") { b.addr = UINT64_MAX - 10; }
  SECTION("length 0 of a type 2 window") { b.length = 0; }
  SECTION("region without MW_BIND") {
    b.mr_lkey = k.region(kAll & ~kAccessMwBind).lkey;
    want = MemStatus::bad_access;
  }
  SECTION("write window over a region without local write") {
    b.mr_lkey = k.region(kAccessRemoteRead | kAccessMwBind).lkey;
    b.access = kAccessRemoteWrite;
    want = MemStatus::bad_access;
  }
  SECTION("zero-based region") {
    b.mr_lkey = k.region(kAll | kAccessZeroBased).lkey;
    want = MemStatus::bad_access;
  }
  SECTION("region of another protection domain") {
    b.mr_lkey = k.region(kAll, k.other, mr.iova).lkey;
    want = MemStatus::bad_key;
  }
  SECTION("not a region") {
    b.mr_lkey = k.window(1).rkey;
    want = MemStatus::bad_key;
  }
  SECTION("not a window") {
    b.mw_rkey = mr.rkey;
    want = MemStatus::bad_key;
  }
  SECTION("stale window key") {
    b.mw_rkey ^= 3;
    want = MemStatus::bad_key;
  }
  CHECK(k.table->bind_mw(1, 5, b) == want);
  CHECK(mr.windows.load() == 0);
  CHECK(k.remote(mw.rkey, mr.iova + 100, 8, kAccessRemoteRead) == MemStatus::bad_key);
}

TEST_CASE("IBA 10.6.7.2.3, o10-37.2.30: a type 2 window serves the QP that bound it, until it is invalidated",
          "[memory]") {
  Keys k;
  const MemoryRegion& mr = k.region(kAll);
  const MemoryWindow& mw = k.window(2);
  const auto b = k.bind(mw, mr, kAccessRemoteRead);
  REQUIRE(k.table->bind_mw(1, 5, b) == MemStatus::ok);
  CHECK(mr.windows.load() == 1);
  const std::uint32_t rkey = b.new_rkey;
  CHECK(k.table->current_rkey(mw.rkey) == rkey);
  CHECK(k.remote(rkey, mr.iova + 100, 200, kAccessRemoteRead) == MemStatus::ok);
  CHECK(k.out == k.bytes + 100);
  CHECK(k.remote(rkey, mr.iova + 100, 201, kAccessRemoteRead) == MemStatus::bad_bounds);
  CHECK(k.remote(rkey, mr.iova + 99, 1, kAccessRemoteRead) == MemStatus::bad_bounds);
  CHECK(k.remote(rkey, mr.iova + 100, 8, kAccessRemoteWrite) == MemStatus::bad_access);
  CHECK(k.remote(rkey, mr.iova + 100, 8, kAccessRemoteRead, 6) == MemStatus::bad_key);
  CHECK(k.remote(mw.rkey, mr.iova + 100, 8, kAccessRemoteRead) == MemStatus::bad_key);
  CHECK(k.table->resolve_local(1, rkey, mr.iova + 100, 8, 0, &k.out) == MemStatus::bad_key);

  auto again = b;
  again.mw_rkey = rkey;
  again.new_rkey = rkey + 1;
  CHECK(k.table->bind_mw(1, 5, again) == MemStatus::bad_access);  // bound already

  CHECK(k.table->invalidate(1, 6, rkey) == MemStatus::bad_key);
  CHECK(k.table->invalidate(2, 5, rkey) == MemStatus::bad_key);
  CHECK(k.table->invalidate(1, 5, rkey) == MemStatus::ok);
  CHECK(mr.windows.load() == 0);
  CHECK(k.remote(rkey, mr.iova + 100, 8, kAccessRemoteRead) == MemStatus::bad_key);
  CHECK(k.table->invalidate(1, 5, rkey) == MemStatus::bad_key);
  CHECK(k.table->bind_mw(1, 5, again) == MemStatus::ok);
}

TEST_CASE("a type 2 window may be zero-based", "[memory]") {
  Keys k;
  const MemoryRegion& mr = k.region(kAll);
  const MemoryWindow& mw = k.window(2);
  const auto b = k.bind(mw, mr, kAccessRemoteRead | kAccessZeroBased);
  REQUIRE(k.table->bind_mw(1, 5, b) == MemStatus::ok);
  CHECK(k.remote(b.new_rkey, 0, 200, kAccessRemoteRead) == MemStatus::ok);
  CHECK(k.out == k.bytes + 100);
  CHECK(k.remote(b.new_rkey, mr.iova + 100, 1, kAccessRemoteRead) == MemStatus::bad_bounds);
}

TEST_CASE("IBA 10.6.7.1: a type 1 window is re-bound at any time and serves every QP of its domain", "[memory]") {
  Keys k;
  const MemoryRegion& mr = k.region(kAll);
  const MemoryWindow& mw = k.window(1);
  auto b = k.bind(mw, mr, kAccessRemoteWrite);
  REQUIRE(k.table->bind_mw(1, 5, b) == MemStatus::ok);
  CHECK(k.remote(b.new_rkey, mr.iova + 100, 8, kAccessRemoteWrite, 77) == MemStatus::ok);
  CHECK(k.table->invalidate(1, 5, b.new_rkey) == MemStatus::bad_access);

  auto moved = b;
  moved.mw_rkey = b.new_rkey;
  moved.new_rkey = b.new_rkey + 1;
  moved.addr = mr.iova;
  CHECK(k.table->bind_mw(1, 6, moved) == MemStatus::ok);
  CHECK(mr.windows.load() == 1);
  CHECK(k.remote(b.new_rkey, mr.iova + 100, 8, kAccessRemoteWrite) == MemStatus::bad_key);
  CHECK(k.remote(moved.new_rkey, mr.iova, 8, kAccessRemoteWrite) == MemStatus::ok);

  auto zero_based = moved;
  zero_based.mw_rkey = moved.new_rkey;
  zero_based.new_rkey = moved.new_rkey + 1;
  zero_based.access |= kAccessZeroBased;
  CHECK(k.table->bind_mw(1, 6, zero_based) == MemStatus::bad_access);

  auto unbind = zero_based;
  unbind.access = 0;
  unbind.length = 0;
  CHECK(k.table->bind_mw(1, 6, unbind) == MemStatus::ok);
  CHECK(mr.windows.load() == 0);
  CHECK(k.remote(unbind.new_rkey, mr.iova, 8, kAccessRemoteWrite) == MemStatus::bad_key);
}

TEST_CASE("IBA 10.6.5: a region that was not registered by a work request cannot be invalidated", "[memory]") {
  Keys k;
  const MemoryRegion& mr = k.region(kAll);
  CHECK(k.table->invalidate(1, 5, mr.rkey) == MemStatus::bad_access);
  CHECK(k.table->invalidate(2, 5, mr.rkey) == MemStatus::bad_key);
  CHECK(k.remote(mr.rkey, mr.iova, 8, kAccessRemoteRead) == MemStatus::ok);
}

TEST_CASE("a removed window releases its region", "[memory]") {
  Keys k;
  const MemoryRegion& mr = k.region(kAll);
  const MemoryWindow& mw = k.window(2);
  const auto b = k.bind(mw, mr, kAccessRemoteRead);
  REQUIRE(k.table->bind_mw(1, 5, b) == MemStatus::ok);
  k.table->remove(mw.rkey);
  CHECK(mr.windows.load() == 0);
  CHECK(k.remote(b.new_rkey, mr.iova + 100, 8, kAccessRemoteRead) == MemStatus::bad_key);
}
