// Parts of the simulation that know nothing of queue pairs: random numbers, virtual time, the network
// and hosts' memory.
#pragma once

#include <isa-l.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <vector>

#include "protocols/common/memory_port.h"

namespace softrnic::sim {

// A violated property.
struct SimFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline void require(bool ok, const char* what) {
  if (!ok) throw SimFailure(what);
}

// A number of the environment.
inline std::uint64_t env_or(const char* name, std::uint64_t otherwise) {
  const char* v = std::getenv(name);
  return v != nullptr ? std::strtoull(v, nullptr, 0) : otherwise;
}

// splitmix64.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>((next() >> 32) * n >> 32); }
  std::uint32_t between(std::uint32_t lo, std::uint32_t hi) { return lo + below(hi - lo + 1); }
  // True with probability n / 1000.
  bool permille(std::uint32_t n) { return n != 0 && below(1000) < n; }

 private:
  std::uint64_t state_;
};

// Byte `i` of the message with number `id`.
inline void fill_pattern(std::uint8_t* p, std::size_t n, std::uint64_t id) {
  std::uint64_t x = id * 0x9E3779B97F4A7C15u + 1;
  for (std::size_t i = 0; i < n; i += 8) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    std::memcpy(p + i, &x, n - i < 8 ? n - i : 8);
  }
}
inline bool matches_pattern(const std::uint8_t* p, std::size_t n, std::uint64_t id) {
  std::uint64_t x = id * 0x9E3779B97F4A7C15u + 1;
  for (std::size_t i = 0; i < n; i += 8) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    if (std::memcmp(p + i, &x, n - i < 8 ? n - i : 8) != 0) return false;
  }
  return true;
}

// A host's memory: the bytes as they are, and as they must be. Space is given out with guard bytes
// between; a loose area may hold anything at the end (buffers of lost messages).
class HostMemory final : public MemoryPort {
 public:
  static constexpr std::size_t kGuard = 8;
  static constexpr std::uint32_t kKey = 0x700;  // all rights, the whole memory
  static constexpr std::uint32_t kReadOnlyKey = 0x800;

  explicit HostMemory(std::size_t size)
      : size_(size), actual_(new std::uint8_t[size]), expected_(new std::uint8_t[size]) {}

  std::size_t allocate(std::size_t length) {
    const std::size_t at = (used_ + kGuard + 7) & ~std::size_t{7};
    const std::size_t end = at + length + kGuard;
    require(end <= size_, "simulation too big for its memory");
    // Bytes of their own for what nobody has written.
    fill_pattern(actual_.get() + used_, end - used_, used_ + 0xBA5E);
    std::memcpy(expected_.get() + used_, actual_.get() + used_, end - used_);
    used_ = end;
    return at;
  }
  std::uint8_t* at(std::size_t offset) { return actual_.get() + offset; }
  std::uint64_t address(std::size_t offset) { return reinterpret_cast<std::uint64_t>(at(offset)); }
  std::uint64_t load64(std::size_t offset) {
    std::uint64_t v;
    std::memcpy(&v, at(offset), 8);
    return v;
  }
  // The application stores a message's bytes itself.
  void store_pattern(std::size_t offset, std::size_t n, std::uint64_t id) {
    fill_pattern(at(offset), n, id);
    expect_pattern(offset, n, id);
  }
  void expect_pattern(std::size_t offset, std::size_t n, std::uint64_t id) {
    fill_pattern(expected_.get() + offset, n, id);
  }
  void expect64(std::size_t offset, std::uint64_t v) { std::memcpy(expected_.get() + offset, &v, 8); }
  void store64(std::size_t offset, std::uint64_t v) {
    std::memcpy(at(offset), &v, 8);
    expect64(offset, v);
  }
  void loosen(std::size_t offset, std::size_t n) { loose_.push_back({offset, n}); }

  // Memory holds what the operations say and nothing else.
  void check() {
    for (auto [offset, n] : loose_) std::memcpy(expected_.get() + offset, at(offset), n);
    require(std::memcmp(actual_.get(), expected_.get(), used_) == 0, "memory differs from what the operations say");
  }

  MemStatus resolve_local(PdHandle, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length, std::uint32_t access,
                          std::uint8_t** out) override {
    return resolve(lkey, addr, length, access, out);
  }
  MemStatus resolve_remote(PdHandle, std::uint32_t, std::uint32_t rkey, std::uint64_t addr, std::uint64_t length,
                           std::uint32_t access, std::uint8_t** out) override {
    return resolve(rkey, addr, length, access, out);
  }
  bool copy_to_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) override {
    std::memcpy(dst, src, length);
    return true;
  }
  bool copy_from_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) override {
    std::memcpy(dst, src, length);
    return true;
  }
  bool atomic64(std::uint8_t* p, bool compare_swap, std::uint64_t compare, std::uint64_t swap_or_add,
                std::uint64_t* original) override {
    std::memcpy(original, p, 8);
    std::uint64_t v = compare_swap ? (*original == compare ? swap_or_add : *original) : *original + swap_or_add;
    std::memcpy(p, &v, 8);
    return true;
  }
  // Local requests only leave a trace: how often the one with this key was executed.
  MemStatus invalidate(PdHandle, std::uint32_t, std::uint32_t rkey) override {
    ++executed_[rkey];
    return MemStatus::ok;
  }
  MemStatus bind_mw(PdHandle, std::uint32_t, const MwBind& bind) override {
    ++executed_[bind.mw_rkey];
    return MemStatus::ok;
  }
  int executed(std::uint32_t key) { return executed_[key]; }

 private:
  MemStatus resolve(std::uint32_t key, std::uint64_t addr, std::uint64_t length, std::uint32_t access,
                    std::uint8_t** out) {
    if (key != kKey && key != kReadOnlyKey) return MemStatus::bad_key;
    if (key == kReadOnlyKey && (access & ~kAccessRemoteRead) != 0) return MemStatus::bad_access;
    const std::uint64_t base = address(0);
    if (addr < base || length > used_ || addr - base > used_ - length) return MemStatus::bad_bounds;
    *out = reinterpret_cast<std::uint8_t*>(addr);
    return MemStatus::ok;
  }

  const std::size_t size_;
  std::unique_ptr<std::uint8_t[]> actual_, expected_;
  std::vector<std::pair<std::size_t, std::size_t>> loose_;
  std::size_t used_ = 0;
  std::map<std::uint32_t, int> executed_;
};

