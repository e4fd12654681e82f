// What the ICRC covers, and that sender and receiver agree with the text.
#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/roce/frames.h"

using namespace softrnic;
using namespace softrnic::roce;
using namespace softrnic::test;

namespace {

// Bytes of a frame that a router or switch may change: offset from the network header, and the bits.
std::vector<std::pair<std::size_t, std::uint8_t>> mutable_bits(Framing f) {
  std::vector<std::pair<std::size_t, std::uint8_t>> m;
  if (f == Framing::v2_ipv4) {
    m = {{1, 0xFF}, {8, 0xFF}, {10, 0xFF}, {11, 0xFF}, {26, 0xFF}, {27, 0xFF}};
  } else {
    m = {{0, 0x0F}, {1, 0xFF}, {2, 0xFF}, {3, 0xFF}, {7, 0xFF}};
    if (f == Framing::v2_ipv6) m.insert(m.end(), {{46, 0xFF}, {47, 0xFF}});
  }
  m.push_back({bth_of(f) - kL3 + 4, 0xFF});
  return m;
}

// The frame taken apart, for checks of the ICRC only: tests change fields that parse() would refuse.
RxFrame dissect(Framing f, const std::vector<std::uint8_t>& frame, std::size_t vlan = 0) {
  RxFrame r;
  r.version = f == Framing::v1 ? Version::v1 : Version::v2;
  r.ipv4 = f == Framing::v2_ipv4;
  r.l3 = frame.data() + kL3 + vlan;
  const std::size_t bth = bth_of(f) + vlan;
  r.transport = Bytes(frame).subspan(bth, frame.size() - bth - 4);
  return r;
}

std::uint32_t stored_icrc(const std::vector<std::uint8_t>& frame) {
  std::uint32_t v;
  std::memcpy(&v, frame.data() + frame.size() - 4, 4);
  return v;
}

}  // namespace

TEST_CASE("IBA A17.3.3: what routers change does not alter the ICRC, everything else does", "[icrc]") {
  for (const Framing f : kFramings) {
    INFO(name_of(f));
    auto frame = frame_of(f, 21);
    REQUIRE(icrc_ok(dissect(f, frame)));
    std::vector<std::uint8_t> ignored(frame.size());
    for (auto [at, bits] : mutable_bits(f)) ignored[kL3 + at] = bits;
    for (std::size_t at = kL3; at < frame.size(); ++at) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        const auto mask = static_cast<std::uint8_t>(1u << bit);
        frame[at] ^= mask;
        INFO("byte " << at - kL3 << " bit " << bit);
        CHECK(icrc_ok(dissect(f, frame)) == ((ignored[at] & mask) != 0));
        frame[at] ^= mask;
      }
    }
  }
}

TEST_CASE("IBA A17.3.3: the Ethernet header and the VLAN tag are not covered", "[icrc]") {
  for (const Framing f : kFramings) {
    INFO(name_of(f));
    const auto plain = frame_of(f, 9), tagged = frame_of(f, 9, true);
    CHECK(stored_icrc(plain) == stored_icrc(tagged));
    auto changed = tagged;
    for (std::size_t i = 0; i < 18; ++i) changed[i] ^= 0xA5;
    CHECK(icrc_ok(dissect(f, changed, 4)));
  }
}

TEST_CASE("IBA A17.3.3: sender, receiver and the text agree for every payload length", "[icrc]") {
  for (const Framing f : kFramings) {
    for (const bool vlan : {false, true}) {
      for (std::size_t n = 0; n <= 300; ++n) {
        INFO(name_of(f) << (vlan ? " VLAN" : "") << " payload " << n);
        const auto frame = frame_of(f, n, vlan);
        REQUIRE(stored_icrc(frame) == icrc_by_the_book(f, frame, kL3 + (vlan ? 4u : 0u)));
        RxFrame r;
        REQUIRE(parse(frame, &r) == FrameError::none);
        REQUIRE(icrc_ok(r));
      }
      for (std::size_t n : {1023, 1024, 1025, 2048, 4095, 4096, 8192}) {
        INFO(name_of(f) << " payload " << n);
        const auto frame = frame_of(f, n, vlan);
        CHECK(stored_icrc(frame) == icrc_by_the_book(f, frame, kL3 + (vlan ? 4u : 0u)));
      }
    }
  }
}

TEST_CASE("IBA 7.8.1: pad bytes are covered", "[icrc]") {
  auto frame = frame_of(Framing::v2_ipv4, 5);
  frame[frame.size() - 5] = 1;  // last pad byte
  RxFrame r;
  REQUIRE(parse(frame, &r) == FrameError::none);
  CHECK_FALSE(icrc_ok(r));
}

TEST_CASE("IBA 7.8.1: congestion marks on the way leave a frame valid", "[icrc]") {
  // ECN set to CE with the IPv4 checksum corrected (RFC 3168 s5), FECN in the BTH.
  auto frame = frame_of(Framing::v2_ipv4, 64);
  frame[kL3 + 1] |= 3;
  store_be16(&frame[kL3 + 10], 0);
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < 20; i += 2) sum += load_be16(&frame[kL3 + i]);
  while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
  store_be16(&frame[kL3 + 10], static_cast<std::uint16_t>(~sum));
  frame[bth_of(Framing::v2_ipv4) + 4] = 0x80;
  RxFrame r;
  REQUIRE(parse(frame, &r) == FrameError::none);
  CHECK((r.traffic_class & 3) == 3);
  CHECK(icrc_ok(r));
}
