// States of a QP, flushing, shared receive queues, and packets that are not for it.
#include <catch2/catch.hpp>

#include <random>

#include "tests/unit/ib/craft.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

PairConfig config(QpType type, bool srq = false) {
  PairConfig c;
  c.type = type;
  c.srq = srq;
  return c;
}

}  // namespace

TEST_CASE("IBA 10.3.1.6: ERR flushes both queues in order, also what is posted later", "[state]") {
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    Pair p(config(type));
    for (int i = 0; i < 3; ++i) p.a.post_recv(10 + i, {p.a.sge(0, 8)});
    for (int i = 0; i < 3; ++i) p.a.post_send(p.send(i), {p.a.sge(0, 8)});
    p.a.qp->modify(p.now, QpState::err, p.a.attrs);
    p.a.collect();
    p.a.post_send(p.send(3), {p.a.sge(0, 8)});
    p.a.post_recv(13, {p.a.sge(0, 8)});
    p.a.collect();
    REQUIRE(p.a.sends().size() == 4);
    REQUIRE(p.a.recvs().size() == 4);
    for (std::uint64_t i = 0; i < 4; ++i) {
      const auto s = p.a.sends()[i];
      const auto r = p.a.recvs()[i];
      CHECK(s.wr_id == i);
      CHECK(r.wr_id == 10 + i);
      CHECK(s.status == WcStatus::wr_flush_err);
      CHECK(r.status == WcStatus::wr_flush_err);
      CHECK(s.qp_num == 0x11);
      CHECK(r.qp_num == 0x11);
      CHECK(s.vendor_err != 0);
      CHECK(r.vendor_err != 0);
      CHECK(s.solicited);
      CHECK(r.solicited);
    }
    CHECK_FALSE(p.take(p.a));
    CHECK(p.a.qp->next_timeout() == kNever);
  }
}

TEST_CASE("Receives of a QP that never received are flushed, from INIT too", "[state]") {
  PairConfig c = config(QpType::rc);
  c.connect = false;
  Pair p(c);
  p.to_init(p.a);
  p.a.post_recv(1, {p.a.sge(0, 8)});
  p.a.qp->modify(p.now, QpState::err, p.a.attrs);
  p.a.collect();
  CHECK(p.a.recvs().size() == 1);
}

TEST_CASE("ERR in the middle of a received message: its receive request is flushed first", "[state]") {
  for (QpType type : {QpType::rc, QpType::uc}) {
    Pair p(config(type));
    p.b.post_recv(1, {p.b.sge(0, 1000)});
    p.b.post_recv(2, {p.b.sge(0, 1000)});
    p.deliver(p.b, (type == QpType::rc ? rc(Op::send_first, 100, 256) : uc(Op::send_first, 100, 256)).make());
    p.b.qp->modify(p.now, QpState::err, p.b.attrs);
    p.b.collect();
    REQUIRE(p.b.recvs().size() == 2);
    CHECK(p.b.recvs()[0].wr_id == 1);
    CHECK(p.b.recvs()[0].status == WcStatus::wr_flush_err);
    CHECK(p.b.recvs()[1].wr_id == 2);
  }
}

TEST_CASE("ERR: what was received before keeps its success", "[state]") {
  Pair p;
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.deliver(p.b, rc(Op::send_only, 100, 10).make());
  p.b.qp->modify(p.now, QpState::err, p.b.attrs);
  p.b.collect();
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].status == WcStatus::success);
  CHECK_FALSE(p.take(p.b));
}

TEST_CASE("IBA 11.6.3: LAST_WQE_REACHED exactly once for a QP with an SRQ; the SRQ is not flushed", "[state][srq]") {
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    Pair p(config(type, true));
    p.b.post_recv(1, {p.b.sge(0, 1000)});
    p.b.post_recv(2, {p.b.sge(0, 1000)});
    if (type != QpType::ud) {
      p.deliver(p.b, (type == QpType::rc ? rc(Op::send_first, 100, 256) : uc(Op::send_first, 100, 256)).make());
    }
    p.b.qp->modify(p.now, QpState::err, p.b.attrs);
    p.b.collect();
    p.b.collect();
    p.b.qp->modify(p.now, QpState::err, p.b.attrs);
    p.b.collect();
    CHECK(p.b.count(AsyncEvent::qp_last_wqe_reached) == 1);
    // The request taken for the unfinished message comes back with an error, before the event.
    CHECK(p.b.recvs().size() == (type == QpType::ud ? 0u : 1u));
    CHECK(p.b.events.back().kind == QpEvent::Kind::async);
    CHECK(p.b.rq->available() == (type == QpType::ud ? 2u : 1u));
  }
}

