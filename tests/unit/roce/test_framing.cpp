// Writing and parsing of frames.
#include <catch2/catch.hpp>
#include <functional>

#include "protocols/wire/ipv4.h"
#include "tests/unit/roce/frames.h"

using namespace softrnic;
using namespace softrnic::roce;
using namespace softrnic::test;

namespace {

void fix_ipv4_checksum(std::vector<std::uint8_t>& f) {
  store_be16(&f[kL3 + 10], 0);
  store_be16(&f[kL3 + 10], static_cast<std::uint16_t>(~wire::inet_fold(wire::inet_sum(&f[kL3], 20))));
}

Gid gid(const char* text) {
  Gid g;
  std::memcpy(g.raw, hex(text).data(), 16);
  return g;
}

FrameError parse_error(const std::vector<std::uint8_t>& f) {
  // A buffer of its own, so that a sanitizer sees any read behind the end.
  const std::vector<std::uint8_t> copy(f);
  RxFrame r;
  return parse(copy, &r);
}

}  // namespace

TEST_CASE("IBA A17.3.1, RFC 6864 s4.1: RoCE v2 over IPv4 is written as the annex says", "[framing]") {
  const auto f = frame_of(Framing::v2_ipv4, 5);
  CHECK(HeaderTemplate(path_of(Framing::v2_ipv4)).size() == 42);
  CHECK(std::vector<std::uint8_t>(f.begin(), f.begin() + 14) == hex("5254001234575254001234560800"));
  const wire::Ipv4View ip(&f[14]);
  CHECK(f[14] == 0x45);
  CHECK(ip.tos() == 0x6A);
  CHECK(ip.total_length() == f.size() - 14);
  CHECK(ip.id() == 0);
  CHECK(load_be16(&f[20]) == 0x4000);  // DF, no fragment
  CHECK(ip.ttl() == 17);
  CHECK(ip.protocol() == 17);
  CHECK(ip.checksum_ok());
  CHECK(load_be32(ip.src()) == 0x0A000001);
  CHECK(load_be32(ip.dst()) == 0x0A000002);
  CHECK(load_be16(&f[34]) == 0xE341);
  CHECK(load_be16(&f[36]) == 4791);
  CHECK(load_be16(&f[38]) == f.size() - 34);
  CHECK(load_be16(&f[40]) == 0);
}

TEST_CASE("IBA A17.3.1: RoCE v2 over IPv6 is written as the annex says", "[framing]") {
  const auto f = frame_of(Framing::v2_ipv6, 5);
  CHECK(HeaderTemplate(path_of(Framing::v2_ipv6)).size() == 62);
  CHECK(load_be16(&f[12]) == 0x86DD);
  CHECK(load_be32(&f[14]) == 0x66A12345);
  CHECK(load_be16(&f[18]) == f.size() - 54);
  CHECK(f[20] == 17);
  CHECK(f[21] == 17);  // hop limit
  CHECK(std::memcmp(&f[22], path_of(Framing::v2_ipv6).sgid.raw, 16) == 0);
  CHECK(std::memcmp(&f[38], path_of(Framing::v2_ipv6).dgid.raw, 16) == 0);
  CHECK(load_be16(&f[56]) == 4791);
  CHECK(load_be16(&f[58]) == f.size() - 54);
  CHECK(load_be16(&f[60]) == 0);
}

TEST_CASE("IBA A16.4.1: RoCE v1 is a GRH behind EtherType 0x8915", "[framing]") {
  const auto f = frame_of(Framing::v1, 5);
  CHECK(HeaderTemplate(path_of(Framing::v1)).size() == 54);
  CHECK(load_be16(&f[12]) == 0x8915);
  CHECK(load_be32(&f[14]) == 0x66A12345);
  CHECK(load_be16(&f[18]) == f.size() - 54);
  CHECK(f[20] == 0x1B);
  CHECK(f[21] == 17);
}

