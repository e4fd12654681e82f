// ICRC against packets from outside: a capture of a ConnectX-4 Lx and packets computed by other code.
#include <catch2/catch.hpp>

#include "protocols/roce/framing.h"
#include "protocols/wire/icrc.h"
#include "tests/unit/roce/frames.h"

using namespace softrnic;
using namespace softrnic::roce;
using test::hex;

namespace {

struct Vector {
  const char* name;
  const char* ethernet;  // header, or empty
  const char* packet;    // network header through pad
  const char* icrc;
};

constexpr Vector kVectors[] = {
    {"CNP captured from a ConnectX-4 Lx", "e41d2dab2bc27cfe90643b320800",
     "45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff4000011800000000"
     "00000000000000000000000000000000",
     "82fd002a"},
    {"RC SEND Only over IPv4, pad 3", "0200000000010200000000020800",
     "4502003400004000401126b50a0000010a000002c00112b70020000004f0ffff000000118000010048656c6c6f000000", "576337d9"},
    {"RC RDMA WRITE Only over IPv6", "02000000000102000000000286dd",
     "6021234500301140fe800000000000000000000000000001fe800000000000000000000000000002d2b712b700300000"
     "0a40ffff0012345680abcdef00007f000000100012345678000000080001020304050607",
     "39be5f17"},
    {"RC Acknowledge, RoCE v1", "0200000000010200000000028915",
     "6000000000141b01fe800000000000000000000000000001fe8000000000000000000000000000021140ffff0000001200000100"
     "1f000001",
     "35d578ef"},
    {"RC Acknowledge over IPv4", "0200000000010200000000020800",
     "4502003000004000401126b90a0000020a000001c00112b7001c00001140ffff00000012000001001f000001", "61afe203"},
};

}  // namespace

TEST_CASE("IBA 7.8.1: CRC of the sample packet in the specification", "[icrc]") {
  // LRH (VL masked), BTH (reserved byte masked), DETH, payload.
  const auto p =
      hex("f012375c000e17d20a202487ff87b1b3000dec2a01710a1c015d400238f27a05"
          "0000000ebb884d85fd5cfba4728bc0690ed40000");
  CHECK(wire::icrc_value(wire::icrc_update(wire::kIcrcSeed, p.data(), p.size())) == 0x5AB72596u);
}

TEST_CASE("IBA 7.8.1: the CRC is the one of Ethernet, whatever the length", "[icrc]") {
  const std::uint8_t check[] = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
  CHECK(wire::icrc_value(wire::icrc_update(wire::kIcrcSeed, check, 9)) == 0xCBF43926u);
  const std::uint8_t ones[8] = {255, 255, 255, 255, 255, 255, 255, 255};
  CHECK(wire::icrc_update(wire::kIcrcSeed, ones, 8) == wire::kIcrcAfterLrh);

  std::vector<std::uint8_t> data(100);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i * 37 + 11);
  for (std::size_t n = 0; n <= data.size(); ++n) {
    CHECK(wire::icrc_update(wire::kIcrcSeed, data.data(), n) == test::crc_bitwise(data.data(), n));
  }
}

// Every implementation that this CPU has, at every alignment of the start and of the end.
TEST_CASE("IBA 7.8.1: the CRC of long inputs and of whole transport packets", "[icrc]") {
  std::vector<std::uint8_t> data(4096 + 64);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i * i * 31 + i * 7 + (i >> 8));
  std::string wrong;
  for (std::size_t n = 12; n < 700; ++n) {
    const std::uint8_t* p = data.data() + n % 64;
    const std::uint32_t expected = test::crc_bitwise(p, n);
    if (wire::icrc_update(wire::kIcrcSeed, p, n) != expected) wrong += "update " + std::to_string(n) + " ";
    if (~crc32_gzip_refl(~wire::kIcrcSeed, p, n) != expected) wrong += "isal " + std::to_string(n) + " ";
    if (n >= wire::kCrc32WideMin && n % 16 == 0 && wire::has_crc32_wide() &&
        wire::crc32_wide(wire::kIcrcSeed, p, n) != expected) {
      wrong += "wide " + std::to_string(n) + " ";
    }
    std::vector<std::uint8_t> masked(p, p + n);
    masked[4] = 0xFF;
    if (wire::icrc_update_transport(wire::kIcrcSeed, p, n) != test::crc_bitwise(masked.data(), n)) {
      wrong += "transport " + std::to_string(n) + " ";
    }
  }
  CHECK(wire::icrc_update(wire::kIcrcSeed, data.data() + 10, 4096) == test::crc_bitwise(data.data() + 10, 4096));
  CHECK(wrong == "");
}

TEST_CASE("IBA A17.3.3: packets of known ICRC are accepted, and only with it", "[icrc]") {
  for (const Vector& v : kVectors) {
    INFO(v.name);
    auto frame = hex(v.ethernet);
    const auto packet = hex(v.packet);
    frame.insert(frame.end(), packet.begin(), packet.end());
    const auto icrc = hex(v.icrc);
    frame.insert(frame.end(), icrc.begin(), icrc.end());

    RxFrame f;
    REQUIRE(parse(frame, &f) == FrameError::none);
    CHECK(icrc_ok(f));
    for (std::size_t i = 1; i <= 4; ++i) {
      frame[frame.size() - i] ^= 0x10;
      CHECK_FALSE(icrc_ok(f));
      frame[frame.size() - i] ^= 0x10;
    }
  }
}

TEST_CASE("IBA A17.3.1: templates write the frames of known ICRC", "[framing]") {
  for (const Vector& v : {kVectors[1], kVectors[2], kVectors[3], kVectors[4]}) {
    INFO(v.name);
    const auto ethernet = hex(v.ethernet);
    const auto packet = hex(v.packet);
    auto frame = ethernet;
    frame.insert(frame.end(), packet.begin(), packet.end());
    frame.resize(frame.size() + 4);
    RxFrame f;
    REQUIRE(parse(frame, &f) == FrameError::none);
    const auto length = static_cast<std::uint32_t>(f.transport.size());

    PathParams params;
    params.version = f.version;
    std::memcpy(params.dst_mac, ethernet.data(), 6);
    std::memcpy(params.src_mac, ethernet.data() + 6, 6);
    params.sgid = f.sgid;
    params.dgid = f.dgid;
    params.traffic_class = f.traffic_class;
    params.hop_limit = f.hop_limit;
    if (!f.ipv4) params.flow_label = load_be32(f.l3) & 0xFFFFF;
    if (f.version == Version::v2) params.udp_sport = load_be16(f.transport.data() - 8);

    HeaderTemplate t(params);
    std::vector<std::uint8_t> out(t.size() + length);
    t.write(out.data(), length);
    std::memcpy(out.data() + t.size(), f.transport.data(), length);
    std::vector<std::uint8_t> icrc(4);
    wire::icrc_store(icrc.data(), t.icrc(out.data(), length));
    frame.resize(frame.size() - 4);
    CHECK(out == frame);
    CHECK(icrc == hex(v.icrc));
  }
}
