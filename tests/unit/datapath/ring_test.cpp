#include "engine/datapath/ring.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "engine/datapath/mapping.h"

using namespace softrnic::dp;

namespace {

struct TestRing {
  explicit TestRing(std::uint32_t data_size = kMinRingSize) : size(data_size) {
    REQUIRE(memory.map_private(ring_bytes(size)) == 0);
    producer.open(header(), data(), size);
    consumer.open(header(), data(), size);
  }
  RingHeader* header() { return memory.as<RingHeader>(); }
  std::uint8_t* data() { return memory.data() + kRingDataOffset; }
  bool send(std::uint32_t length, std::uint8_t seed) {
    if (!producer.has_room(length)) return false;
    std::uint8_t* p = producer.begin(length);
    for (std::uint32_t i = 0; i < length; ++i) p[i] = static_cast<std::uint8_t>(seed + i);
    producer.commit(length, seed);
    return true;
  }
  bool receive(std::uint32_t length, std::uint8_t seed) {
    RingConsumer::Entry e;
    if (!consumer.peek(&e) || e.kind != EntryKind::frame || e.length != length || e.aux != seed) return false;
    for (std::uint32_t i = 0; i < length; ++i) {
      if (e.data[i] != static_cast<std::uint8_t>(seed + i)) return false;
    }
    consumer.pop();
    return true;
  }
  void put_word(std::uint32_t at, EntryKind kind, std::uint32_t length) {
    std::uint64_t w = pack_header(kind, length, 0);
    std::memcpy(data() + at, &w, sizeof w);
  }

  std::uint32_t size;
  Mapping memory;
  RingProducer producer;
  RingConsumer consumer;
};

}  // namespace

TEST_CASE("a ring carries frames of every length in order across its end", "[ring]") {
  TestRing r;
  std::mt19937 rng(1);
  std::deque<std::pair<std::uint32_t, std::uint8_t>> inside;
  std::uint8_t seed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::uint32_t length = 1 + rng() % kMaxFrame;
    if (rng() % 2 != 0) length = 1 + length % 120;
    if (r.send(length, seed)) inside.emplace_back(length, seed++);
    while (inside.size() > rng() % 4) {
      REQUIRE(r.receive(inside.front().first, inside.front().second));
      inside.pop_front();
    }
    r.consumer.publish_head(false);
  }
  REQUIRE(r.producer.tail() > 100 * r.size);
  REQUIRE_FALSE(r.producer.broken());
  REQUIRE_FALSE(r.consumer.broken());
}

TEST_CASE("a full ring refuses frames until the consumer has published its head", "[ring]") {
  TestRing r;
  int sent = 0;
  while (r.send(100, static_cast<std::uint8_t>(sent))) ++sent;
  REQUIRE(sent == static_cast<int>(r.size / 128) - 1);  // the word behind the last entry stays free
  REQUIRE(r.producer.taken() == 0);
  REQUIRE_FALSE(r.producer.request_space(100));
  REQUIRE(r.receive(100, 0));
  REQUIRE_FALSE(r.producer.has_room(100));
  REQUIRE(r.consumer.publish_head(true));  // the producer waits
  REQUIRE(r.producer.taken() == 128);
  REQUIRE(r.send(100, 1));
  REQUIRE_FALSE(r.consumer.publish_head(true));
}

TEST_CASE("a waiting producer is noticed without looking at every batch", "[ring]") {
  TestRing r;
  for (std::uint32_t length : {1u, 50u, 1000u, kMaxFrame}) {
    for (int round = 0; round < 50; ++round) {
      int n = 0;
      while (r.send(length, static_cast<std::uint8_t>(n))) ++n;
      REQUIRE_FALSE(r.producer.request_space(length));
      bool noticed = false;
      for (int i = 0; i < n; ++i) {
        REQUIRE(r.receive(length, static_cast<std::uint8_t>(i)));
        noticed |= r.consumer.publish_head(false);
      }
      REQUIRE(noticed);
    }
  }
}

TEST_CASE("the largest frame fits an empty ring of the smallest size at any offset", "[ring]") {
  for (std::uint32_t before = 0; before < kMinRingSize / 64; ++before) {
    TestRing r;
    for (std::uint32_t i = 0; i < before; ++i) {
      REQUIRE(r.send(1, 7));
      REQUIRE(r.receive(1, 7));
      r.consumer.publish_head(false);
    }
    REQUIRE(r.send(kMaxFrame, 9));
    REQUIRE(r.receive(kMaxFrame, 9));
  }
}

TEST_CASE("marks travel in order with frames", "[ring]") {
  TestRing r;
  MarkBody body{7, {}};
  REQUIRE(r.send(60, 1));
  REQUIRE(r.producer.put_mark(42, nullptr, 0));
  REQUIRE(r.producer.put_mark(43, &body, sizeof body));
  REQUIRE(r.send(60, 2));
  REQUIRE(r.receive(60, 1));
  RingConsumer::Entry e;
  REQUIRE(r.consumer.peek(&e));
  REQUIRE(e.kind == EntryKind::mark);
  REQUIRE(e.aux == 42);
  REQUIRE(e.length == 0);
  r.consumer.pop();
  REQUIRE(r.consumer.peek(&e));
  REQUIRE(e.aux == 43);
  REQUIRE(e.length == sizeof body);
  REQUIRE(std::memcmp(e.data, &body, sizeof body) == 0);
  r.consumer.pop();
  r.consumer.ack_mark(43);
  REQUIRE(r.producer.acked_mark() == 43);
  REQUIRE(r.receive(60, 2));
}

