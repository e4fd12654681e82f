// IPv6 header (RFC 8200 s3).
#pragma once

#include "protocols/common/bytes.h"
#include "protocols/common/types.h"

namespace softrnic::wire {

inline constexpr std::uint8_t kIpv6FragmentHeader = 44;

// The header as values.
struct Ipv6Header {
  static constexpr std::uint32_t kSize = 40;
  std::uint8_t traffic_class = 0;
  std::uint32_t flow_label = 0;      // 20 bits
  std::uint16_t payload_length = 0;  // what follows the header
  std::uint8_t next_header = 0;
  std::uint8_t hop_limit = 64;
  Gid src{};
  Gid dst{};

  // Writes kSize bytes.
  void store(std::uint8_t* p) const {
    store_be32(p, 6u << 28 | static_cast<std::uint32_t>(traffic_class) << 20 | (flow_label & 0xFFFFFu));
    store_be16(p + 4, payload_length);
    p[6] = next_header;
    p[7] = hop_limit;
    std::memcpy(p + 8, src.raw, 16);
    std::memcpy(p + 24, dst.raw, 16);
  }
};

// The header in a packet of at least Ipv6Header::kSize bytes. Nothing is checked by the accessors.
class Ipv6View {
 public:
  explicit Ipv6View(const std::uint8_t* p) : p_(p) {}
  unsigned version() const { return p_[0] >> 4; }
  std::uint8_t traffic_class() const { return static_cast<std::uint8_t>(load_be32(p_) >> 20); }
  std::uint32_t flow_label() const { return load_be32(p_) & 0xFFFFFu; }
  std::uint16_t payload_length() const { return load_be16(p_ + 4); }
  std::uint8_t next_header() const { return p_[6]; }
  std::uint8_t hop_limit() const { return p_[7]; }
  Gid src() const { return gid_at(8); }
  Gid dst() const { return gid_at(24); }

 private:
  Gid gid_at(int offset) const {
    Gid g;
    std::memcpy(g.raw, p_ + offset, 16);
    return g;
  }
  const std::uint8_t* p_;
};

}  // namespace softrnic::wire