TEST_CASE("LAST_WQE_REACHED also after an error of the peer's making", "[state][srq]") {
  Pair p(config(QpType::rc, true));
  p.b.post_recv(1, {p.b.sge(0, 4)});
  p.a.post_send(p.send(1), {p.a.sge(0, 8)});
  p.pump();
  CHECK(p.b.count(AsyncEvent::qp_last_wqe_reached) == 1);
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].status == WcStatus::loc_len_err);
  CHECK(p.a.sends().at(0).status == WcStatus::rem_inv_req_err);
}

TEST_CASE("IBA 11.2.5.2: RESET empties everything without completions; the QP can be used again", "[state]") {
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    Pair p(config(type));
    p.b.post_recv(1, {p.b.sge(0, 300)});
    p.a.post_send(p.send(1), {p.a.sge(0, 200)});
    p.take(p.a);
    p.a.qp->modify(p.now, QpState::reset, p.a.attrs);
    p.b.qp->modify(p.now, QpState::reset, p.b.attrs);
    p.a.collect();
    p.b.collect();
    CHECK(p.a.events.empty());
    CHECK(p.b.events.empty());
    CHECK_FALSE(p.take(p.a));
    CHECK(p.a.qp->next_timeout() == kNever);
    p.to_rts(p.a);
    p.to_rts(p.b);
    p.b.post_recv(2, {p.b.sge(0, 300)});
    p.a.post_send(p.send(2), {p.a.sge(0, 200)});
    p.pump();
    REQUIRE(p.a.sends().size() == 1);
    CHECK(p.a.sends()[0].wr_id == 2);
    REQUIRE(p.b.recvs().size() == 1);
    CHECK(p.b.recvs()[0].wr_id == 2);
  }
}

TEST_CASE("RESET and destruction give requests taken from an SRQ back", "[state][srq]") {
  PairConfig c = config(QpType::rc, true);
  c.rq_depth = 2;
  Pair p(c);
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.b.post_recv(2, {p.b.sge(0, 1000)});
  CHECK_FALSE(p.b.post_recv(3, {}));
  p.deliver(p.b, rc(Op::send_only, 100, 8).make());
  p.deliver(p.b, rc(Op::send_first, 101, 256).make());
  p.b.qp->modify(p.now, QpState::reset, p.b.attrs);
  CHECK(p.b.post_recv(3, {}));
  CHECK(p.b.post_recv(4, {}));
}

TEST_CASE("IBA 11.6.3: COMM_EST on the first packet in RTR, once; responses go out, requests do not", "[state]") {
  PairConfig c;
  c.connect = false;
  Pair p(c);
  p.to_rts(p.a);
  p.to_rtr(p.b);
  p.b.post_recv(1, {p.b.sge(0, 100)});
  p.b.post_recv(2, {p.b.sge(0, 100)});
  p.b.post_send(p.send(9), {p.b.sge(0, 8)});
  p.a.post_send(p.send(1), {p.a.sge(0, 8)});
  p.a.post_send(p.send(2), {p.a.sge(0, 8)});
  p.pump();
  CHECK(p.b.count(AsyncEvent::comm_est) == 1);
  CHECK(p.a.count(AsyncEvent::comm_est) == 0);
  CHECK(p.a.sends().size() == 2);
  CHECK(p.b.sends().empty());
  p.b.qp->modify(p.now, QpState::rts, p.b.attrs);
  p.a.post_recv(3, {p.a.sge(0, 100)});
  p.pump();
  CHECK(p.b.sends().size() == 1);
  CHECK(p.b.count(AsyncEvent::comm_est) == 1);
}

TEST_CASE("IBA 10.3.1: RESET, INIT and ERR receive nothing; RTR takes no responses", "[state]") {
  for (QpState s : {QpState::reset, QpState::init, QpState::err}) {
    PairConfig c;
    c.connect = false;
    Pair p(c);
    if (s != QpState::reset) p.to_init(p.b);
    if (s == QpState::err) p.b.qp->modify(p.now, QpState::err, p.b.attrs);
    p.deliver(p.b, rc(Op::write_only, 100, 0).make());
    p.b.collect();
    CHECK_FALSE(p.take(p.b));
    CHECK(p.b.qp->counters().drops == 1);
  }
  PairConfig c;
  c.connect = false;
  Pair p(c);
  p.to_rtr(p.b);
  p.deliver(p.b, rc(Op::acknowledge, 7000).make());
  CHECK(p.b.qp->counters().drops == 1);
}

TEST_CASE("A CQ that overflowed ends the QP with CQ_ERR", "[state]") {
  Pair p;
  p.a.post_send(p.send(1), {p.a.sge(0, 8)});
  p.a.qp->fail(p.now, AsyncEvent::cq_err);
  p.a.collect();
  CHECK(p.a.count(AsyncEvent::cq_err) == 1);
  CHECK(p.a.sends().at(0).status == WcStatus::wr_flush_err);
  p.a.qp->fail(p.now, AsyncEvent::cq_err);
  p.a.collect();
  CHECK(p.a.count(AsyncEvent::cq_err) == 1);
}