TEST_CASE("IBA A16.4.1: RoCE v1 carries an IPv4-mapped GID in a GRH", "[framing]") {
  PathParams p = path_of(Framing::v2_ipv4);
  p.version = Version::v1;
  const auto f = frame_of(HeaderTemplate(p), transport_of(8));
  RxFrame r;
  REQUIRE(parse(f, &r) == FrameError::none);
  CHECK(r.version == Version::v1);
  CHECK_FALSE(r.ipv4);
  CHECK(r.sgid == p.sgid);
  CHECK(r.dgid == p.dgid);
  CHECK(icrc_ok(r));
}

TEST_CASE("IEEE 802.1Q: a VLAN tag carries priority and VLAN id", "[framing]") {
  for (const Framing k : kFramings) {
    INFO(name_of(k));
    const auto plain = frame_of(k, 5), f = frame_of(k, 5, true);
    CHECK(HeaderTemplate(path_of(k, true)).size() == bth_of(k) + 4);
    CHECK(load_be16(&f[12]) == 0x8100);
    CHECK(load_be16(&f[14]) == (5u << 13 | 0x123u));
    auto untagged = f;
    untagged.erase(untagged.begin() + 12, untagged.begin() + 16);
    CHECK(untagged == plain);
    RxFrame r;
    REQUIRE(parse(f, &r) == FrameError::none);
    CHECK(r.has_vlan);
    CHECK(r.vlan_tci == (5u << 13 | 0x123u));
  }
}

TEST_CASE("RFC 791: the IPv4 checksum is right for every length", "[framing]") {
  HeaderTemplate t(path_of(Framing::v2_ipv4));
  std::uint8_t f[HeaderTemplate::kMaxSize];
  for (std::uint32_t n = 12; n <= 9000; n += 4) {
    t.write(f, n);
    REQUIRE(wire::Ipv4View(f + kL3).checksum_ok());
  }
}

TEST_CASE("A template writes its size and not a byte more", "[framing]") {
  for (const Framing k : kFramings) {
    for (const bool vlan : {false, true}) {
      HeaderTemplate t(path_of(k, vlan));
      std::vector<std::uint8_t> exact(t.size());
      t.write(exact.data(), 100);
      std::vector<std::uint8_t> roomy(t.size() + 64, 0xEE);
      t.write(roomy.data(), 100);
      CHECK(std::equal(exact.begin(), exact.end(), roomy.begin()));
      for (std::size_t i = t.size(); i < roomy.size(); ++i) REQUIRE(roomy[i] == 0xEE);
    }
  }
}

TEST_CASE("A frame comes apart into what it was made of", "[framing]") {
  for (const Framing k : kFramings) {
    for (std::size_t n = 0; n < 9; ++n) {
      INFO(name_of(k) << " payload " << n);
      const PathParams p = path_of(k);
      const auto transport = transport_of(n);
      auto f = frame_of(HeaderTemplate(p), transport);
      for (const std::size_t trailing : {0, 1, 18, 46}) {  // Ethernet padding behind the ICRC
        auto padded = f;
        padded.resize(f.size() + trailing);
        RxFrame r;
        REQUIRE(parse(padded, &r) == FrameError::none);
        CHECK(r.version == p.version);
        CHECK(r.ipv4 == (k == Framing::v2_ipv4));
        CHECK(r.sgid == p.sgid);
        CHECK(r.dgid == p.dgid);
        CHECK_FALSE(r.has_vlan);
        CHECK(r.traffic_class == p.traffic_class);
        CHECK(r.hop_limit == p.hop_limit);
        CHECK(r.l3 == padded.data() + kL3);
        CHECK(std::vector<std::uint8_t>(r.transport.begin(), r.transport.end()) == transport);
        CHECK(icrc_ok(r));
      }
    }
  }
}

