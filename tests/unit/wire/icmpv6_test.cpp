// ICMPv6 messages against bytes that were added up by hand.
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "protocols/wire/ndp.h"

using namespace softrnic;
using namespace softrnic::wire;

namespace {

using Message = std::vector<std::uint8_t>;

constexpr Gid kLinkLocal{{0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
constexpr Gid kTarget{{0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}};
constexpr Gid kTargetGroup{{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, 0, 0, 2}};

// fe80::1 asks for fd00::2 and tells its MAC, 02:00:00:00:00:01.
const Message kSolicitation{0x87, 0, 0x7C, 0x17, 0, 0, 0, 0, 0xFD, 0, 0, 0, 0, 0, 0, 0,
                            0,    0, 0,    0,    0, 0, 0, 2, 1,    1, 2, 0, 0, 0, 0, 1};
// fd00::2 answers fe80::1: solicited, override, its MAC is 02:00:00:00:00:02.
const Message kAdvertisement{0x88, 0, 0x1B, 0x1A, 0x60, 0, 0, 0, 0xFD, 0, 0, 0, 0, 0, 0, 0,
                             0,    0, 0,    0,    0,    0, 0, 2, 2,    1, 2, 0, 0, 0, 0, 2};
// Somebody without an address asks for fd00::2.
const Message kProbe{0x87, 0, 0x7D, 0xA3, 0, 0, 0, 0, 0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};

Message stored(const NdpMessage& m, const Gid& src, const Gid& dst) {
  Message bytes(m.size(), 0xEE);
  m.store(bytes.data(), src, dst);
  return bytes;
}
NdpMessage message(std::uint8_t type, std::uint8_t last_of_mac) {
  NdpMessage m;
  m.type = type;
  m.target = kTarget;
  m.has_mac = last_of_mac != 0;
  m.mac[0] = 2;
  m.mac[5] = last_of_mac;
  return m;
}
bool loads(const Message& bytes, NdpMessage* m) { return NdpMessage::load(bytes.data(), bytes.size(), m); }

}  // namespace

TEST_CASE("RFC 4861 4.3: a Neighbour Solicitation, with and without the source link-layer address", "[wire][ndp]") {
  CHECK(stored(message(kNdpSolicitation, 1), kLinkLocal, kTargetGroup) == kSolicitation);
  CHECK(stored(message(kNdpSolicitation, 0), Gid{}, kTargetGroup) == kProbe);
  NdpMessage m;
  REQUIRE(loads(kSolicitation, &m));
  CHECK(m.type == 135);
  CHECK(m.target == kTarget);
  REQUIRE(m.has_mac);
  CHECK(m.mac[0] == 2);
  CHECK(m.mac[5] == 1);
  NdpMessage probe;
  REQUIRE(loads(kProbe, &probe));
  CHECK_FALSE(probe.has_mac);
  Message target_option = kSolicitation;  // which belongs into advertisements
  target_option[24] = 2;
  NdpMessage other;
  REQUIRE(loads(target_option, &other));
  CHECK_FALSE(other.has_mac);
}

TEST_CASE("RFC 4861 4.4: a Neighbour Advertisement, its flags and the target link-layer address", "[wire][ndp]") {
  NdpMessage m = message(kNdpAdvertisement, 2);
  m.flags = NdpMessage::kSolicited | NdpMessage::kOverride;
  CHECK(stored(m, kTarget, kLinkLocal) == kAdvertisement);
  NdpMessage read;
  REQUIRE(loads(kAdvertisement, &read));
  CHECK(read.type == 136);
  CHECK(read.flags == (NdpMessage::kSolicited | NdpMessage::kOverride));
  CHECK(read.target == kTarget);
  REQUIRE(read.has_mac);
  CHECK(read.mac[5] == 2);
  // Router, solicited and override are the first three bits behind the checksum.
  const std::pair<std::uint8_t, std::uint8_t> bits[] = {
      {0x80, NdpMessage::kRouter}, {0x40, NdpMessage::kSolicited}, {0x20, NdpMessage::kOverride}};
  for (const auto& [on_the_wire, flag] : bits) {
    m.flags = flag;
    CHECK(stored(m, kTarget, kLinkLocal)[4] == on_the_wire);
    Message single = kAdvertisement;
    single[4] = on_the_wire;
    REQUIRE(loads(single, &read));
    CHECK(read.flags == flag);
  }
  // Options that are not known are passed over.
  Message more = kAdvertisement;
  const std::uint8_t nonce[16] = {14, 2};
  more.insert(more.begin() + 24, nonce, nonce + 16);
  NdpMessage behind;
  REQUIRE(loads(more, &behind));
  CHECK(behind.has_mac);
}

TEST_CASE("RFC 4443 2.3: the checksum covers the addresses, the length and every byte", "[wire][icmpv6]") {
  CHECK(icmpv6_checksum(kLinkLocal, kTargetGroup, kSolicitation.data(), kSolicitation.size()) == 0);
  CHECK(icmpv6_checksum(kTarget, kTargetGroup, kSolicitation.data(), kSolicitation.size()) != 0);
  CHECK(icmpv6_checksum(kLinkLocal, kTarget, kSolicitation.data(), kSolicitation.size()) != 0);
  for (std::size_t i = 0; i < kSolicitation.size(); ++i) {
    Message bad = kSolicitation;
    bad[i] ^= 0x10;
    CHECK(icmpv6_checksum(kLinkLocal, kTargetGroup, bad.data(), bad.size()) != 0);
  }
  Message longer = kSolicitation;
  longer.resize(34);  // zeros alone would not change the sum of the message
  CHECK(icmpv6_checksum(kLinkLocal, kTargetGroup, longer.data(), longer.size()) != 0);
}
