// Base Transport Header (IBA 9.2): 12 bytes that begin every transport packet.
//
//   w0  OpCode[31:24] SE[23] M[22] PadCnt[21:20] TVer[19:16] P_Key[15:0]
//   w1  FECN[31] BECN[30] reserved[29:24] DestQP[23:0]
//   w2  AckReq[31] reserved[30:24] PSN[23:0]
#pragma once

#include "protocols/common/bytes.h"
#include "protocols/common/types.h"

namespace softrnic::wire {

inline constexpr std::size_t kBthSize = 12;

// A BTH as values, for writing one.
struct Bth {
  std::uint8_t opcode = 0;
  bool solicited = false;      // SE
  bool mig_req = true;         // M: 1 is "migrated", what hardware sends without path migration
  std::uint8_t pad_count = 0;  // 0..3
  std::uint16_t pkey = 0xFFFF;
  bool fecn = false;
  bool becn = false;
  std::uint32_t dest_qpn = 0;  // 24 bits
  bool ack_req = false;
  std::uint32_t psn = 0;  // 24 bits

  // Writes kBthSize bytes. TVer and the reserved bits are 0.
  void write(std::uint8_t* p) const {
    store_be32(p, static_cast<std::uint32_t>(opcode) << 24 | static_cast<std::uint32_t>(solicited) << 23 |
                      static_cast<std::uint32_t>(mig_req) << 22 | static_cast<std::uint32_t>(pad_count) << 20 | pkey);
    store_be32(p + 4, static_cast<std::uint32_t>(fecn) << 31 | static_cast<std::uint32_t>(becn) << 30 | dest_qpn);
    store_be32(p + 8, static_cast<std::uint32_t>(ack_req) << 31 | psn);
  }
};

// Reads the fields of kBthSize bytes in place.
class BthView {
 public:
  explicit BthView(const std::uint8_t* p) : p_(p) {}

  std::uint8_t opcode() const { return p_[0]; }
  bool solicited() const { return (p_[1] & 0x80) != 0; }
  bool mig_req() const { return (p_[1] & 0x40) != 0; }
  std::uint8_t pad_count() const { return (p_[1] >> 4) & 3; }
  std::uint8_t tver() const { return p_[1] & 0xF; }
  std::uint16_t pkey() const { return load_be16(p_ + 2); }
  bool fecn() const { return (p_[4] & 0x80) != 0; }
  bool becn() const { return (p_[4] & 0x40) != 0; }
  std::uint32_t dest_qpn() const { return load_be24(p_ + 5); }
  bool ack_req() const { return (p_[8] & 0x80) != 0; }
  std::uint32_t psn() const { return load_be24(p_ + 9); }

 private:
  const std::uint8_t* p_;
};

}  // namespace softrnic::wire
