// Opcodes, syndromes and headers against tables written independently of the code's.
#include <catch2/catch.hpp>

#include <map>

#include "tests/unit/ib/craft.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

enum Rule { kEmpty, kFull, kOneToMtu, kUpToMtu };
struct Row {
  int opcode;
  int header;  // BTH and extended headers
  Rule rule;
  bool request;
};

// IBA table 38 and section 9.3: header sizes added up by hand.
const Row kRows[] = {
    {0x00, 12, kFull, true},     {0x01, 12, kFull, true},     {0x02, 12, kOneToMtu, true}, {0x03, 16, kOneToMtu, true},
    {0x04, 12, kUpToMtu, true},  {0x05, 16, kUpToMtu, true},  {0x06, 28, kFull, true},     {0x07, 12, kFull, true},
    {0x08, 12, kOneToMtu, true}, {0x09, 16, kOneToMtu, true}, {0x0A, 28, kUpToMtu, true},  {0x0B, 32, kUpToMtu, true},
    {0x0C, 28, kEmpty, true},    {0x0D, 16, kFull, false},    {0x0E, 12, kFull, false},    {0x0F, 16, kOneToMtu, false},
    {0x10, 16, kUpToMtu, false}, {0x11, 16, kEmpty, false},   {0x12, 24, kEmpty, false},   {0x13, 40, kEmpty, true},
    {0x14, 40, kEmpty, true},    {0x16, 16, kOneToMtu, true}, {0x17, 16, kUpToMtu, true},  {0x20, 12, kFull, true},
    {0x21, 12, kFull, true},     {0x22, 12, kOneToMtu, true}, {0x23, 16, kOneToMtu, true}, {0x24, 12, kUpToMtu, true},
    {0x25, 16, kUpToMtu, true},  {0x26, 28, kFull, true},     {0x27, 12, kFull, true},     {0x28, 12, kOneToMtu, true},
    {0x29, 16, kOneToMtu, true}, {0x2A, 28, kUpToMtu, true},  {0x2B, 32, kUpToMtu, true},  {0x64, 20, kUpToMtu, true},
    {0x65, 24, kUpToMtu, true},
};

Rule rule_of(PayloadRule r) {
  switch (r) {
    case PayloadRule::empty:
      return kEmpty;
    case PayloadRule::full:
      return kFull;
    case PayloadRule::one_to_mtu:
      return kOneToMtu;
    case PayloadRule::up_to_mtu:
      return kUpToMtu;
  }
  return kEmpty;
}

}  // namespace

TEST_CASE("IBA 9.2.2, table 38: every opcode has its headers, payload rule and direction; no other is known",
          "[tables]") {
  std::map<int, Row> rows;
  for (const Row& r : kRows) rows[r.opcode] = r;
  for (int op = 0; op < 256; ++op) {
    CAPTURE(op);
    const OpcodeInfo& info = opcode_info(static_cast<std::uint8_t>(op));
    auto it = rows.find(op);
    REQUIRE(info.known() == (it != rows.end()));
    if (it == rows.end()) continue;
    CHECK(info.header_len == it->second.header);
    CHECK(rule_of(info.payload) == it->second.rule);
    CHECK(info.request == it->second.request);
  }
}

TEST_CASE("IBA table 46: credit codes", "[tables]") {
  const std::uint32_t credits[31] = {0,    1,    2,    3,    4,    6,     8,     12,    16,   24,   32,
                                     48,   64,   96,   128,  192,  256,   384,   512,   768,  1024, 1536,
                                     2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};
  for (std::uint8_t code = 0; code < 31; ++code) {
    CAPTURE(int(code));
    CHECK(decode_credits(code) == credits[code]);
    CHECK(encode_credits(credits[code]) == code);
    if (code < 30 && credits[code + 1] > credits[code] + 1) CHECK(encode_credits(credits[code + 1] - 1) == code);
  }
  CHECK(encode_credits(1u << 20) == 0x1E);
}

TEST_CASE("IBA table 45: RNR timer codes", "[tables]") {
  const double ms[32] = {655.36, 0.01,  0.02,  0.03,  0.04,  0.06,   0.08,   0.12,   0.16,   0.24,  0.32,
                         0.48,   0.64,  0.96,  1.28,  1.92,  2.56,   3.84,   5.12,   7.68,   10.24, 15.36,
                         20.48,  30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52};
  for (std::uint8_t code = 0; code < 32; ++code) {
    CHECK(rnr_timer_ns(code) == static_cast<Nanos>(ms[code] * 1e6 + 0.5));
  }
}

