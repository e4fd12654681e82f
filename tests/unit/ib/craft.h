// Packets written by hand, for what a well-behaved peer never sends.
#pragma once

#include "tests/unit/ib/pair.h"

namespace softrnic::test {

struct Craft {
  std::uint8_t opcode = 0;
  std::uint32_t psn = 0;
  std::uint32_t payload = 0;  // bytes, of value 0x5A
  bool ack_req = true;
  std::uint64_t va = 0;
  std::uint32_t rkey = 0;
  std::uint32_t dma_len = 0;
  std::uint64_t swap_or_add = 0, compare = 0;
  std::uint8_t syndrome = 0;
  std::uint32_t msn = 0;
  std::uint32_t qkey = 0x1234;
  std::uint32_t inv_rkey = 0;
  std::uint16_t pkey = 0xFFFF;

  Packet make() const {
    const OpcodeInfo& info = opcode_info(opcode);
    Packet p;
    const std::uint32_t pad = -payload & 3;
    p.bytes.resize((info.known() ? info.header_len : 12) + payload + pad);
    wire::Bth bth;
    bth.opcode = opcode;
    bth.pad_count = static_cast<std::uint8_t>(pad);
    bth.dest_qpn = 0x12;
    bth.ack_req = ack_req;
    bth.psn = psn;
    bth.pkey = pkey;
    bth.write(p.bytes.data());
    std::uint8_t* b = p.bytes.data();
    if (info.deth != 0) wire::Deth{qkey, 0x11}.write(b + info.deth);
    if (info.reth != 0) wire::Reth{va, rkey, dma_len}.write(b + info.reth);
    if (info.atomic_eth != 0) wire::AtomicEth{va, rkey, swap_or_add, compare}.write(b + info.atomic_eth);
    if (info.aeth != 0) wire::Aeth{syndrome, msn}.write(b + info.aeth);
    if (info.ieth != 0) wire::Ieth{inv_rkey}.write(b + info.ieth);
    if (info.known()) std::memset(b + info.header_len, 0x5A, payload);
    return p;
  }
};

inline Craft rc(Op op, std::uint32_t psn, std::uint32_t payload = 0) {
  Craft c;
  c.opcode = opcode_of(kTransportRc, op);
  c.psn = psn;
  c.payload = payload;
  return c;
}
inline Craft uc(Op op, std::uint32_t psn, std::uint32_t payload = 0) {
  Craft c = rc(op, psn, payload);
  c.opcode = opcode_of(kTransportUc, op);
  return c;
}
inline Craft ud(Op op, std::uint32_t payload = 0) {
  Craft c = rc(op, 0, payload);
  c.opcode = opcode_of(kTransportUd, op);
  return c;
}

}  // namespace softrnic::test
