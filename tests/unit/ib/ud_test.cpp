// Unreliable Datagram (IBA 9.8.3).
#include <catch2/catch.hpp>

#include "tests/unit/ib/craft.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

PairConfig ud_config() {
  PairConfig c;
  c.type = QpType::ud;
  return c;
}

struct UdPair : Pair {
  explicit UdPair(PairConfig c = ud_config()) : Pair(c) {}
  void give(const Craft& c, const std::uint8_t* grh = nullptr) {
    const Packet pkt = c.make();
    RxPacket rx;
    rx.bth = pkt.bytes;
    rx.grh = grh;
    rx.has_grh = grh != nullptr;
    rx.sl = 3;
    b.qp->on_packet(now, b.mem, rx);
    b.collect();
  }
};

}  // namespace

TEST_CASE("IBA 9.8.3: a datagram has a DETH with Q_Key and source QP, and no AckReq", "[ud]") {
  UdPair p;
  SendWqe w = p.send(1, WrOpcode::send_with_imm, kSendSolicited);
  w.remote_qpn = 0xABCDE;
  w.remote_qkey = 0x55667788;
  w.ah = 9;
  w.imm_or_inv = 0x04030201;
  p.a.post_send(w, {p.a.sge(0, 6)});
  TxPacket tx;
  REQUIRE(p.a.qp->poll_transmit(p.now, p.a.mem, &tx));
  CHECK(tx.ah == 9);
  CHECK(tx.dest_qpn == 0xABCDE);
  CHECK(tx.header_len == 24);
  CHECK(tx.pad == 2);
  CHECK(tx.is_request);
  const wire::BthView bth(tx.header);
  CHECK(bth.opcode() == 0x65);
  CHECK(bth.dest_qpn() == 0xABCDE);
  CHECK_FALSE(bth.ack_req());
  CHECK(bth.solicited());
  CHECK(bth.psn() == 100);
  const auto deth = wire::Deth::read(tx.header + 12);
  CHECK(deth.qkey == 0x55667788);
  CHECK(deth.src_qpn == 0x11);
  CHECK(std::memcmp(tx.header + 20, "\x01\x02\x03\x04", 4) == 0);
  p.a.collect();
  CHECK(p.a.sends().size() == 1);
}

TEST_CASE("IBA 10.2.5: a Q_Key with the high bit set stands for the QP's own", "[ud]") {
  UdPair p;
  SendWqe w = p.send(1);
  w.remote_qkey = 0x80000001;
  p.a.post_send(w, {p.a.sge(0, 4)});
  const auto pkt = p.take(p.a);
  REQUIRE(pkt);
  CHECK(wire::Deth::read(pkt->bytes.data() + 12).qkey == 0x1234);
}

TEST_CASE("IBA 11.4.1.2: 40 bytes before the payload, counted in byte_len", "[ud]") {
  UdPair p;
  std::uint8_t grh[40];
  std::iota(grh, grh + 40, std::uint8_t{1});
  p.b.post_recv(1, {p.b.sge(0, 30), p.b.sge(1000, 100)});
  p.b.post_recv(2, {p.b.sge(2000, 100)});
  p.give(ud(Op::send_only, 50), grh);
  p.give(ud(Op::send_only_imm, 50));
  const auto c = p.b.recvs();
  REQUIRE(c.size() == 2);
  CHECK(c[0].byte_len == 90);
  CHECK(c[0].wc_flags == kWcGrh);
  CHECK(c[0].src_qp == 0x11);
  CHECK(c[0].sl == 3);
  CHECK(std::memcmp(p.b.buf.data(), grh, 30) == 0);
  CHECK(std::memcmp(p.b.buf.data() + 1000, grh + 30, 10) == 0);
  CHECK(p.b.buf[1010] == 0x5A);
  CHECK(c[1].wc_flags == kWcWithImm);
  for (int i = 0; i < 40; ++i) CHECK(p.b.buf[2000 + i] == 0);
}

TEST_CASE("IBA 10.2.5: a wrong Q_Key is dropped silently", "[ud]") {
  UdPair p;
  p.b.post_recv(1, {p.b.sge(0, 100)});
  Craft c = ud(Op::send_only, 10);
  c.qkey = 0x1235;
  p.give(c);
  CHECK(p.b.events.empty());
  CHECK(p.b.qp->counters().drops == 1);
  CHECK_FALSE(p.take(p.b));
}