TEST_CASE("IBA 10.9.2: P_Keys match in their low 15 bits with at least one full member", "[state]") {
  struct Case {
    std::uint16_t own, packet;
    bool ok;
  };
  for (const Case& k : {Case{0xFFFF, 0xFFFF, true}, Case{0xFFFF, 0x7FFF, true}, Case{0x7FFF, 0xFFFF, true},
                        Case{0x7FFF, 0x7FFF, false}, Case{0x8001, 0x0001, true}, Case{0x8001, 0x8002, false},
                        Case{0x8000, 0x8000, false}, Case{0xFFFF, 0x0000, false}}) {
    CAPTURE(k.own, k.packet);
    Pair p;
    p.b.attrs.pkey = k.own;
    p.b.qp->modify(p.now, QpState::rts, p.b.attrs);
    Craft c = rc(Op::write_only, 100, 0);
    c.pkey = k.packet;
    p.deliver(p.b, c.make());
    CHECK(p.take(p.b).has_value() == k.ok);
    CHECK(p.b.qp->counters().drops == (k.ok ? 0u : 1u));
  }
}

TEST_CASE("The P_Key of the QP is in every packet", "[state]") {
  Pair p;
  p.a.attrs.pkey = 0x8123;
  p.a.qp->modify(p.now, QpState::rts, p.a.attrs);
  p.a.post_send(p.send(1, WrOpcode::rdma_write), {p.a.sge(0, 8)});
  CHECK(p.take(p.a)->bth().pkey() == 0x8123);
}

TEST_CASE("IBA 9.6.1.1: opcodes of another service, unknown ones and versions are dropped", "[robust]") {
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    for (int op = 0; op < 256; ++op) {
      const std::uint8_t transport = type == QpType::rc   ? kTransportRc
                                     : type == QpType::uc ? kTransportUc
                                                          : kTransportUd;
      const bool mine = (op & kTransportMask) == transport && opcode_info(static_cast<std::uint8_t>(op)).known();
      if (mine) continue;
      Pair p(config(type));
      p.b.post_recv(1, {p.b.sge(0, 1000)});
      Packet pkt;
      pkt.bytes.resize(100);
      wire::Bth bth;
      bth.opcode = static_cast<std::uint8_t>(op);
      bth.psn = 100;
      bth.write(pkt.bytes.data());
      p.deliver(p.b, pkt);
      p.b.collect();
      CHECK(p.b.events.empty());
      CHECK_FALSE(p.take(p.b));
      CHECK(p.b.qp->counters().drops == 1);
      CHECK(p.b.qp->state() == QpState::rts);
    }
  }
  Pair p;
  Packet pkt = rc(Op::write_only, 100, 0).make();
  pkt.bytes[1] |= 1;  // TVer
  p.deliver(p.b, pkt);
  CHECK(p.b.qp->counters().drops == 1);
}

TEST_CASE("Packets are taken whether MigReq is set or not", "[robust]") {
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    Pair p(config(type));
    p.tap = [](bool, Packet& pkt) {
      pkt.bytes[1] &= static_cast<std::uint8_t>(~0x40);
      return true;
    };
    p.b.post_recv(1, {p.b.sge(0, 1000)});
    p.a.post_send(p.send(2), {p.a.sge(0, 200)});
    p.pump();
    REQUIRE(p.b.recvs().size() == 1);
    CHECK(p.b.recvs()[0].status == WcStatus::success);
    REQUIRE(p.a.sends().size() == 1);
    CHECK(p.a.sends()[0].status == WcStatus::success);
    CHECK(p.a.qp->counters().drops + p.b.qp->counters().drops == 0);
  }
}

TEST_CASE("IBA 9.6.1.1: a packet too short for its headers or its pad is dropped", "[robust]") {
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    for (int op = 0; op < 256; ++op) {
      const std::uint8_t transport = type == QpType::rc   ? kTransportRc
                                     : type == QpType::uc ? kTransportUc
                                                          : kTransportUd;
      const OpcodeInfo& info = opcode_info(static_cast<std::uint8_t>(op));
      if ((op & kTransportMask) != transport || !info.known()) continue;
      for (std::size_t n = 12; n < info.header_len + 3u; ++n) {
        Pair p(config(type));
        p.b.post_recv(1, {p.b.sge(0, 1000)});
        // Exactly n bytes on the heap, so that a sanitizer sees any access behind them.
        Packet pkt;
        pkt.bytes.resize(n);
        wire::Bth bth;
        bth.opcode = static_cast<std::uint8_t>(op);
        bth.psn = info.request ? 100 : 7000;
        bth.pad_count = n < info.header_len ? 0 : 3;  // forged
        bth.write(pkt.bytes.data());
        p.deliver(p.b, pkt);
        p.b.collect();
        CHECK(p.b.events.empty());
        CHECK(p.b.qp->counters().drops == 1);
        CHECK_FALSE(p.take(p.b));
      }
    }
  }
}