TEST_CASE("IBA A17.3.1: the template of a received frame knows frames with the same headers", "[framing]") {
  for (const Framing framing : kFramings) {
    const auto f = frame_of(framing, 5);
    RxFrame parsed;
    REQUIRE(parse(f, &parsed) == FrameError::none);
    HeaderTemplate t = HeaderTemplate::of(f, parsed);
    REQUIRE(t.size() == parsed.transport.data() - f.data());
    CHECK(t.matches(f));
    // Another size of the same path, and its ICRC.
    const auto longer = frame_of(framing, 300);
    CHECK(t.matches(longer));
    const auto transport = static_cast<std::uint32_t>(longer.size()) - t.size() - 4;
    std::uint32_t stored;
    std::memcpy(&stored, &longer[longer.size() - 4], 4);
    CHECK(t.icrc(longer.data(), transport) == stored);
    // Any bit of the headers, and what parse() looks at behind them.
    std::string accepted;
    for (std::uint32_t i = 0; i < t.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        auto changed = f;
        changed[i] ^= static_cast<std::uint8_t>(1 << bit);
        if (t.matches(changed)) accepted += std::to_string(i) + " ";
      }
    }
    CHECK(accepted == "");
    auto version = f;
    version[t.size() + 1] |= 1;
    CHECK_FALSE(t.matches(version));
    // Lengths that do not fit the frame.
    for (std::size_t size = 0; size < f.size(); ++size) {
      if (t.matches(Bytes(std::vector<std::uint8_t>(f.begin(), f.begin() + static_cast<long>(size)))))
        accepted += "cut";
    }
    auto padded = f;
    padded.resize(padded.size() + 4);
    CHECK_FALSE(t.matches(padded));
    CHECK(accepted == "");
  }
  CHECK_FALSE(HeaderTemplate().matches(frame_of(Framing::v2_ipv4, 5)));
}

TEST_CASE("A frame cut anywhere is refused", "[framing]") {
  for (const Framing k : kFramings) {
    for (const bool vlan : {false, true}) {
      const auto f = frame_of(k, 4, vlan);
      for (std::size_t n = 0; n < f.size(); ++n) {
        INFO(name_of(k) << " " << n << " bytes");
        CHECK(parse_error({f.begin(), f.begin() + static_cast<std::ptrdiff_t>(n)}) != FrameError::none);
      }
    }
  }
}