TEST_CASE("IBA 9.8.3: PSNs are not looked at; anyone may send", "[ud]") {
  UdPair p;
  for (int i = 0; i < 3; ++i) p.b.post_recv(i, {p.b.sge(0, 100)});
  for (std::uint32_t psn : {5u, 5u, 77777u}) {
    Craft c = ud(Op::send_only, 10);
    c.psn = psn;
    p.give(c);
  }
  CHECK(p.b.recvs().size() == 3);
}

TEST_CASE("IBA 11.6.2: a buffer without room for payload and 40 bytes is LOC_LEN_ERR; the QP lives on", "[ud]") {
  UdPair p;
  p.b.post_recv(1, {p.b.sge(0, 49)});
  p.b.post_recv(2, {p.b.sge(0, 50)});
  p.give(ud(Op::send_only, 10));
  p.give(ud(Op::send_only, 10));
  const auto c = p.b.recvs();
  REQUIRE(c.size() == 2);
  CHECK(c[0].status == WcStatus::loc_len_err);
  CHECK(c[0].wr_id == 1);
  CHECK(c[1].status == WcStatus::success);
  CHECK(p.b.qp->state() == QpState::rts);
}

TEST_CASE("UD: no receive request, or a datagram longer than the MTU: dropped", "[ud]") {
  UdPair p;
  p.give(ud(Op::send_only, 10));
  CHECK(p.b.qp->counters().drops == 1);
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.give(ud(Op::send_only, 257));
  CHECK(p.b.qp->counters().drops == 2);
  CHECK(p.b.recvs().empty());
  p.give(ud(Op::send_only, 0));
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].byte_len == 40);
}

TEST_CASE("UD: a receive element that cannot be written is LOC_PROT_ERR and fatal", "[ud]") {
  UdPair p;
  p.b.post_recv(1, {Sge{p.b.addr(), 100, 0xBAD}});
  p.b.post_recv(2, {p.b.sge(0, 100)});
  p.give(ud(Op::send_only, 10));
  const auto c = p.b.recvs();
  REQUIRE(c.size() == 2);
  CHECK(c[0].status == WcStatus::loc_prot_err);
  CHECK(c[1].status == WcStatus::wr_flush_err);
  CHECK(p.b.qp->state() == QpState::err);
}

TEST_CASE("IBA 9.8.3.1: a message longer than the MTU fails with LOC_LEN_ERR and SQE", "[ud][sqe]") {
  UdPair p;
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.a.post_send(p.send(1), {p.a.sge(0, 257)});
  p.a.post_send(p.send(2), {p.a.sge(0, 8)});
  p.pump();
  const auto c = p.a.sends();
  REQUIRE(c.size() == 2);
  CHECK(c[0].status == WcStatus::loc_len_err);
  CHECK(c[1].status == WcStatus::wr_flush_err);
  CHECK(p.a.qp->state() == QpState::sqe);
  CHECK(p.log.empty());
  p.a.qp->modify(p.now, QpState::rts, p.a.attrs);
  p.a.post_send(p.send(3), {p.a.sge(0, 256)});
  p.pump();
  CHECK(p.a.sends().size() == 3);
  CHECK(p.b.recvs().size() == 1);
}

TEST_CASE("UD: other operations are LOC_QP_OP_ERR", "[ud][sqe]") {
  for (WrOpcode op : {WrOpcode::rdma_write, WrOpcode::rdma_read, WrOpcode::send_with_inv, WrOpcode::bind_mw}) {
    UdPair p;
    p.a.post_send(p.send(1, op), {p.a.sge(0, 8)});
    p.pump();
    REQUIRE(p.a.sends().size() == 1);
    CHECK(p.a.sends()[0].status == WcStatus::loc_qp_op_err);
  }
}

TEST_CASE("IBA 10.3.1.4: UD drains at once", "[ud][sqd]") {
  UdPair p;
  p.a.post_send(p.send(1), {p.a.sge(0, 8)});
  p.a.qp->modify(p.now, QpState::sqd, p.a.attrs, true);
  CHECK_FALSE(p.take(p.a));
  p.a.collect();
  CHECK(p.a.count(AsyncEvent::sq_drained) == 1);
  p.a.qp->modify(p.now, QpState::rts, p.a.attrs);
  CHECK(p.take(p.a));
}

TEST_CASE("UD: memory that faults while gathering fails the request", "[ud]") {
  UdPair p;
  p.a.mem.read_faults = true;
  p.a.post_send(p.send(2), {p.a.sge(0, 8)});
  p.pump();
  REQUIRE(p.a.sends().size() == 1);
  CHECK(p.a.sends()[0].status == WcStatus::loc_prot_err);
}