TEST_CASE("Any bytes may arrive in any state", "[robust]") {
  std::mt19937 rng(7);
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    const std::uint8_t transport = type == QpType::rc ? kTransportRc : type == QpType::uc ? kTransportUc : kTransportUd;
    for (int round = 0; round < 300; ++round) {
      PairConfig c = config(type, round % 2 == 0);
      Pair p(c);
      for (int i = 0; i < 8; ++i) p.b.post_recv(i, {p.b.sge(0, 600)});
      for (int i = 0; i < 6; ++i) {
        SendWqe w = p.send(i, static_cast<WrOpcode>(type == QpType::rc ? rng() % 7 : 2));
        w.rkey = p.a.key;
        w.remote_addr = p.a.addr(0);
        p.b.post_send(w, {p.b.sge(0, 8 + (w.opcode < WrOpcode::rdma_read ? rng() % 200 : 0))});
      }
      for (int step = 0; step < 60; ++step) {
        Packet pkt;
        pkt.bytes.resize(12 + rng() % 300);
        for (auto& b : pkt.bytes) b = static_cast<std::uint8_t>(rng());
        if (rng() % 8 != 0) {
          pkt.bytes[0] = static_cast<std::uint8_t>(transport | (rng() % 24));
          pkt.bytes[1] &= 0xF0;
          pkt.bytes[2] = pkt.bytes[3] = 0xFF;
          store_be24(pkt.bytes.data() + 9, (rng() % 2 == 0 ? 96 : 6996) + rng() % 16);
          const OpcodeInfo& info = pkt.info();
          if (info.reth != 0 && pkt.bytes.size() >= info.header_len && rng() % 2 == 0) {
            wire::Reth{p.b.addr(rng() % 65536), p.b.key, static_cast<std::uint32_t>(rng() % 2000)}.write(
                pkt.bytes.data() + info.reth);
          }
        }
        p.deliver(p.b, pkt);
        for (unsigned n = rng() % 4; n > 0 && p.take(p.b); --n) {
        }
        if (rng() % 4 == 0) p.b.collect();
        if (rng() % 16 == 0 && p.b.qp->next_timeout() != kNever) {
          p.now = std::max(p.now, p.b.qp->next_timeout());
          p.b.qp->on_timeout(p.now);
        }
      }
      while (p.take(p.b)) {
      }
      p.b.qp->modify(p.now, QpState::err, p.b.attrs);
      p.b.collect();
      // Each request completed once, in order.
      const auto s = p.b.sends();
      REQUIRE(s.size() == 6);
      for (std::uint64_t i = 0; i < 6; ++i) CHECK(s[i].wr_id == i);
      if (!c.srq) {
        const auto r = p.b.recvs();
        REQUIRE(r.size() == 8);
        for (std::uint64_t i = 0; i < 8; ++i) CHECK(r[i].wr_id == i);
      }
    }
  }
}

TEST_CASE("Counters count packets and bytes in both directions", "[state]") {
  Pair p;
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.a.post_send(p.send(1), {p.a.sge(0, 301)});
  p.pump();
  const auto& a = p.a.qp->counters();
  const auto& b = p.b.qp->counters();
  CHECK(a.sent_pkts == 2);
  CHECK(b.rcvd_pkts == 2);
  CHECK(a.sent_bytes == 12 + 256 + 12 + 48);
  CHECK(b.rcvd_bytes == a.sent_bytes);
  CHECK(b.sent_pkts == a.rcvd_pkts);
  CHECK(a.rcvd_bytes == b.sent_bytes);
}

TEST_CASE("The ring of receive completions grows to the depth of the queue", "[state]") {
  PairConfig c;
  c.rq_depth = 128;
  Pair p(c);
  for (int i = 0; i < 128; ++i) p.b.post_recv(i, {p.b.sge(0, 8)});
  for (std::uint32_t i = 0; i < 128; ++i) p.deliver(p.b, rc(Op::send_only, 100 + i, 4).make());
  CHECK(p.take(p.b)->psn() == 227);
  p.b.collect();
  REQUIRE(p.b.recvs().size() == 128);
  for (std::uint64_t i = 0; i < 128; ++i) CHECK(p.b.recvs()[i].wr_id == i);
}