TEST_CASE("IBA 9.6.1.1, A17.3.1: malformed frames are told apart", "[framing]") {
  struct Case {
    const char* name;
    Framing framing;
    FrameError error;
    std::function<void(std::vector<std::uint8_t>&)> damage;
  };
  using F = std::vector<std::uint8_t>;
  constexpr auto v4 = Framing::v2_ipv4;
  constexpr auto v6 = Framing::v2_ipv6;
  constexpr auto v1 = Framing::v1;
  auto set = [](std::size_t at, std::uint8_t value) { return [=](F& f) { f[at] = value; }; };
  auto set_v4 = [](std::size_t at, std::uint8_t value) {
    return [=](F& f) {
      f[at] = value;
      fix_ipv4_checksum(f);
    };
  };
  const Case cases[] = {
      {"no Ethernet header", v4, FrameError::too_short, [](F& f) { f.resize(13); }},
      {"no IPv4 header", v4, FrameError::too_short, [](F& f) { f.resize(33); }},
      {"no IPv6 header", v6, FrameError::too_short, [](F& f) { f.resize(53); }},
      {"no GRH", v1, FrameError::too_short, [](F& f) { f.resize(53); }},
      {"no UDP header, IPv4", v4, FrameError::too_short, set_v4(kL3 + 3, 27)},
      {"no UDP header, IPv6", v6, FrameError::too_short, set(kL3 + 5, 7)},
      {"BTH without ICRC, IPv4", v4, FrameError::too_short,
       [](F& f) {
         f[kL3 + 3] = 20 + 8 + 12;
         f[39] = 8 + 12;
         fix_ipv4_checksum(f);
       }},
      {"BTH without ICRC, IPv6", v6, FrameError::too_short, [](F& f) { f[19] = f[59] = 8 + 12; }},
      {"BTH without ICRC, v1", v1, FrameError::too_short, set(19, 12)},
      {"nothing in the GRH", v1, FrameError::too_short, set(19, 0)},
      {"EtherType ARP", v4, FrameError::not_roce, set(13, 0x06)},
      {"EtherType of v1 but for one bit", v1, FrameError::not_roce, set(13, 0x14)},
      {"two VLAN tags", v4, FrameError::not_roce,
       [](F& f) {
         const auto tags = hex("8100000181000002");
         f.insert(f.begin() + 12, tags.begin(), tags.end());
       }},
      {"IPv4 protocol TCP", v4, FrameError::not_roce, set_v4(kL3 + 9, 6)},
      {"IPv6 next header TCP", v6, FrameError::not_roce, set(20, 6)},
      {"GRH next header UDP", v1, FrameError::not_roce, set(20, 17)},
      {"UDP port 53, IPv4", v4, FrameError::not_roce, [](F& f) { store_be16(&f[36], 53); }},
      {"UDP port 53, IPv6", v6, FrameError::not_roce, [](F& f) { store_be16(&f[56], 53); }},
      {"UDP port 53 with IPv4 options", v4, FrameError::not_roce,
       [](F& f) {
         f[kL3] = 0x46;
         store_be16(&f[40], 53);
       }},
      {"IPv4 version 5", v4, FrameError::bad_ip_header, set_v4(kL3, 0x55)},
      {"IPv4 header of 16 bytes", v4, FrameError::bad_ip_header, set_v4(kL3, 0x44)},
      {"IPv4 with options", v4, FrameError::bad_ip_header,
       [](F& f) {
         f[kL3] = 0x46;
         f.insert(f.begin() + 34, 4, 1);
         f[kL3 + 3] = static_cast<std::uint8_t>(f[kL3 + 3] + 4);
       }},
      {"IPv4 checksum", v4, FrameError::bad_ip_header, set(kL3 + 8, 18)},
      {"IPv4 total length behind the end", v4, FrameError::bad_ip_header, set_v4(kL3 + 2, 1)},
      {"IPv4 total length below the header", v4, FrameError::bad_ip_header, set_v4(kL3 + 3, 19)},
      {"IPv6 version 4", v6, FrameError::bad_ip_header, set(kL3, 0x46)},
      {"IPv6 payload length behind the end", v6, FrameError::bad_ip_header, set(18, 1)},
      {"GRH version 4", v1, FrameError::bad_ip_header, set(kL3, 0x46)},
      {"first IPv4 fragment", v4, FrameError::fragmented, set_v4(kL3 + 6, 0x20)},
      {"later IPv4 fragment", v4, FrameError::fragmented, set_v4(kL3 + 7, 0x05)},
      {"IPv6 fragment header", v6, FrameError::fragmented, set(20, 44)},
      {"UDP length too long", v4, FrameError::bad_length, [](F& f) { f[39] += 4; }},
      {"UDP length too short", v4, FrameError::bad_length, [](F& f) { f[39] -= 4; }},
      {"UDP length, IPv6", v6, FrameError::bad_length, [](F& f) { f[59] += 4; }},
      {"GRH length behind the end", v1, FrameError::bad_length, set(18, 1)},
      {"transport not of whole words, IPv4", v4, FrameError::bad_length,
       [](F& f) {
         f[kL3 + 3] -= 2;
         f[39] -= 2;
         fix_ipv4_checksum(f);
       }},
      {"transport not of whole words, IPv6", v6, FrameError::bad_length, [](F& f) { f[19] -= 1, f[59] -= 1; }},
      {"transport not of whole words, v1", v1, FrameError::bad_length, [](F& f) { f[19] -= 3; }},
      {"BTH version 1, IPv4", v4, FrameError::bad_transport_version, [](F& f) { f[43] |= 1; }},
      {"BTH version 8, IPv6", v6, FrameError::bad_transport_version, [](F& f) { f[63] |= 8; }},
      {"BTH version 15, v1", v1, FrameError::bad_transport_version, [](F& f) { f[55] |= 15; }},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    auto f = frame_of(c.framing, 20);
    REQUIRE(parse_error(f) == FrameError::none);
    c.damage(f);
    CHECK(static_cast<int>(parse_error(f)) == static_cast<int>(c.error));
  }
}

