// Helpers of the RoCE tests: hex, an independent CRC, and frames of every framing.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "protocols/common/bytes.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/icrc.h"

namespace softrnic::test {

inline std::vector<std::uint8_t> hex(std::string_view text) {
  auto digit = [](char c) { return static_cast<std::uint8_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10); };
  std::vector<std::uint8_t> out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    out.push_back(static_cast<std::uint8_t>(digit(text[i]) << 4 | digit(text[i + 1])));
  }
  return out;
}

// State of the reflected CRC-32 after `n` bytes from the state of all ones, a bit at a time.
inline std::uint32_t crc_bitwise(const std::uint8_t* p, std::size_t n) {
  std::uint32_t c = 0xFFFFFFFFu;
  for (std::size_t i = 0; i < n; ++i) {
    c ^= p[i];
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) ? (c >> 1) ^ 0xEDB88320u : c >> 1;
  }
  return c;
}

// The framings there are.
enum class Framing { v2_ipv4, v2_ipv6, v1 };
inline constexpr Framing kFramings[] = {Framing::v2_ipv4, Framing::v2_ipv6, Framing::v1};

inline const char* name_of(Framing f) {
  return f == Framing::v2_ipv4 ? "v2 over IPv4" : f == Framing::v2_ipv6 ? "v2 over IPv6" : "v1";
}

inline roce::PathParams path_of(Framing f, bool vlan = false) {
  roce::PathParams p;
  p.version = f == Framing::v1 ? roce::Version::v1 : roce::Version::v2;
  const std::uint8_t dst[] = {0x52, 0x54, 0, 0x12, 0x34, 0x57}, src[] = {0x52, 0x54, 0, 0x12, 0x34, 0x56};
  std::memcpy(p.dst_mac, dst, 6);
  std::memcpy(p.src_mac, src, 6);
  const char* s = f == Framing::v2_ipv4 ? "00000000000000000000ffff0a000001" : "fe80000000000000505400fffe123456";
  const char* d = f == Framing::v2_ipv4 ? "00000000000000000000ffff0a000002" : "fe80000000000000505400fffe123457";
  std::memcpy(p.sgid.raw, hex(s).data(), 16);
  std::memcpy(p.dgid.raw, hex(d).data(), 16);
  p.has_vlan = vlan;
  p.vlan_id = vlan ? 0x123 : 0;
  p.priority = vlan ? 5 : 0;
  p.traffic_class = 0x6A;
  p.flow_label = 0x12345;
  p.hop_limit = 17;
  p.udp_sport = 0xE341;
  return p;
}

// A transport packet: a BTH (RC SEND Only) and `payload` bytes that end in pad to a multiple of 4.
inline std::vector<std::uint8_t> transport_of(std::size_t payload) {
  std::vector<std::uint8_t> t = hex("0440ffff0012345680abcdef");
  for (std::size_t i = 0; i < payload; ++i) t.push_back(static_cast<std::uint8_t>(i * 29 + 3));
  const std::size_t pad = (4 - payload % 4) % 4;
  t[1] = static_cast<std::uint8_t>(t[1] | pad << 4);
  t.resize(t.size() + pad);
  return t;
}

// The complete frame, ICRC included, as a sender makes it.
inline std::vector<std::uint8_t> frame_of(roce::HeaderTemplate t, const std::vector<std::uint8_t>& transport) {
  const auto length = static_cast<std::uint32_t>(transport.size());
  std::vector<std::uint8_t> f(t.size() + length + 4, 0xEE);
  t.write(f.data(), length);
  std::memcpy(f.data() + t.size(), transport.data(), length);
  wire::icrc_store(f.data() + t.size() + length, t.icrc(f.data(), length));
  return f;
}
inline std::vector<std::uint8_t> frame_of(Framing f, std::size_t payload = 20, bool vlan = false) {
  return frame_of(roce::HeaderTemplate(path_of(f, vlan)), transport_of(payload));
}

// Where the network header starts, and the BTH, in a frame without VLAN tag.
inline constexpr std::size_t kL3 = 14;
inline std::size_t bth_of(Framing f) { return f == Framing::v2_ipv4 ? 42 : f == Framing::v2_ipv6 ? 62 : 54; }

// The ICRC by the text of the specification: a copy of the packet with the fields of its table set to ones,
// behind eight bytes of ones.
inline std::uint32_t icrc_by_the_book(Framing f, const std::vector<std::uint8_t>& frame, std::size_t l3) {
  std::vector<std::uint8_t> m(8 + frame.size() - l3 - 4, 0xFF);
  std::memcpy(m.data() + 8, frame.data() + l3, m.size() - 8);
  std::uint8_t* h = m.data() + 8;
  auto ones = [&](std::size_t at) { h[at] = 0xFF; };
  if (f == Framing::v2_ipv4) {
    for (std::size_t at : {1, 8, 10, 11, 26, 27}) ones(at);
  } else {
    h[0] |= 0x0F;
    for (std::size_t at : {1, 2, 3, 7}) ones(at);
    if (f == Framing::v2_ipv6) {
      ones(46);
      ones(47);
    }
  }
  ones(bth_of(f) - kL3 + 4);
  return ~crc_bitwise(m.data(), m.size());
}

}  // namespace softrnic::test