// What the links do, in permille of the packets.
struct LinkFaults {
  std::uint32_t drop = 0, duplicate = 0, reorder = 0, corrupt = 0;
  Nanos delay = 5'000;           // of every packet
  Nanos jitter = 1'000;          // added at random without changing the order
  Nanos reorder_delay = 50'000;  // at most, on top, for a reordered packet
};

// An event in virtual time. `who` is the receiver's number.
struct Event {
  enum class Kind : std::uint8_t { frame, timer, service, app };
  Nanos time;
  std::uint64_t sequence;  // order of equal times
  Kind kind;
  std::uint32_t who;
  std::uint32_t frame;
  friend bool operator<(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.sequence > b.sequence;
  }
};

// Virtual time, and frames in flight with a checksum as ICRC gives them.
class World {
 public:
  World(std::uint64_t seed, const LinkFaults& faults) : rng(seed), faults_(faults) {}

  Rng rng;
  Nanos now = 0;

  void at(Nanos time, Event::Kind kind, std::uint32_t who) { push({time, 0, kind, who, 0}); }
  bool next(Event* e) {
    if (events_.empty()) return false;
    *e = events_.top();
    events_.pop();
    now = e->time;
    return true;
  }

  // A buffer for a frame of `n` bytes on its way to `to`; send() puts it on the wire.
  std::uint8_t* begin_frame(std::size_t n, std::uint32_t* frame) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(frames_.size()));
      frames_.emplace_back();
    }
    *frame = free_.back();
    free_.pop_back();
    frames_[*frame].resize(n + 4);
    return frames_[*frame].data();
  }
  void abandon(std::uint32_t frame) { free_.push_back(frame); }
  void send(std::uint32_t frame, std::uint32_t to) {
    seal(frames_[frame]);
    if (rng.permille(faults_.duplicate)) {
      std::uint32_t copy = 0;
      begin_frame(frames_[frame].size() - 4, &copy);
      frames_[copy] = frames_[frame];
      launch(copy, to);
    }
    if (rng.permille(faults_.drop)) {
      abandon(frame);
      return;
    }
    launch(frame, to);
  }
  // The frame's bytes without the checksum; empty when the checksum is wrong.
  Bytes receive(std::uint32_t frame) {
    const auto& f = frames_[frame];
    std::uint32_t crc = 0;
    std::memcpy(&crc, f.data() + f.size() - 4, 4);
    if (crc != checksum(f)) return {};
    return Bytes(f.data(), f.size() - 4);
  }

 private:
  static std::uint32_t checksum(const std::vector<std::uint8_t>& f) {
    return crc32_gzip_refl(0, f.data(), f.size() - 4);
  }
  static void seal(std::vector<std::uint8_t>& f) {
    const std::uint32_t crc = checksum(f);
    std::memcpy(f.data() + f.size() - 4, &crc, 4);
  }
  void launch(std::uint32_t frame, std::uint32_t to) {
    if (rng.permille(faults_.corrupt)) {
      auto& f = frames_[frame];
      f[rng.below(static_cast<std::uint32_t>(f.size()))] ^= static_cast<std::uint8_t>(1u << rng.below(8));
    }
    if (link_free_.size() <= to) link_free_.resize(to + 1);
    Nanos arrival = now + faults_.delay;
    if (rng.permille(faults_.reorder)) {
      arrival += rng.below(static_cast<std::uint32_t>(faults_.reorder_delay));
    } else {
      if (faults_.jitter != 0) arrival += rng.below(static_cast<std::uint32_t>(faults_.jitter));
      if (arrival < link_free_[to]) arrival = link_free_[to];
      link_free_[to] = arrival;
    }
    push({arrival, 0, Event::Kind::frame, to, frame});
  }
  void push(Event e) {
    e.sequence = ++sequence_;
    events_.push(e);
  }

  LinkFaults faults_;
  std::priority_queue<Event> events_;
  std::uint64_t sequence_ = 0;
  std::vector<std::vector<std::uint8_t>> frames_;
  std::vector<std::uint32_t> free_;
  std::vector<Nanos> link_free_;  // per receiver: arrival of its last packet in order
};

}  // namespace softrnic::sim
