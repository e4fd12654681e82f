// Unreliable Connection (IBA 9.8.2).
#include <catch2/catch.hpp>

#include "tests/unit/ib/craft.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

PairConfig uc_config() {
  PairConfig c;
  c.type = QpType::uc;
  return c;
}

struct UcPair : Pair {
  explicit UcPair(PairConfig c = uc_config()) : Pair(c) {}
  void give(const Craft& c) {
    deliver(b, c.make());
    b.collect();
  }
  Craft write(Op op, std::uint32_t psn, std::uint32_t payload, std::uint32_t total) {
    Craft c = uc(op, psn, payload);
    c.va = b.addr(4096);
    c.rkey = b.key;
    c.dma_len = total;
    return c;
  }
};

}  // namespace

TEST_CASE("IBA 9.8.2: UC sends without AckReq and completes when the last packet is handed out", "[uc]") {
  UcPair p;
  p.a.post_send(p.send(1), {p.a.sge(0, 600)});
  p.a.post_send(p.send(2, WrOpcode::rdma_write), {p.a.sge(0, 20)});
  std::vector<Packet> v;
  for (int i = 0; i < 3; ++i) {
    p.a.collect();
    CHECK(p.a.sends().empty());
    v.push_back(*p.take(p.a));
  }
  p.a.collect();
  CHECK(p.a.sends().size() == 1);
  v.push_back(*p.take(p.a));
  p.a.collect();
  CHECK(p.a.sends().size() == 2);
  CHECK_FALSE(p.take(p.a));
  CHECK(p.a.qp->next_timeout() == kNever);
  std::uint32_t psn = 100;
  for (auto& pkt : v) {
    CHECK_FALSE(pkt.bth().ack_req());
    CHECK(pkt.psn() == psn++);
    CHECK((pkt.bytes[0] & kTransportMask) == kTransportUc);
    CHECK(pkt.bth().mig_req());
  }
}

TEST_CASE("IBA 9.8.2: UC operations carry data and immediate data", "[uc]") {
  for (WrOpcode op : {WrOpcode::send, WrOpcode::send_with_imm, WrOpcode::rdma_write, WrOpcode::rdma_write_with_imm}) {
    for (std::uint32_t n : {0u, 1u, 256u, 257u, 3000u}) {
      CAPTURE(int(op), n);
      UcPair p;
      p.b.post_recv(1, {p.b.sge(8192, 4096)});
      SendWqe w = p.send(1, op);
      w.remote_addr = p.b.addr(8192);
      w.imm_or_inv = 0x01020304;
      p.a.post_send(w, {p.a.sge(0, n)});
      p.pump();
      CHECK(p.a.sends().size() == 1);
      CHECK(std::memcmp(p.a.buf.data(), p.b.buf.data() + 8192, n) == 0);
      CHECK(p.b.recvs().size() == (op == WrOpcode::rdma_write ? 0u : 1u));
      if (op == WrOpcode::rdma_write) continue;
      CHECK(p.b.recvs()[0].byte_len == n);
      CHECK((p.b.recvs()[0].wc_flags & kWcWithImm) == (op == WrOpcode::send ? 0 : kWcWithImm));
    }
  }
}

TEST_CASE("IBA 9.8.2.2: a lost packet takes its message along; the next message uses its receive request", "[uc]") {
  for (std::uint32_t lost : {100u, 101u, 102u}) {
    CAPTURE(lost);
    UcPair p;
    p.b.post_recv(1, {p.b.sge(0, 1000)});
    p.tap = [&](bool, Packet& pkt) { return pkt.psn() != lost; };
    p.a.post_send(p.send(1), {p.a.sge(0, 600)});
    p.a.post_send(p.send(2), {p.a.sge(1000, 700)});
    p.pump();
    REQUIRE(p.b.recvs().size() == 1);
    CHECK(p.b.recvs()[0].wr_id == 1);
    CHECK(p.b.recvs()[0].byte_len == 700);
    CHECK(std::memcmp(p.a.buf.data() + 1000, p.b.buf.data(), 700) == 0);
    CHECK(p.a.sends().size() == 2);
    CHECK(p.b.qp->counters().drops > 0);
  }
}

TEST_CASE("IBA 9.8.2.2: after a gap an Only or First packet is accepted with whatever PSN", "[uc]") {
  UcPair p;
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.b.post_recv(2, {p.b.sge(1000, 1000)});
  p.give(uc(Op::send_only, 5000, 10));
  CHECK(p.b.recvs().size() == 1);
  p.give(uc(Op::send_first, 90, 256));
  p.give(uc(Op::send_last, 91, 10));
  CHECK(p.b.recvs().size() == 2);
}

