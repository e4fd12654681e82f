#include "protocols/ib/opcode.h"

#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::ib {
namespace {

// Position of a packet in its message.
enum Position : unsigned { kFirst = 1, kMiddle = 0, kLast = 2, kOnly = 3 };
// Extended headers in wire order.
enum Eth : unsigned { kDeth = 1, kReth = 2, kAtomicEth = 4, kAeth = 8, kAtomicAckEth = 16, kImm = 32, kInv = 64 };

using Table = std::array<OpcodeInfo, 256>;

constexpr void add(Table& t, std::uint8_t opcode, const char* name, OpKind kind, unsigned position, unsigned eths,
                   PayloadRule payload, bool request) {
  OpcodeInfo& e = t[opcode];
  e.name = name;
  e.kind = kind;
  e.payload = payload;
  e.request = request;
  e.first = (position & kFirst) != 0;
  e.last = (position & kLast) != 0;
  e.imm = (eths & kImm) != 0;
  e.inv = (eths & kInv) != 0;
  std::size_t at = wire::kBthSize;
  auto place = [&](unsigned bit, std::uint8_t& offset, std::size_t size) {
    if ((eths & bit) == 0) return;
    offset = static_cast<std::uint8_t>(at);
    at += size;
  };
  place(kDeth, e.deth, wire::Deth::kSize);
  place(kReth, e.reth, wire::Reth::kSize);
  place(kAtomicEth, e.atomic_eth, wire::AtomicEth::kSize);
  place(kAeth, e.aeth, wire::Aeth::kSize);
  place(kAtomicAckEth, e.atomic_ack_eth, wire::AtomicAckEth::kSize);
  place(kImm, e.imm_dt, wire::ImmDt::kSize);
  place(kInv, e.ieth, wire::Ieth::kSize);
  e.header_len = static_cast<std::uint8_t>(at);
}

// SEND and RDMA WRITE exist on RC and UC with the same layouts.
#define SOFTRNIC_SEND_WRITE(T, BASE)                                                                                   \
  add(t, opcode_of(BASE, Op::send_first), T " SEND First", OpKind::send, kFirst, 0, PayloadRule::full, true);          \
  add(t, opcode_of(BASE, Op::send_middle), T " SEND Middle", OpKind::send, kMiddle, 0, PayloadRule::full, true);       \
  add(t, opcode_of(BASE, Op::send_last), T " SEND Last", OpKind::send, kLast, 0, PayloadRule::one_to_mtu, true);       \
  add(t, opcode_of(BASE, Op::send_last_imm), T " SEND Last with Immediate", OpKind::send, kLast, kImm,                 \
      PayloadRule::one_to_mtu, true);                                                                                  \
  add(t, opcode_of(BASE, Op::send_only), T " SEND Only", OpKind::send, kOnly, 0, PayloadRule::up_to_mtu, true);        \
  add(t, opcode_of(BASE, Op::send_only_imm), T " SEND Only with Immediate", OpKind::send, kOnly, kImm,                 \
      PayloadRule::up_to_mtu, true);                                                                                   \
  add(t, opcode_of(BASE, Op::write_first), T " RDMA WRITE First", OpKind::write, kFirst, kReth, PayloadRule::full,     \
      true);                                                                                                           \
  add(t, opcode_of(BASE, Op::write_middle), T " RDMA WRITE Middle", OpKind::write, kMiddle, 0, PayloadRule::full,      \
      true);                                                                                                           \
  add(t, opcode_of(BASE, Op::write_last), T " RDMA WRITE Last", OpKind::write, kLast, 0, PayloadRule::one_to_mtu,      \
      true);                                                                                                           \
  add(t, opcode_of(BASE, Op::write_last_imm), T " RDMA WRITE Last with Immediate", OpKind::write, kLast, kImm,         \
      PayloadRule::one_to_mtu, true);                                                                                  \
  add(t, opcode_of(BASE, Op::write_only), T " RDMA WRITE Only", OpKind::write, kOnly, kReth, PayloadRule::up_to_mtu,   \
      true);                                                                                                           \
  add(t, opcode_of(BASE, Op::write_only_imm), T " RDMA WRITE Only with Immediate", OpKind::write, kOnly, kReth | kImm, \
      PayloadRule::up_to_mtu, true)

constexpr Table make_table() {
  Table t{};
  SOFTRNIC_SEND_WRITE("RC", kTransportRc);
  SOFTRNIC_SEND_WRITE("UC", kTransportUc);
  auto rc = [&](Op op, const char* name, OpKind kind, unsigned position, unsigned eths, PayloadRule rule, bool req) {
    add(t, opcode_of(kTransportRc, op), name, kind, position, eths, rule, req);
  };
  rc(Op::read_request, "RC RDMA READ Request", OpKind::read_request, kOnly, kReth, PayloadRule::empty, true);
  rc(Op::read_resp_first, "RC RDMA READ response First", OpKind::read_response, kFirst, kAeth, PayloadRule::full,
     false);
  rc(Op::read_resp_middle, "RC RDMA READ response Middle", OpKind::read_response, kMiddle, 0, PayloadRule::full, false);
  rc(Op::read_resp_last, "RC RDMA READ response Last", OpKind::read_response, kLast, kAeth, PayloadRule::one_to_mtu,
     false);
  rc(Op::read_resp_only, "RC RDMA READ response Only", OpKind::read_response, kOnly, kAeth, PayloadRule::up_to_mtu,
     false);
  rc(Op::acknowledge, "RC Acknowledge", OpKind::ack, kOnly, kAeth, PayloadRule::empty, false);
  rc(Op::atomic_ack, "RC ATOMIC Acknowledge", OpKind::atomic_ack, kOnly, kAeth | kAtomicAckEth, PayloadRule::empty,
     false);
  rc(Op::cmp_swap, "RC CmpSwap", OpKind::atomic, kOnly, kAtomicEth, PayloadRule::empty, true);
  rc(Op::fetch_add, "RC FetchAdd", OpKind::atomic, kOnly, kAtomicEth, PayloadRule::empty, true);
  rc(Op::send_last_inv, "RC SEND Last with Invalidate", OpKind::send, kLast, kInv, PayloadRule::one_to_mtu, true);
  rc(Op::send_only_inv, "RC SEND Only with Invalidate", OpKind::send, kOnly, kInv, PayloadRule::up_to_mtu, true);
  add(t, opcode_of(kTransportUd, Op::send_only), "UD SEND Only", OpKind::send, kOnly, kDeth, PayloadRule::up_to_mtu,
      true);
  add(t, opcode_of(kTransportUd, Op::send_only_imm), "UD SEND Only with Immediate", OpKind::send, kOnly, kDeth | kImm,
      PayloadRule::up_to_mtu, true);
  return t;
}
#undef SOFTRNIC_SEND_WRITE

}  // namespace

constinit const Table kOpcodeTable = make_table();

}  // namespace softrnic::ib
