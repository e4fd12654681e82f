// RC without faults: every operation, its packets, its data, its completions.
#include <catch2/catch.hpp>

#include "tests/unit/ib/pair.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

bool equal(const End& x, std::size_t xo, const End& y, std::size_t yo, std::size_t n) {
  return std::memcmp(x.buf.data() + xo, y.buf.data() + yo, n) == 0;
}

}  // namespace

TEST_CASE("IBA 9.7.2: a SEND of every length mod 4 and around the MTU arrives whole", "[rc]") {
  for (std::uint32_t length : {0u, 1u, 2u, 3u, 4u, 5u, 255u, 256u, 257u, 511u, 512u, 513u, 1025u, 5000u}) {
    CAPTURE(length);
    Pair p;
    p.b.post_recv(9, {p.b.sge(8192, 6000)});
    p.a.post_send(p.send(1), length == 0 ? std::vector<Sge>{} : std::vector<Sge>{p.a.sge(16, length)});
    p.pump();
    REQUIRE(p.b.recvs().size() == 1);
    CHECK(p.b.recvs()[0].wr_id == 9);
    CHECK(p.b.recvs()[0].status == WcStatus::success);
    CHECK(p.b.recvs()[0].opcode == WcOpcode::recv);
    CHECK(p.b.recvs()[0].byte_len == length);
    CHECK(p.b.recvs()[0].qp_num == 0x12);
    REQUIRE(p.a.sends().size() == 1);
    CHECK(p.a.sends()[0].wr_id == 1);
    CHECK(p.a.sends()[0].status == WcStatus::success);
    CHECK(equal(p.a, 16, p.b, 8192, length));
    const std::uint32_t packets = length == 0 ? 1 : (length + 255) / 256;
    std::uint32_t requests = 0;
    for (auto& [from_a, pkt] : p.log) requests += from_a ? 1 : 0;
    CHECK(requests == packets);
  }
}

TEST_CASE("IBA 9.7.4: RDMA WRITE of every shape lands at the remote address", "[rc]") {
  for (std::uint32_t length : {0u, 1u, 255u, 256u, 257u, 1024u, 1025u, 9000u}) {
    CAPTURE(length);
    Pair p;
    SendWqe w = p.send(2, WrOpcode::rdma_write);
    w.remote_addr = p.b.addr(20000);
    p.a.post_send(w, {p.a.sge(3, length)});
    p.pump();
    REQUIRE(p.a.sends().size() == 1);
    CHECK(p.a.sends()[0].status == WcStatus::success);
    CHECK(p.a.sends()[0].opcode == WcOpcode::rdma_write);
    CHECK(equal(p.a, 3, p.b, 20000, length));
    CHECK(p.b.recvs().empty());
  }
}

TEST_CASE("IBA 9.7.4: RDMA READ of every shape fetches the remote bytes", "[rc]") {
  for (std::uint32_t length : {0u, 1u, 255u, 256u, 257u, 1024u, 1025u, 9000u}) {
    CAPTURE(length);
    Pair p;
    SendWqe w = p.send(3, WrOpcode::rdma_read);
    w.remote_addr = p.b.addr(20000);
    p.a.post_send(w, {p.a.sge(3, length)});
    p.pump();
    REQUIRE(p.a.sends().size() == 1);
    CHECK(p.a.sends()[0].status == WcStatus::success);
    CHECK(p.a.sends()[0].opcode == WcOpcode::rdma_read);
    CHECK(p.a.sends()[0].byte_len == length);
    CHECK(equal(p.a, 3, p.b, 20000, length));
  }
}

TEST_CASE("IBA 9.4.5: atomics return the original and change the target", "[rc]") {
  Pair p;
  p.b.word(64) = 40;
  SendWqe w = p.send(1, WrOpcode::atomic_fetch_and_add);
  w.remote_addr = p.b.addr(64);
  w.swap_or_add = 2;
  p.a.post_send(w, {p.a.sge(0, 8)});
  w.wr_id = 2;
  w.opcode = WrOpcode::atomic_cmp_and_swp;
  w.compare = 42;
  w.swap_or_add = 7;
  p.a.post_send(w, {p.a.sge(8, 8)});
  w.wr_id = 3;
  w.compare = 1;
  w.swap_or_add = 99;
  p.a.post_send(w, {p.a.sge(16, 8)});
  p.pump();
  REQUIRE(p.a.sends().size() == 3);
  for (auto& c : p.a.sends()) CHECK(c.status == WcStatus::success);
  CHECK(p.a.sends()[0].opcode == WcOpcode::fetch_add);
  CHECK(p.a.sends()[1].opcode == WcOpcode::comp_swap);
  CHECK(p.a.sends()[1].byte_len == 8);
  CHECK(p.a.word(0) == 40);
  CHECK(p.a.word(8) == 42);
  CHECK(p.a.word(16) == 7);
  CHECK(p.b.word(64) == 7);
}

TEST_CASE("IBA 9.4.1.4: immediate data is delivered in wire order with SEND and RDMA WRITE", "[rc]") {
  Pair p;
  std::uint32_t imm = 0;
  const std::uint8_t raw[4] = {0xDE, 0xAD, 0xBE, 0xEF};
  std::memcpy(&imm, raw, 4);
  p.b.post_recv(1, {p.b.sge(0, 64)});
  p.b.post_recv(2, {});
  SendWqe w = p.send(1, WrOpcode::send_with_imm);
  w.imm_or_inv = imm;
  p.a.post_send(w, {p.a.sge(0, 10)});
  w.opcode = WrOpcode::rdma_write_with_imm;
  w.remote_addr = p.b.addr(4096);
  p.a.post_send(w, {p.a.sge(0, 600)});
  p.pump();
  REQUIRE(p.b.recvs().size() == 2);
  CHECK(p.b.recvs()[0].wc_flags == kWcWithImm);
  CHECK(p.b.recvs()[0].imm_or_rkey == imm);
  CHECK(p.b.recvs()[1].opcode == WcOpcode::recv_rdma_with_imm);
  CHECK(p.b.recvs()[1].byte_len == 600);
  CHECK(p.b.recvs()[1].imm_or_rkey == imm);
  CHECK(equal(p.a, 0, p.b, 4096, 600));
  const Packet& only = p.log[0].second;
  CHECK(std::memcmp(only.bytes.data() + 12, raw, 4) == 0);
}

TEST_CASE("UC and UD carry messages", "[uc][ud]") {
  PairConfig c;
  c.type = QpType::uc;
  Pair uc(c);
  uc.b.post_recv(1, {uc.b.sge(0, 1000)});
  uc.a.post_send(uc.send(5), {uc.a.sge(0, 700)});
  uc.pump();
  REQUIRE(uc.b.recvs().size() == 1);
  CHECK(uc.b.recvs()[0].byte_len == 700);
  CHECK(equal(uc.a, 0, uc.b, 0, 700));
  CHECK(uc.a.sends().size() == 1);

  c.type = QpType::ud;
  Pair ud(c);
  ud.b.post_recv(1, {ud.b.sge(0, 1000)});
  ud.a.post_send(ud.send(5), {ud.a.sge(0, 200)});
  ud.pump();
  REQUIRE(ud.b.recvs().size() == 1);
  CHECK(ud.b.recvs()[0].byte_len == 240);
  CHECK(ud.b.recvs()[0].src_qp == 0x11);
  CHECK(equal(ud.a, 0, ud.b, 40, 200));
  CHECK(ud.a.sends().size() == 1);
}