TEST_CASE("IBA 9.8.2.2: Middle and Last without a First are dropped", "[uc]") {
  UcPair p;
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.give(uc(Op::send_middle, 100, 256));
  p.give(uc(Op::send_last, 101, 10));
  p.give(p.write(Op::write_middle, 102, 256, 0));
  p.give(p.write(Op::write_last, 103, 10, 0));
  CHECK(p.b.recvs().empty());
  CHECK(p.b.qp->counters().drops == 4);
  CHECK(p.b.qp->state() == QpState::rts);
}

TEST_CASE("IBA 9.8.2.2: a First within a message drops the message before", "[uc]") {
  UcPair p;
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.give(uc(Op::send_first, 100, 256));
  p.give(uc(Op::send_only, 101, 10));
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].byte_len == 10);
  p.give(uc(Op::send_first, 102, 256));
  p.give(p.write(Op::write_last, 103, 10, 10));  // of another kind
  p.b.post_recv(2, {p.b.sge(0, 1000)});
  p.give(uc(Op::send_last, 104, 10));
  CHECK(p.b.recvs().size() == 1);
}

TEST_CASE("IBA 9.8.2.2: too long a SEND is dropped and its receive request used again", "[uc]") {
  UcPair p;
  p.b.post_recv(1, {p.b.sge(0, 300)});
  p.give(uc(Op::send_first, 100, 256));
  p.give(uc(Op::send_last, 101, 45));
  CHECK(p.b.recvs().empty());
  p.give(uc(Op::send_only, 102, 30));
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].status == WcStatus::success);
  CHECK(p.b.recvs()[0].byte_len == 30);
}

TEST_CASE("IBA 9.8.2.2: with an SRQ the receive request of too long a SEND completes with an error", "[uc][srq]") {
  PairConfig c = uc_config();
  c.srq = true;
  UcPair p(c);
  p.b.post_recv(1, {p.b.sge(0, 300)});
  p.b.post_recv(2, {p.b.sge(0, 300)});
  p.give(uc(Op::send_first, 100, 256));
  p.give(uc(Op::send_last, 101, 45));
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].status == WcStatus::loc_len_err);
  CHECK(p.b.qp->state() == QpState::rts);
  p.give(uc(Op::send_only, 102, 30));
  CHECK(p.b.recvs().size() == 2);
}

TEST_CASE("IBA 9.8.2.2: R_Key errors, rights and lengths drop a WRITE without a word", "[uc]") {
  UcPair p;
  Craft c = p.write(Op::write_only, 100, 8, 8);
  c.rkey = 0xBAD;
  p.give(c);
  c = p.write(Op::write_only, 101, 8, 9);
  p.give(c);
  c = p.write(Op::write_first, 102, 256, 100);
  p.give(c);
  CHECK(p.b.qp->counters().drops == 3);
  CHECK(p.b.qp->state() == QpState::rts);
  CHECK(p.b.events.empty());
  PairConfig no_write = uc_config();
  no_write.access = 0;
  UcPair q(no_write);
  q.give(q.write(Op::write_only, 100, 8, 8));
  CHECK(q.b.qp->counters().drops == 1);
  CHECK_FALSE(q.take(q.b));
}

TEST_CASE("IBA 9.8.2.2: no receive request: SEND and WRITE with immediate are dropped", "[uc]") {
  UcPair p;
  p.give(uc(Op::send_first, 100, 256));
  p.give(uc(Op::send_last, 101, 10));
  p.give(p.write(Op::write_only_imm, 102, 8, 8));
  CHECK(p.b.qp->counters().drops == 3);
  CHECK_FALSE(p.take(p.b));
  p.b.post_recv(1, {p.b.sge(0, 100)});
  p.give(uc(Op::send_only, 103, 10));
  CHECK(p.b.recvs().size() == 1);
}

TEST_CASE("IBA 9.8.2.2, C9-92: UC payload rules", "[uc]") {
  UcPair p;
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.give(uc(Op::send_first, 100, 255));
  p.give(uc(Op::send_only, 101, 257));
  p.give(uc(Op::send_first, 102, 256));
  p.give(uc(Op::send_last, 103, 0));
  CHECK(p.b.recvs().empty());
  p.give(uc(Op::send_only, 104, 256));
  CHECK(p.b.recvs().size() == 1);
}

TEST_CASE("UC: a receive element that cannot be written is fatal for the QP", "[uc]") {
  UcPair p;
  p.b.post_recv(1, {Sge{p.b.addr(), 100, 0xBAD}});
  p.b.post_recv(2, {p.b.sge(0, 100)});
  p.give(uc(Op::send_only, 100, 10));
  REQUIRE(p.b.recvs().size() == 2);
  CHECK(p.b.recvs()[0].status == WcStatus::loc_prot_err);
  CHECK(p.b.recvs()[1].status == WcStatus::wr_flush_err);
  CHECK(p.b.qp->state() == QpState::err);
}

