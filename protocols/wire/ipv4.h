// IPv4 header (RFC 791 s3.1). We send none with options.
#pragma once

#include "protocols/common/bytes.h"
#include "protocols/wire/inet_checksum.h"

namespace softrnic::wire {

inline constexpr std::uint8_t kIpProtoIcmp = 1;
inline constexpr std::uint8_t kIpProtoTcp = 6;
inline constexpr std::uint8_t kIpProtoUdp = 17;

// The header as values; addresses as big-endian numbers (10.0.0.1 is 0x0A000001).
struct Ipv4Header {
  static constexpr std::uint32_t kSize = 20;
  static constexpr std::uint16_t kDontFragment = 0x4000;
  static constexpr std::uint16_t kMoreFragments = 0x2000;
  static constexpr std::uint16_t kOffsetMask = 0x1FFF;
  std::uint8_t tos = 0;
  std::uint16_t total_length = 0;  // header included
  std::uint16_t id = 0;
  std::uint16_t flags_offset = kDontFragment;
  std::uint8_t ttl = 64;
  std::uint8_t protocol = 0;
  std::uint32_t src = 0;
  std::uint32_t dst = 0;

  // Writes kSize bytes, checksum included.
  void store(std::uint8_t* p) const {
    p[0] = 0x45;
    p[1] = tos;
    store_be16(p + 2, total_length);
    store_be16(p + 4, id);
    store_be16(p + 6, flags_offset);
    p[8] = ttl;
    p[9] = protocol;
    store_be16(p + 10, 0);
    store_be32(p + 12, src);
    store_be32(p + 16, dst);
    store_be16(p + 10, static_cast<std::uint16_t>(~inet_fold(inet_sum(p, kSize))));
  }
};

// The header in a packet of at least Ipv4Header::kSize bytes. Nothing is checked by the accessors.
class Ipv4View {
 public:
  explicit Ipv4View(const std::uint8_t* p) : p_(p) {}
  unsigned version() const { return p_[0] >> 4; }
  std::uint32_t header_length() const { return (p_[0] & 0x0Fu) * 4; }  // bytes
  std::uint8_t tos() const { return p_[1]; }
  std::uint16_t total_length() const { return load_be16(p_ + 2); }
  std::uint16_t id() const { return load_be16(p_ + 4); }
  bool is_fragment() const { return (load_be16(p_ + 6) & (Ipv4Header::kMoreFragments | Ipv4Header::kOffsetMask)) != 0; }
  std::uint16_t fragment_offset() const { return load_be16(p_ + 6) & Ipv4Header::kOffsetMask; }
  std::uint8_t ttl() const { return p_[8]; }
  std::uint8_t protocol() const { return p_[9]; }
  const std::uint8_t* src() const { return p_ + 12; }
  const std::uint8_t* dst() const { return p_ + 16; }
  // Checksum of a header without options.
  bool checksum_ok() const { return inet_fold(inet_sum(p_, Ipv4Header::kSize)) == 0xFFFFu; }

 private:
  const std::uint8_t* p_;
};

}  // namespace softrnic::wire