TEST_CASE("IBA 9.2: a BTH is laid out bit by bit", "[tables]") {
  wire::Bth h;
  h.opcode = 0x04;
  h.solicited = true;
  h.pad_count = 3;
  h.dest_qpn = 0x11;
  h.ack_req = true;
  h.psn = 0x100;
  std::uint8_t b[12];
  h.write(b);
  const std::uint8_t expected[12] = {0x04, 0xF0, 0xFF, 0xFF, 0, 0, 0, 0x11, 0x80, 0, 1, 0};
  CHECK(std::memcmp(b, expected, 12) == 0);
  const wire::BthView v(b);
  CHECK(v.opcode() == 4);
  CHECK(v.solicited());
  CHECK(v.mig_req());
  CHECK(v.pad_count() == 3);
  CHECK(v.tver() == 0);
  CHECK(v.pkey() == 0xFFFF);
  CHECK_FALSE(v.fecn());
  CHECK_FALSE(v.becn());
  CHECK(v.dest_qpn() == 0x11);
  CHECK(v.ack_req());
  CHECK(v.psn() == 0x100);
  h.fecn = true;
  h.becn = true;
  h.mig_req = false;
  h.write(b);
  CHECK(wire::BthView(b).fecn());
  CHECK(wire::BthView(b).becn());
  CHECK_FALSE(wire::BthView(b).mig_req());
}

TEST_CASE("IBA 9.3: extended headers are laid out as specified", "[tables]") {
  std::uint8_t b[28] = {};
  wire::Reth{0x7f0000001000, 0x12345678, 8}.write(b);
  const std::uint8_t reth[16] = {0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 8};
  CHECK(std::memcmp(b, reth, 16) == 0);
  CHECK(wire::Reth::read(b).va == 0x7f0000001000);
  CHECK(wire::Reth::read(b).rkey == 0x12345678);
  CHECK(wire::Reth::read(b).length == 8);
  wire::AtomicEth{1, 2, 3, 4}.write(b);
  CHECK((b[7] == 1 && b[11] == 2 && b[19] == 3 && b[27] == 4));
  CHECK(wire::AtomicEth::read(b).swap_or_add == 3);
  CHECK(wire::AtomicEth::read(b).compare == 4);
  wire::Aeth{0x1f, 0x010203}.write(b);
  CHECK((b[0] == 0x1f && b[1] == 1 && b[2] == 2 && b[3] == 3));
  wire::Deth{0x11223344, 0x556677}.write(b);
  CHECK((b[0] == 0x11 && b[4] == 0 && b[5] == 0x55 && b[7] == 0x77));
  CHECK(wire::Deth::read(b).src_qpn == 0x556677);
  wire::AtomicAckEth{0x0102030405060708}.write(b);
  CHECK((b[0] == 1 && b[7] == 8));
  wire::Ieth{0xAABBCCDD}.write(b);
  CHECK((b[0] == 0xAA && b[3] == 0xDD));
}

TEST_CASE("IBA 9.7.4.1.6, C9-92: RC payload lengths that break the opcode's rule get NAK invalid request",
          "[tables][rc]") {
  constexpr std::uint32_t kMtu = 256;
  for (const Row& row : kRows) {
    if (row.opcode >= 0x20 || !row.request) continue;
    for (std::uint32_t payload : {0u, 1u, 4u, 255u, 256u, 257u, 260u, 512u}) {
      CAPTURE(row.opcode, payload);
      Pair p;
      p.b.post_recv(1, {p.b.sge(0, 4096)});
      const auto info = opcode_info(static_cast<std::uint8_t>(row.opcode));
      std::uint32_t psn = p.cfg.psn_a;
      const bool write = info.kind == OpKind::write;
      // A message whose rest is whatever this packet carries, or goes on behind a full packet.
      const std::uint32_t rest = info.last ? (info.first ? payload : std::max(payload, 1u)) : 2 * kMtu;
      const std::uint32_t total = (info.first ? 0 : kMtu) + rest;
      auto crafted = [&](Op op, std::uint32_t at, std::uint32_t n) {
        Craft c = rc(op, at, n);
        c.va = p.b.addr(8192);
        c.rkey = p.b.key;
        c.dma_len = total;
        c.inv_rkey = p.b.mem.add(p.b.buf.data(), 8, kAllAccess);
        p.b.mem.region(c.inv_rkey).invalidatable = true;
        return c;
      };
      if (!info.first) {
        p.deliver(p.b, crafted(write ? Op::write_first : Op::send_first, psn++, kMtu).make());
        while (p.take(p.b)) {
        }
      }
      bool ok = false;
      switch (row.rule) {
        case kEmpty:
          ok = payload == 0;
          break;
        case kFull:
          ok = payload == kMtu;
          break;
        case kOneToMtu:
          ok = payload >= 1 && payload <= kMtu;
          break;
        case kUpToMtu:
          ok = payload <= kMtu;
          break;
      }
      p.deliver(p.b, crafted(static_cast<Op>(row.opcode), psn, payload).make());
      const auto reply = p.take(p.b);
      if (!ok) {
        REQUIRE(reply);
        CHECK(reply->text() == "Acknowledge " + std::to_string(psn) + " NAK1");
        CHECK(p.b.qp->state() == QpState::err);
      } else {
        CHECK(p.b.qp->state() == QpState::rts);
        if (reply) CHECK((reply->syndrome() & kSyndromeTypeMask) == kSyndromeAck);
      }
    }
  }
}