TEST_CASE("a malformed entry breaks the channel and nothing else", "[ring][hostile]") {
  RingConsumer::Entry e;
  auto broken_by = [&](EntryKind kind, std::uint32_t length, std::uint32_t at) {
    TestRing r;
    for (std::uint32_t pos = 0; pos < at; pos += 64) {
      REQUIRE(r.send(1, 0));
      REQUIRE(r.receive(1, 0));
    }
    r.put_word(at, kind, length);
    bool got = r.consumer.peek(&e);
    REQUIRE(got != r.consumer.broken());
    if (!got) REQUIRE_FALSE(r.consumer.pending());
    return r.consumer.broken();
  };
  CHECK(broken_by(EntryKind::frame, 0, 0));
  CHECK(broken_by(EntryKind::frame, kFrameGap, 0));
  CHECK_FALSE(broken_by(EntryKind::frame, kFrameGap + 1, 0));
  CHECK_FALSE(broken_by(EntryKind::frame, kFrameGap + kMaxFrame, 0));
  CHECK(broken_by(EntryKind::frame, kFrameGap + kMaxFrame + 1, 0));
  CHECK(broken_by(EntryKind::frame, 0xFFFFFFFF, 0));
  CHECK(broken_by(EntryKind::frame, 0xFFFFFFF8, 0));
  CHECK(broken_by(EntryKind::frame, 57, kMinRingSize - 128 + 64));  // beyond the ring's end
  CHECK_FALSE(broken_by(EntryKind::frame, 56, kMinRingSize - 64));
  CHECK(broken_by(EntryKind::wrap, kMinRingSize - 8, 0));  // would go round for ever
  CHECK(broken_by(EntryKind::wrap, 0, 64));
  CHECK(broken_by(EntryKind::mark, 1, 0));
  CHECK(broken_by(EntryKind::none, 5, 0));
  CHECK(broken_by(static_cast<EntryKind>(4), 100, 0));
  CHECK(broken_by(static_cast<EntryKind>(255), 100, 0));
}

TEST_CASE("random rubbish in a ring is never read outside it", "[ring][hostile]") {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 300; ++round) {
    TestRing r;
    for (std::uint32_t at = 0; at < r.size; at += 64) {
      auto kind = static_cast<EntryKind>(rng() % 5);
      auto length = static_cast<std::uint32_t>(rng() % 8 == 0 ? rng() : rng() % 300);
      if (kind == EntryKind::wrap && rng() % 2 != 0) length = r.size - at - 8;
      r.put_word(at, kind, length);
    }
    RingConsumer::Entry e;
    int steps = 0;
    unsigned sum = 0;
    while (steps < 10000 && r.consumer.peek(&e)) {
      REQUIRE(e.data >= r.data());
      REQUIRE(e.data + e.length <= r.data() + r.size);
      for (std::uint32_t i = 0; i < e.length; ++i) sum += e.data[i];
      r.consumer.pop();
      ++steps;
    }
    REQUIRE(sum < UINT32_MAX);
  }
}

TEST_CASE("a consumer that lies about its head breaks the producer's end", "[ring][hostile]") {
  for (std::uint64_t lie : {std::uint64_t{1} << 40, UINT64_MAX, std::uint64_t{8192}}) {
    TestRing r;
    while (r.send(200, 1)) {
    }
    r.header()->head = 1024;
    REQUIRE(r.producer.taken() == 1024);
    r.header()->head = lie == 8192 ? 512 : lie;
    REQUIRE(r.producer.taken() == 1024);
    REQUIRE(r.producer.broken());
  }
}

TEST_CASE("two threads exchange a random stream without loss", "[ring][stress]") {
#ifdef SOFTRNIC_SANITIZED
  constexpr int kFrames = 100000;
#else
  constexpr int kFrames = 1000000;
#endif
  TestRing r(32768);
  std::thread sender([&] {
    std::mt19937 rng(3);
    for (int i = 0; i < kFrames; ++i) {
      std::uint32_t length = 4 + (rng() % 16 == 0 ? rng() % (kMaxFrame - 3) : rng() % 200);
      while (!r.producer.has_room(length)) std::this_thread::yield();
      std::uint8_t* p = r.producer.begin(length);
      std::memset(p, i & 0xFF, length);
      std::memcpy(p, &i, 4);
      r.producer.commit(length);
    }
  });
  std::mt19937 rng(3);
  int errors = 0;
  for (int i = 0; i < kFrames; ++i) {
    std::uint32_t length = 4 + (rng() % 16 == 0 ? rng() % (kMaxFrame - 3) : rng() % 200);
    RingConsumer::Entry e;
    while (!r.consumer.peek(&e)) {
      r.consumer.publish_head(true);
      std::this_thread::yield();
    }
    int got;
    std::memcpy(&got, e.data, 4);
    if (e.length != length || got != i || (length > 4 && e.data[length - 1] != (i & 0xFF))) ++errors;
    r.consumer.pop();
    if (i % 16 == 0) r.consumer.publish_head(false);
  }
  sender.join();
  REQUIRE(errors == 0);
  REQUIRE_FALSE(r.producer.broken());
}