TEST_CASE("IBA A17.3.1: any source port and any UDP checksum are taken", "[framing]") {
  auto f = frame_of(Framing::v2_ipv4, 20);
  store_be16(&f[40], 0x1234);
  CHECK(parse_error(f) == FrameError::none);
  PathParams p = path_of(Framing::v2_ipv4);
  p.udp_sport = 0;
  CHECK(parse_error(frame_of(HeaderTemplate(p), transport_of(0))) == FrameError::none);
}

TEST_CASE("IBA A17.9.2: the GRH area of a UD receive", "[framing]") {
  for (const Framing k : kFramings) {
    INFO(name_of(k));
    const auto f = frame_of(k, 4);
    RxFrame r;
    REQUIRE(parse(f, &r) == FrameError::none);
    std::uint8_t area[40];
    std::memset(area, 0xEE, sizeof area);
    write_grh_area(r, area);
    if (k == Framing::v2_ipv4) {
      for (int i = 0; i < 20; ++i) CHECK(area[i] == 0);
      CHECK(std::memcmp(area + 20, &f[kL3], 20) == 0);
    } else {
      CHECK(std::memcmp(area, &f[kL3], 40) == 0);
    }
  }
}

TEST_CASE("UDP source ports spread flows", "[framing]") {
  CHECK(udp_sport_of_flow_label(0) == 0xC000);
  CHECK(udp_sport_of_flow_label(1) == 0xC001);
  CHECK(udp_sport_of_flow_label(0x12345) == 0xE341);
  CHECK(udp_sport_of_flow_label(0xFFFFF) == 0xFFC0);
  CHECK(udp_sport_of_flow_label(0x4000) == 0xC001);
  CHECK(udp_sport_of_flow_label(0xFFF00001) == 0xC001);  // a flow label has 20 bits

  struct Pair {
    std::uint32_t l, r, flow_label;
    std::uint16_t sport;
  };
  for (const Pair& q : {Pair{0x11, 0x12, 0x132, 0xC132}, Pair{0x123456, 0x654321, 0xA77AE, 0xF787},
                        Pair{0xFFFFFF, 0xFFFFFF, 0xFFF1E, 0xFF21}}) {
    CHECK(flow_label_of_qpns(q.l, q.r) == q.flow_label);
    CHECK(flow_label_of_qpns(q.r, q.l) == q.flow_label);
    CHECK(udp_sport_of_flow_label(q.flow_label) == q.sport);
  }
}

TEST_CASE("RFC 1112 s6.4, RFC 2464 s7: MAC of a multicast GID", "[framing]") {
  std::uint8_t mac[6];
  multicast_mac(gid("00000000000000000000ffffef010203"), mac);
  CHECK(std::vector<std::uint8_t>(mac, mac + 6) == hex("01005e010203"));
  multicast_mac(gid("00000000000000000000ffffefff0203"), mac);  // 23 bits of the group
  CHECK(std::vector<std::uint8_t>(mac, mac + 6) == hex("01005e7f0203"));
  multicast_mac(gid("ff0e0000000000000000000100020003"), mac);
  CHECK(std::vector<std::uint8_t>(mac, mac + 6) == hex("333300020003"));
}

TEST_CASE("IPv4-mapped GIDs are recognised", "[framing]") {
  CHECK(is_ipv4_mapped(gid("00000000000000000000ffff0a000001")));
  CHECK(is_ipv4_mapped(gid("00000000000000000000ffff00000000")));
  CHECK_FALSE(is_ipv4_mapped(gid("000000000000000000000000000a0001")));
  CHECK_FALSE(is_ipv4_mapped(gid("00000000000000000001ffff0a000001")));
  CHECK_FALSE(is_ipv4_mapped(gid("fe80000000000000505400fffe123456")));
}
