// UDP header (RFC 768).
#pragma once

#include "protocols/common/bytes.h"

namespace softrnic::wire {

// The header as values.
struct UdpHeader {
  static constexpr std::uint32_t kSize = 8;
  std::uint16_t src_port = 0;
  std::uint16_t dst_port = 0;
  std::uint16_t length = 0;    // header included
  std::uint16_t checksum = 0;  // 0: none

  // Writes kSize bytes.
  void store(std::uint8_t* p) const {
    store_be16(p, src_port);
    store_be16(p + 2, dst_port);
    store_be16(p + 4, length);
    store_be16(p + 6, checksum);
  }
};
static_assert(UdpHeader::kSize == sizeof(UdpHeader));

// The header in a packet of at least UdpHeader::kSize bytes.
class UdpView {
 public:
  explicit UdpView(const std::uint8_t* p) : p_(p) {}
  std::uint16_t src_port() const { return load_be16(p_); }
  std::uint16_t dst_port() const { return load_be16(p_ + 2); }
  std::uint16_t length() const { return load_be16(p_ + 4); }
  std::uint16_t checksum() const { return load_be16(p_ + 6); }

 private:
  const std::uint8_t* p_;
};

}  // namespace softrnic::wire