TEST_CASE("IBA 10.3.1.5: a UC send error leads to SQE: sends flush, receives go on, RTS recovers", "[uc][sqe]") {
  UcPair p;
  p.b.post_recv(1, {p.b.sge(0, 100)});
  p.b.post_recv(2, {p.b.sge(0, 100)});
  p.a.post_recv(3, {p.a.sge(0, 100)});
  p.a.post_send(p.send(1), {p.a.sge(0, 8)});
  p.a.post_send(p.send(2), {Sge{p.a.addr(), 8, 0xBAD}});
  p.a.post_send(p.send(3), {p.a.sge(0, 8)});
  p.pump();
  auto c = p.a.sends();
  REQUIRE(c.size() == 3);
  CHECK(c[0].status == WcStatus::success);
  CHECK(c[1].status == WcStatus::loc_prot_err);
  CHECK(c[2].status == WcStatus::wr_flush_err);
  CHECK(p.a.qp->state() == QpState::sqe);
  // Posted now: flushed as well.
  p.a.post_send(p.send(4), {p.a.sge(0, 8)});
  p.a.collect();
  CHECK(p.a.sends().size() == 4);
  // Still receiving.
  p.deliver(p.a, uc(Op::send_only, 7000, 10).make());
  p.a.collect();
  CHECK(p.a.recvs().size() == 1);
  p.a.qp->modify(p.now, QpState::rts, p.a.attrs);
  p.a.post_send(p.send(5), {p.a.sge(0, 8)});
  p.pump();
  REQUIRE(p.a.sends().size() == 5);
  CHECK(p.a.sends()[4].status == WcStatus::success);
  CHECK(p.b.recvs().size() == 2);
}

TEST_CASE("IBA 10.3.1.5: requests flushed by SQE but not yet polled stay flushed after the move to RTS", "[uc][sqe]") {
  UcPair p;
  p.b.post_recv(1, {p.b.sge(0, 100)});
  p.a.post_send(p.send(1), {Sge{p.a.addr(), 8, 0xBAD}});
  p.a.post_send(p.send(2), {p.a.sge(0, 8)});
  CHECK_FALSE(p.take(p.a));
  p.a.qp->modify(p.now, QpState::rts, p.a.attrs);
  p.a.post_send(p.send(3), {p.a.sge(0, 8)});
  CHECK_FALSE(p.take(p.a));  // only after they have been reported
  p.a.collect();
  p.pump();
  const auto c = p.a.sends();
  REQUIRE(c.size() == 3);
  CHECK(c[0].status == WcStatus::loc_prot_err);
  CHECK(c[1].status == WcStatus::wr_flush_err);
  CHECK(c[2].status == WcStatus::success);
  CHECK(p.b.recvs().size() == 1);
}

TEST_CASE("UC: READ, atomics and SEND with Invalidate are LOC_QP_OP_ERR", "[uc][sqe]") {
  for (WrOpcode op : {WrOpcode::rdma_read, WrOpcode::atomic_cmp_and_swp, WrOpcode::atomic_fetch_and_add,
                      WrOpcode::send_with_inv, WrOpcode::local_inv}) {
    UcPair p;
    p.a.post_send(p.send(1, op), {p.a.sge(0, 8)});
    p.pump();
    REQUIRE(p.a.sends().size() == 1);
    CHECK(p.a.sends()[0].status == WcStatus::loc_qp_op_err);
    CHECK(p.a.qp->state() == QpState::sqe);
  }
}

TEST_CASE("UC: memory that faults while gathering fails the request even at its last packet", "[uc]") {
  UcPair p;
  p.a.post_send(p.send(1), {p.a.sge(0, 8)});
  p.pump();
  p.a.mem.read_faults = true;
  p.a.post_send(p.send(2), {p.a.sge(0, 8)});
  p.pump();
  REQUIRE(p.a.sends().size() == 2);
  CHECK(p.a.sends()[1].status == WcStatus::loc_prot_err);
  CHECK(p.a.qp->state() == QpState::sqe);
}

TEST_CASE("IBA 10.3.1.4: UC in SQD finishes the message in progress", "[uc][sqd]") {
  UcPair p;
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.a.post_send(p.send(1), {p.a.sge(0, 600)});
  p.a.post_send(p.send(2), {p.a.sge(0, 8)});
  p.take(p.a);
  p.a.qp->modify(p.now, QpState::sqd, p.a.attrs, true);
  CHECK(p.a.qp->attrs().sq_draining);
  CHECK(p.take(p.a));
  CHECK(p.take(p.a));
  CHECK_FALSE(p.take(p.a));
  p.a.collect();
  CHECK(p.a.count(AsyncEvent::sq_drained) == 1);
  CHECK_FALSE(p.a.qp->attrs().sq_draining);
  p.a.qp->modify(p.now, QpState::rts, p.a.attrs);
  CHECK(p.take(p.a));
}
