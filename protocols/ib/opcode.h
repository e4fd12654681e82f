// Transport opcodes and what their packets look like (IBA 9.2.2, table 38).
#pragma once

#include <array>

#include "protocols/common/types.h"

namespace softrnic::ib {

// Operation part of the opcode, bits [4:0]. The transport stands in bits [7:5].
enum class Op : std::uint8_t {
  send_first = 0x00,
  send_middle = 0x01,
  send_last = 0x02,
  send_last_imm = 0x03,
  send_only = 0x04,
  send_only_imm = 0x05,
  write_first = 0x06,
  write_middle = 0x07,
  write_last = 0x08,
  write_last_imm = 0x09,
  write_only = 0x0A,
  write_only_imm = 0x0B,
  read_request = 0x0C,
  read_resp_first = 0x0D,
  read_resp_middle = 0x0E,
  read_resp_last = 0x0F,
  read_resp_only = 0x10,
  acknowledge = 0x11,
  atomic_ack = 0x12,
  cmp_swap = 0x13,
  fetch_add = 0x14,
  send_last_inv = 0x16,
  send_only_inv = 0x17,
};

// Bits [7:5] of the opcode, in place.
inline constexpr std::uint8_t kTransportMask = 0xE0;
inline constexpr std::uint8_t kTransportRc = 0x00;
inline constexpr std::uint8_t kTransportUc = 0x20;
inline constexpr std::uint8_t kTransportUd = 0x60;

constexpr std::uint8_t opcode_of(std::uint8_t transport, Op op) {
  return static_cast<std::uint8_t>(transport | static_cast<std::uint8_t>(op));
}

// What a packet belongs to.
enum class OpKind : std::uint8_t { none, send, write, read_request, atomic, read_response, ack, atomic_ack };

// Payload length rule (IBA 9.7.4.1.6, C9-92), P = path MTU.
enum class PayloadRule : std::uint8_t {
  empty,       // no payload
  full,        // exactly P, no pad
  one_to_mtu,  // 1..P
  up_to_mtu,   // 0..P
};

struct OpcodeInfo {
  const char* name = nullptr;  // null: unknown opcode
  OpKind kind = OpKind::none;
  PayloadRule payload = PayloadRule::empty;
  bool request = false;
  bool first = false;           // begins a message (First or Only)
  bool last = false;            // ends a message (Last or Only)
  bool imm = false;             // carries ImmDt
  bool inv = false;             // carries IETH
  std::uint8_t header_len = 0;  // BTH and extended headers
  // Offsets from the BTH's first byte; 0 when the header is absent.
  std::uint8_t deth = 0, reth = 0, atomic_eth = 0, aeth = 0, atomic_ack_eth = 0, imm_dt = 0, ieth = 0;

  bool known() const { return name != nullptr; }
  bool only() const { return first && last; }
};

extern const std::array<OpcodeInfo, 256> kOpcodeTable;

// Entry of an opcode byte; unknown ones have known() == false.
inline const OpcodeInfo& opcode_info(std::uint8_t opcode) { return kOpcodeTable[opcode]; }

}  // namespace softrnic::ib
