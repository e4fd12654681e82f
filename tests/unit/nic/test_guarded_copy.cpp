#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <catch2/catch.hpp>

#include "engine/nic/guarded_copy.h"
#include "engine/nic/memory_probe.h"

using namespace softrnic::nic;

namespace {

constexpr std::size_t kPage = 4096;

std::uint8_t* map_pages(std::size_t n, int prot = PROT_READ | PROT_WRITE) {
  void* p = mmap(nullptr, n * kPage, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(p != MAP_FAILED);
  return static_cast<std::uint8_t*>(p);
}

// The application's handler makes the page readable, so that the access is repeated and succeeds.
std::uint8_t* g_bad_page = nullptr;
volatile sig_atomic_t g_own_faults = 0;
void make_readable(int) {
  g_own_faults = g_own_faults + 1;
  mprotect(g_bad_page, kPage, PROT_READ);
}

[[maybe_unused]] struct sigaction g_behind;
[[maybe_unused]] void count_and_pass_on(int sig, siginfo_t* info, void* context) {
  g_own_faults = g_own_faults + 1;
  if (g_own_faults > 5) _exit(99);  // called in circles
  if (g_behind.sa_flags & SA_SIGINFO) {
    g_behind.sa_sigaction(sig, info, context);
  } else {
    g_behind.sa_handler(sig);
  }
}

// True when reading the page ran the application's handler, once.
bool faults_into_own_handler() {
  mprotect(g_bad_page, kPage, PROT_NONE);
  const int before = g_own_faults;
  (void)*static_cast<volatile std::uint8_t*>(g_bad_page);
  mprotect(g_bad_page, kPage, PROT_NONE);
  return g_own_faults == before + 1;
}

}  // namespace

TEST_CASE("guarded copy: every length and alignment copies exactly the bytes asked for", "[memory]") {
  install_fault_guard();
  std::vector<std::uint8_t> src(1024), dst(1024);
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::uint8_t>(i * 7 + 1);
  for (std::size_t from = 0; from < 9; ++from) {
    for (std::size_t to = 0; to < 40; ++to) {
      for (std::size_t n = 0; n < 420; ++n) {
        std::memset(dst.data(), 0, dst.size());
        REQUIRE(guarded_copy(dst.data() + to, src.data() + from, n));
        const bool exact = std::memcmp(dst.data() + to, src.data() + from, n) == 0 && (to == 0 || dst[to - 1] == 0) &&
                           dst[to + n] == 0;
        if (!exact) FAIL("from " << from << " to " << to << " length " << n);
      }
    }
  }
}

TEST_CASE("guarded copy: a program that polls on the last byte sees all bytes before it", "[memory]") {
  install_fault_guard();
  constexpr std::uint32_t kSlots = 200, kBatches = 1000;  // 200,000 copies
  struct alignas(64) Slot {
    std::uint8_t bytes[640];
  };
  const auto slots = std::make_unique<Slot[]>(kSlots);
  const auto place = [](std::uint32_t batch, std::uint32_t i) { return (batch + i) % 67; };
  const auto length = [](std::uint32_t batch, std::uint32_t i) { return 1 + (batch * 7 + i * 13) % 501; };
  std::atomic<std::uint32_t> checked{0};
  std::uint32_t stale = 0;
  std::thread consumer([&] {
    for (std::uint32_t batch = 1; batch <= kBatches; ++batch) {
      const auto want = static_cast<std::uint8_t>(batch % 255 + 1);
      for (std::uint32_t i = 0; i < kSlots; ++i) {
        volatile std::uint8_t* p = slots[i].bytes + place(batch, i);
        const std::uint32_t n = length(batch, i);
        for (int spins = 0; p[n - 1] != want; ++spins) {
          if (spins > 1000) std::this_thread::yield();
        }
        for (std::uint32_t k = 0; k < n; ++k) {
          if (p[k] != want) {
            ++stale;
            break;
          }
        }
        for (std::uint32_t k = 0; k < n; ++k) p[k] = 0;
      }
      checked.store(batch, std::memory_order_release);
    }
  });
  std::uint8_t src[501];
  for (std::uint32_t batch = 1; batch <= kBatches; ++batch) {
    std::memset(src, static_cast<int>(batch % 255 + 1), sizeof src);
    for (std::uint32_t i = 0; i < kSlots; ++i) guarded_copy(slots[i].bytes + place(batch, i), src, length(batch, i));
    while (checked.load(std::memory_order_acquire) != batch) std::this_thread::yield();
  }
  consumer.join();
  CHECK(stale == 0);
}

TEST_CASE("guarded copy: unmapped or protected memory is a failure, not a crash", "[memory]") {
  install_fault_guard();
  std::uint8_t* p = map_pages(3);
  std::uint8_t buf[3 * kPage];
  std::memset(buf, 0x5A, sizeof buf);

  SECTION("destination unmapped in the middle") {
    munmap(p + kPage, kPage);
    CHECK_FALSE(guarded_copy(p + 100, buf, 2 * kPage));
    CHECK(p[100] == 0x5A);
    CHECK(guarded_copy(p + 2 * kPage, buf, kPage));
    CHECK_FALSE(guarded_copy(p + kPage - 1, buf, 2));
  }
  SECTION("source unmapped") {
    munmap(p + kPage, kPage);
    CHECK_FALSE(guarded_copy(buf, p + kPage - 8, 16));
    CHECK_FALSE(guarded_copy(buf, p + kPage, 1));
    CHECK(guarded_copy(buf, p, kPage));
  }
  SECTION("destination read-only") {
    mprotect(p, 3 * kPage, PROT_READ);
    for (std::size_t n : {1, 2, 3, 7, 8, 15, 33, 200, 5000}) CHECK_FALSE(guarded_copy(p + 3, buf, n));
    CHECK(guarded_copy(buf, p, 3 * kPage));
    std::uint64_t old = 0;
    CHECK_FALSE(guarded_fetch_add(reinterpret_cast<std::uint64_t*>(p), 1, &old));
    CHECK_FALSE(guarded_compare_swap(reinterpret_cast<std::uint64_t*>(p), 1, 2, &old));
    CHECK_FALSE(guarded_probe_write(p));
    CHECK(guarded_probe_read(p));
  }
  SECTION("file truncated under the mapping: SIGBUS") {
    const int fd = memfd_create("t", MFD_CLOEXEC);
    REQUIRE(ftruncate(fd, kPage) == 0);
    auto* f = static_cast<std::uint8_t*>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    REQUIRE(ftruncate(fd, 0) == 0);
    CHECK_FALSE(guarded_copy(buf, f, 64));
    CHECK_FALSE(guarded_copy(f, buf, 64));
    munmap(f, kPage);
    close(fd);
  }
  munmap(p, 3 * kPage);
}

TEST_CASE("guarded atomics: values", "[memory]") {
  install_fault_guard();
  alignas(8) std::uint64_t word = 40;
  std::uint64_t old = 0;
  CHECK(guarded_fetch_add(&word, 2, &old));
  CHECK((old == 40 && word == 42));
  CHECK(guarded_compare_swap(&word, 41, 7, &old));
  CHECK((old == 42 && word == 42));
  CHECK(guarded_compare_swap(&word, 42, 7, &old));
  CHECK((old == 42 && word == 7));
}

TEST_CASE("fault guard: other faults go to the application's handler", "[memory]") {
  std::uint8_t* bad = g_bad_page = map_pages(1, PROT_NONE);
  std::uint8_t buf[16];
  struct sigaction before;
  struct sigaction own {};
  own.sa_handler = make_readable;

  SECTION("installed before ours") {
    sigaction(SIGSEGV, &own, &before);
    install_fault_guard();
    CHECK(faults_into_own_handler());
    CHECK_FALSE(guarded_copy(buf, bad, 16));
    CHECK(faults_into_own_handler());
  }
  SECTION("installed after ours, found at the next registration") {
    install_fault_guard();
    sigaction(SIGSEGV, &own, &before);
    install_fault_guard();
    CHECK_FALSE(guarded_copy(buf, bad, 16));
    CHECK(faults_into_own_handler());
  }
#ifndef __SANITIZE_THREAD__  // its sigaction() does not tell what is installed
  SECTION("ours taken out and put back by the application") {
    sigaction(SIGSEGV, &own, &before);
    install_fault_guard();
    struct sigaction nothing {
    }, ours;
    nothing.sa_handler = SIG_IGN;
    sigaction(SIGSEGV, &nothing, &ours);
    sigaction(SIGSEGV, &ours, nullptr);
    CHECK_FALSE(guarded_copy(buf, bad, 16));
    CHECK(faults_into_own_handler());
  }
  SECTION("one that calls its predecessor, which is ours") {
    sigaction(SIGSEGV, &own, &before);
    install_fault_guard();
    struct sigaction outer {};
    outer.sa_sigaction = count_and_pass_on;
    outer.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &outer, &g_behind);
    CHECK_FALSE(guarded_copy(buf, bad, 16));  // reached through the application's handler
    install_fault_guard();
    CHECK_FALSE(guarded_copy(buf, bad, 16));
    g_own_faults = 0;
    CHECK_FALSE(faults_into_own_handler());  // counted by both
    CHECK(g_own_faults == 2);
  }
#endif
  sigaction(SIGSEGV, &before, nullptr);
  munmap(bad, kPage);
}

TEST_CASE("registration probe: EFAULT for memory that cannot be accessed as asked", "[memory]") {
  install_fault_guard();
  std::uint8_t* p = map_pages(4);
  const auto addr = reinterpret_cast<std::uint64_t>(p);
  CHECK(probe_memory(addr + 5, 3 * kPage, true) == 0);
  mprotect(p + kPage, kPage, PROT_READ);
  CHECK(probe_memory(addr, 4 * kPage, false) == 0);
  CHECK(probe_memory(addr, 4 * kPage, true) == EFAULT);
  CHECK(probe_memory(addr, kPage, true) == 0);
  mprotect(p + kPage, kPage, PROT_NONE);
  CHECK(probe_memory(addr, 4 * kPage, false) == EFAULT);
  munmap(p + 2 * kPage, kPage);
  CHECK(probe_memory(addr + 2 * kPage, 1, false) == EFAULT);
  CHECK(probe_memory(addr + 3 * kPage, kPage, true) == 0);
  CHECK(probe_memory(0x10, 8, false) == EFAULT);
  munmap(p, 4 * kPage);
}
