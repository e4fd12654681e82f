// The RC responder: what each kind of request, good or bad, leads to.
#include <catch2/catch.hpp>

#include "tests/unit/ib/craft.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

// B is the responder and gets crafted requests; PSNs start at 100.
struct Responder : Pair {
  explicit Responder(PairConfig c = {}) : Pair(c) {}
  std::vector<Packet> give(const Craft& c) {
    deliver(b, c.make());
    return answers();
  }
  std::vector<Packet> answers() {
    std::vector<Packet> v;
    while (auto p = take(b)) v.push_back(*p);
    b.collect();
    return v;
  }
  Craft write(Op op, std::uint32_t psn, std::uint32_t payload, std::uint32_t total) {
    Craft c = rc(op, psn, payload);
    c.va = b.addr(4096);
    c.rkey = b.key;
    c.dma_len = total;
    return c;
  }
  Craft read(std::uint32_t psn, std::uint32_t length, std::uint64_t offset = 0) {
    Craft c = rc(Op::read_request, psn);
    c.va = b.addr(4096 + offset);
    c.rkey = b.key;
    c.dma_len = length;
    return c;
  }
  Craft fetch_add(std::uint32_t psn, std::uint64_t add = 1) {
    Craft c = rc(Op::fetch_add, psn);
    c.va = b.addr(64);
    c.rkey = b.key;
    c.swap_or_add = add;
    return c;
  }
};

// The QP has answered with this NAK and is in ERR.
void check_fatal(Responder& p, const std::vector<Packet>& v, std::uint32_t psn, std::uint8_t syndrome) {
  REQUIRE(v.size() == 1);
  CHECK(v[0].op() == Op::acknowledge);
  CHECK(v[0].psn() == psn);
  CHECK(v[0].syndrome() == syndrome);
  CHECK(p.b.qp->state() == QpState::err);
  // Nothing else is ever sent.
  CHECK(p.give(rc(Op::send_only, psn, 4)).empty());
  CHECK_FALSE(p.b.qp->wants_transmit(p.now));
}

}  // namespace

TEST_CASE("IBA 9.7.5.1: the ACK carries PSN, MSN and credits", "[rc][responder]") {
  Responder p;
  for (int i = 0; i < 5; ++i) p.b.post_recv(i, {p.b.sge(0, 1000)});
  auto v = p.give(rc(Op::send_only, 100, 4));
  REQUIRE(v.size() == 1);
  CHECK(v[0].psn() == 100);
  CHECK(v[0].aeth().msn == 1);
  CHECK(v[0].syndrome() == 4);  // four left
  CHECK_FALSE(v[0].is_request);
  CHECK(v[0].bth().mig_req());
  Craft c = rc(Op::send_first, 101, 256);
  v = p.give(c);
  REQUIRE(v.size() == 1);
  CHECK(v[0].aeth().msn == 1);  // the message is not complete
}

TEST_CASE("IBA 9.7.5.1.2: acknowledgements owed are coalesced to the newest", "[rc][responder]") {
  Responder p;
  for (int i = 0; i < 3; ++i) p.b.post_recv(i, {p.b.sge(0, 100)});
  for (std::uint32_t i = 0; i < 3; ++i) p.deliver(p.b, rc(Op::send_only, 100 + i, 4).make());
  const auto v = p.answers();
  REQUIRE(v.size() == 1);
  CHECK(v[0].psn() == 102);
  CHECK(v[0].aeth().msn == 3);
}

TEST_CASE("IBA 9.7.5.1: without AckReq there is no ACK; the receive completes at once", "[rc][responder]") {
  Responder p;
  p.b.post_recv(1, {p.b.sge(0, 100)});
  Craft c = rc(Op::send_only, 100, 4);
  c.ack_req = false;
  p.deliver(p.b, c.make());
  p.b.collect();
  CHECK(p.b.recvs().size() == 1);
  CHECK(p.answers().empty());
}

TEST_CASE("A receive with AckReq is visible only when its ACK has been handed out", "[rc][responder]") {
  Responder p;
  p.b.post_recv(1, {p.b.sge(0, 100)});
  p.b.post_recv(2, {p.b.sge(0, 100)});
  p.deliver(p.b, rc(Op::send_only, 100, 4).make());
  Craft second = rc(Op::send_only, 101, 4);
  second.ack_req = false;
  p.deliver(p.b, second.make());
  p.b.collect();
  CHECK(p.b.recvs().empty());  // the second waits behind the first
  CHECK(p.take(p.b));
  p.b.collect();
  CHECK(p.b.recvs().size() == 2);
}

TEST_CASE("A receive covered by a READ response or atomic ACK is visible when that is handed out", "[rc][responder]") {
  for (bool atomic : {false, true}) {
    Responder p;
    p.b.post_recv(1, {p.b.sge(0, 100)});
    p.deliver(p.b, rc(Op::send_only, 100, 4).make());
    p.deliver(p.b, (atomic ? p.fetch_add(101) : p.read(101, 1000)).make());
    p.b.post_recv(2, {p.b.sge(0, 100)});
    p.deliver(p.b, rc(Op::send_only, atomic ? 102 : 105, 4).make());
    p.b.collect();
    CHECK(p.b.recvs().empty());
    CHECK(p.take(p.b));
    p.b.collect();
    CHECK(p.b.recvs().size() == 1);
    p.answers();
    CHECK(p.b.recvs().size() == 2);
  }
}

TEST_CASE("IBA 9.7.5.1: responses in PSN order: an ACK never overtakes READ responses", "[rc][responder]") {
  Responder p;
  p.b.post_recv(1, {p.b.sge(0, 100)});
  p.deliver(p.b, p.write(Op::write_only, 100, 4, 4).make());
  p.deliver(p.b, p.read(101, 600).make());
  p.deliver(p.b, p.fetch_add(104).make());
  p.deliver(p.b, rc(Op::send_only, 105, 4).make());
  const auto v = p.answers();
  std::vector<std::string> lines;
  for (auto& pkt : v) lines.push_back(pkt.text());
  CHECK(lines == std::vector<std::string>{"RDMA READ response First 101", "RDMA READ response Middle 102",
                                          "RDMA READ response Last 103", "ATOMIC Acknowledge 104",
                                          "Acknowledge 105 ACK"});
  CHECK(v[0].aeth().msn == 2);
  CHECK(v[3].aeth().msn == 3);
  CHECK(v[4].aeth().msn == 4);
}

TEST_CASE("IBA 9.7.5.2.4: PSN ahead: one NAK with the expected PSN until that arrives", "[rc][responder]") {
  Responder p;
  for (int i = 0; i < 4; ++i) p.b.post_recv(i, {p.b.sge(0, 100)});
  auto v = p.give(rc(Op::send_only, 101, 4));
  REQUIRE(v.size() == 1);
  CHECK(v[0].psn() == 100);
  CHECK(v[0].syndrome() == kNakPsnSequence);
  CHECK(p.give(rc(Op::send_only, 102, 4)).empty());
  CHECK(p.give(rc(Op::send_only, 101, 4)).empty());
  v = p.give(rc(Op::send_only, 100, 4));
  REQUIRE(v.size() == 1);
  CHECK(v[0].psn() == 100);
  v = p.give(rc(Op::send_only, 102, 4));
  REQUIRE(v.size() == 1);
  CHECK(v[0].syndrome() == kNakPsnSequence);
  CHECK(v[0].psn() == 101);
  CHECK(p.b.qp->state() == QpState::rts);
}

TEST_CASE("IBA 9.7.5.2.4: a sequence NAK not handed out yet is void when the expected packet arrives",
          "[rc][responder]") {
  Responder p;
  p.b.post_recv(1, {p.b.sge(0, 100)});
  p.deliver(p.b, rc(Op::send_only, 101, 4).make());
  const auto v = p.give(rc(Op::send_only, 100, 4));
  REQUIRE(v.size() == 1);
  CHECK(v[0].text() == "Acknowledge 100 ACK");
}

TEST_CASE("IBA 9.7.1: half of the PSN space is ahead, the other half behind", "[rc][responder]") {
  Responder p;
  p.b.post_recv(1, {p.b.sge(0, 100)});
  auto v = p.give(rc(Op::send_only, psn_add(100, 0x7FFFFF), 4));
  REQUIRE(v.size() == 1);
  CHECK(v[0].syndrome() == kNakPsnSequence);
  p.give(rc(Op::send_only, 100, 4));
  v = p.give(rc(Op::send_only, psn_add(101, 0x800000), 4));
  REQUIRE(v.size() == 1);
  CHECK(v[0].text() == "Acknowledge 100 ACK");  // a duplicate
}

TEST_CASE("IBA 9.7.4.4, C9-105: duplicate SEND and WRITE are always acknowledged with the newest PSN",
          "[rc][responder]") {
  Responder p;
  for (int i = 0; i < 3; ++i) p.b.post_recv(i, {p.b.sge(0, 100)});
  for (std::uint32_t i = 0; i < 3; ++i) p.give(rc(Op::send_only, 100 + i, 4));
  Craft c = rc(Op::send_only, 100, 4);
  c.ack_req = false;
  const auto v = p.give(c);
  REQUIRE(v.size() == 1);
  CHECK(v[0].text() == "Acknowledge 102 ACK");
  CHECK(v[0].aeth().msn == 3);
  CHECK(p.b.recvs().size() == 3);
}

TEST_CASE("IBA 9.7.4.1.2: opcodes out of sequence get NAK invalid request", "[rc][responder]") {
  struct Case {
    Op first;  // what is in progress; Op::acknowledge: nothing
    Op next;
  };
  const Op nothing = Op::acknowledge;
  for (const Case& k :
       {Case{nothing, Op::send_middle}, Case{nothing, Op::send_last}, Case{nothing, Op::send_last_imm},
        Case{nothing, Op::write_middle}, Case{nothing, Op::write_last}, Case{nothing, Op::write_last_imm},
        Case{nothing, Op::send_last_inv}, Case{Op::send_first, Op::send_first}, Case{Op::send_first, Op::send_only},
        Case{Op::send_first, Op::write_middle}, Case{Op::send_first, Op::write_last},
        Case{Op::send_first, Op::read_request}, Case{Op::send_first, Op::fetch_add},
        Case{Op::write_first, Op::send_middle}, Case{Op::write_first, Op::send_last},
        Case{Op::write_first, Op::write_first}, Case{Op::write_first, Op::write_only},
        Case{Op::write_first, Op::cmp_swap}}) {
    CAPTURE(int(k.first), int(k.next));
    Responder p;
    p.b.post_recv(7, {p.b.sge(0, 4000)});
    std::uint32_t psn = 100;
    if (k.first != nothing) p.give(p.write(k.first, psn++, 256, 1000));
    const auto info = opcode_info(static_cast<std::uint8_t>(k.next));
    const std::uint32_t n = info.payload == PayloadRule::empty ? 0 : 256;
    check_fatal(p, p.give(p.write(k.next, psn, n, 256)), psn, kNakInvalidRequest);
    REQUIRE(p.b.recvs().size() == 1);
    if (k.first == Op::send_first) {
      // The receive request in progress has the error.
      CHECK(p.b.recvs()[0].status == WcStatus::rem_inv_req_err);
      CHECK(p.b.count(AsyncEvent::qp_req_err) == 0);
    } else {
      CHECK(p.b.recvs()[0].status == WcStatus::wr_flush_err);
      CHECK(p.b.count(AsyncEvent::qp_req_err) == 1);
    }
    CHECK(p.b.recvs()[0].wr_id == 7);
  }
}

TEST_CASE("IBA 9.7.4.1.3: operations that are not enabled get NAK invalid request and QP_REQ_ERR", "[rc][responder]") {
  const std::pair<std::uint32_t, Op> cases[] = {{kAccessRemoteWrite, Op::write_only},
                                                {kAccessRemoteRead, Op::read_request},
                                                {kAccessRemoteAtomic, Op::fetch_add},
                                                {kAccessRemoteAtomic, Op::cmp_swap}};
  for (auto [flag, op] : cases) {
    CAPTURE(int(op));
    PairConfig c;
    c.access = kAllRemote & ~flag;
    Responder p(c);
    check_fatal(p, p.give(p.write(op, 100, op == Op::write_only ? 4 : 0, 4)), 100, kNakInvalidRequest);
    CHECK(p.b.count(AsyncEvent::qp_req_err) == 1);
  }
}

TEST_CASE("IBA 9.7.4.1.5: READ and atomics with max_dest_rd_atomic 0 get NAK invalid request", "[rc][responder]") {
  for (bool atomic : {false, true}) {
    PairConfig c;
    c.rd_atomic = 0;
    Responder p(c);
    check_fatal(p, p.give(atomic ? p.fetch_add(100) : p.read(100, 8)), 100, kNakInvalidRequest);
  }
}

TEST_CASE("IBA 9.7.4.1.5: more READs than max_dest_rd_atomic before the first is answered", "[rc][responder]") {
  PairConfig c;
  c.rd_atomic = 2;
  Responder p(c);
  p.deliver(p.b, p.read(100, 8).make());
  p.deliver(p.b, p.read(101, 8).make());
  CHECK(p.answers().size() == 2);
  // Answered ones may be replaced.
  p.deliver(p.b, p.read(102, 8).make());
  p.deliver(p.b, p.read(103, 8).make());
  p.deliver(p.b, p.read(104, 8).make());
  const auto v = p.answers();
  REQUIRE(v.size() == 3);
  CHECK(v[0].text() == "RDMA READ response Only 102");
  CHECK(v[1].text() == "RDMA READ response Only 103");
  CHECK(v[2].text() == "Acknowledge 104 NAK1");
  CHECK(p.b.qp->state() == QpState::err);
}

TEST_CASE("A replay that is still going on does not count as an open request", "[rc][responder]") {
  PairConfig c;
  c.rd_atomic = 1;
  Responder p(c);
  CHECK(p.give(p.read(100, 600)).size() == 3);
  p.deliver(p.b, p.read(100, 600).make());
  CHECK(p.take(p.b)->text() == "RDMA READ response First 100");
  const auto v = p.give(p.read(103, 8));
  REQUIRE(v.size() == 1);
  CHECK(v[0].text() == "RDMA READ response Only 103");
}

TEST_CASE("Responses keep their order when a replay gives up its place", "[rc][responder]") {
  PairConfig c;
  c.rd_atomic = 2;
  Responder p(c);
  CHECK(p.give(p.read(100, 8)).size() == 1);
  CHECK(p.give(p.read(101, 8)).size() == 1);
  p.deliver(p.b, p.read(100, 8).make());  // replays
  p.deliver(p.b, p.read(101, 8).make());
  p.deliver(p.b, p.read(102, 8).make());  // takes the place of 100
  const auto v = p.answers();
  REQUIRE(v.size() == 2);
  CHECK(v[0].text() == "RDMA READ response Only 101");
  CHECK(v[1].text() == "RDMA READ response Only 102");
}

TEST_CASE("IBA 9.7.5.2.8: no receive request: RNR NAK with the timer of the QP, nothing changes", "[rc][rnr]") {
  Responder p;
  p.give(p.write(Op::write_only, 100, 4, 4));
  auto v = p.give(rc(Op::send_only, 101, 4));
  REQUIRE(v.size() == 1);
  CHECK(v[0].psn() == 101);
  CHECK(v[0].syndrome() == (0x20 | 12));
  CHECK(v[0].aeth().msn == 1);
  CHECK(p.give(rc(Op::send_only, 102, 4)).empty());  // silence until 101 comes
  p.b.post_recv(1, {p.b.sge(0, 100)});
  v = p.give(rc(Op::send_only, 101, 4));
  REQUIRE(v.size() == 1);
  CHECK(v[0].text() == "Acknowledge 101 ACK");
}

TEST_CASE("IBA 9.7.4.1.4: WRITE with immediate needs its receive request at the last packet", "[rc][rnr]") {
  Responder p;
  CHECK(p.give(p.write(Op::write_first, 100, 256, 300)).size() == 1);
  auto v = p.give(p.write(Op::write_last_imm, 101, 44, 0));
  REQUIRE(v.size() == 1);
  CHECK((v[0].syndrome() & kSyndromeTypeMask) == kSyndromeRnr);
  CHECK(v[0].psn() == 101);
  p.b.post_recv(1, {});
  v = p.give(p.write(Op::write_last_imm, 101, 44, 0));
  REQUIRE(v.size() == 1);
  CHECK(v[0].text() == "Acknowledge 101 ACK");
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].byte_len == 300);
}

TEST_CASE("IBA 9.7.5.2: SEND longer than the receive buffer: NAK invalid request, LOC_LEN_ERR", "[rc][responder]") {
  Responder p;
  p.b.post_recv(5, {p.b.sge(0, 300)});
  p.b.post_recv(6, {p.b.sge(0, 300)});
  CHECK(p.give(rc(Op::send_first, 100, 256)).size() == 1);
  check_fatal(p, p.give(rc(Op::send_last, 101, 45)), 101, kNakInvalidRequest);
  REQUIRE(p.b.recvs().size() == 2);
  CHECK(p.b.recvs()[0].wr_id == 5);
  CHECK(p.b.recvs()[0].status == WcStatus::loc_len_err);
  CHECK(p.b.recvs()[0].vendor_err != 0);
  CHECK(p.b.recvs()[1].status == WcStatus::wr_flush_err);
}

TEST_CASE("IBA 9.7.5.2: a receive element that cannot be written: NAK remote operational, LOC_PROT_ERR",
          "[rc][responder]") {
  for (int fault = 0; fault < 3; ++fault) {
    Responder p;
    Sge s = p.b.sge(0, 300);
    if (fault == 0) s.lkey = 0xBAD;
    if (fault == 1) s.lkey = p.b.mem.add(p.b.buf.data(), 4096, 0);
    if (fault == 2) p.b.mem.write_faults = true;
    p.b.post_recv(5, {s});
    check_fatal(p, p.give(rc(Op::send_only, 100, 4)), 100, kNakRemoteOperational);
    REQUIRE(p.b.recvs().size() == 1);
    CHECK(p.b.recvs()[0].status == WcStatus::loc_prot_err);
  }
}

TEST_CASE("IBA 9.7.4.1.7: R_Key, bounds, rights and PD: NAK remote access and QP_ACCESS_ERR", "[rc][responder]") {
  enum Kind { kBadKey, kBounds, kWrap, kRights, kOtherPd };
  for (Op op : {Op::write_only, Op::read_request, Op::fetch_add, Op::cmp_swap}) {
    for (Kind kind : {kBadKey, kBounds, kWrap, kRights, kOtherPd}) {
      CAPTURE(int(op), int(kind));
      Responder p;
      Craft c = p.write(op, 100, op == Op::write_only ? 8 : 0, 8);
      if (kind == kBadKey) c.rkey = 0xBAD;
      if (kind == kBounds) c.va = p.b.addr(p.b.buf.size()) & ~7ull;
      if (kind == kWrap) c.va = ~7ull;
      if (kind == kRights) c.rkey = p.b.mem.add(p.b.buf.data(), 65536, kAccessLocalWrite);
      if (kind == kOtherPd) c.rkey = p.b.mem.add(p.b.buf.data(), 65536, kAllAccess, 2);
      check_fatal(p, p.give(c), 100, kNakRemoteAccess);
      CHECK(p.b.count(AsyncEvent::qp_access_err) == 1);
      CHECK(p.b.mem.atomics == 0);
    }
  }
}

TEST_CASE("IBA 9.7.4.1.7: the first packet of a WRITE checks the whole range", "[rc][responder]") {
  Responder p;
  Craft c = p.write(Op::write_first, 100, 256, 1000);
  c.va = p.b.addr(p.b.buf.size() - 999);
  check_fatal(p, p.give(c), 100, kNakRemoteAccess);
}

TEST_CASE("IBA 10.6.3.2: the key is checked again for every packet of a WRITE", "[rc][responder]") {
  Responder p;
  Craft c = p.write(Op::write_first, 100, 256, 600);
  c.rkey = p.b.mem.add(p.b.buf.data(), 8192, kAllAccess);
  CHECK(p.give(c).size() == 1);
  p.b.mem.remove(c.rkey);
  check_fatal(p, p.give(p.write(Op::write_middle, 101, 256, 0)), 101, kNakRemoteAccess);
}

TEST_CASE("IBA 10.6.3.2: the key is checked again for every packet of a READ response", "[rc][responder]") {
  Responder p;
  Craft c = p.read(100, 600);
  c.rkey = p.b.mem.add(p.b.buf.data(), 8192, kAllAccess);
  p.b.post_recv(1, {p.b.sge(0, 8)});
  p.deliver(p.b, c.make());
  p.deliver(p.b, rc(Op::send_only, 103, 4).make());
  CHECK(p.take(p.b)->text() == "RDMA READ response First 100");
  p.b.mem.remove(c.rkey);
  check_fatal(p, p.answers(), 101, kNakRemoteAccess);
  CHECK(p.b.count(AsyncEvent::qp_access_err) == 1);
  CHECK(p.b.recvs().size() == 1);  // the SEND had been executed
}

TEST_CASE("Memory that faults: WRITE and READ get NAK remote operational and QP_FATAL", "[rc][responder]") {
  Responder w;
  w.b.mem.write_faults = true;
  check_fatal(w, w.give(w.write(Op::write_only, 100, 4, 4)), 100, kNakRemoteOperational);
  CHECK(w.b.count(AsyncEvent::qp_fatal) == 1);
  Responder r;
  r.b.mem.read_faults = true;
  check_fatal(r, r.give(r.read(100, 600)), 100, kNakRemoteOperational);
  CHECK(r.b.count(AsyncEvent::qp_fatal) == 1);
  Responder a;
  a.b.mem.write_faults = true;
  check_fatal(a, a.give(a.fetch_add(100)), 100, kNakRemoteOperational);
}

TEST_CASE("IBA 9.7.4.1.7, C9-88: zero-length READ and WRITE check neither key nor address", "[rc][responder]") {
  Responder p;
  Craft c = p.write(Op::write_only, 100, 0, 0);
  c.rkey = 0xBAD;
  c.va = ~0ull;
  CHECK(p.give(c).at(0).text() == "Acknowledge 100 ACK");
  c = p.read(101, 0);
  c.rkey = 0xBAD;
  c.va = ~0ull;
  CHECK(p.give(c).at(0).text() == "RDMA READ response Only 101");
}

TEST_CASE("IBA 9.7.4.1.6, C9-94: a DMA length that does not fit the packets: NAK invalid request", "[rc][responder]") {
  struct Case {
    Op op;
    std::uint32_t payload, total;
  };
  for (const Case& k : {Case{Op::write_only, 4, 5}, Case{Op::write_only, 5, 4}, Case{Op::write_first, 256, 256},
                        Case{Op::write_first, 256, 100}, Case{Op::write_first, 256, 0x80000001},
                        Case{Op::read_request, 0, 0x80000001}}) {
    CAPTURE(int(k.op), k.payload, k.total);
    Responder p;
    check_fatal(p, p.give(p.write(k.op, 100, k.payload, k.total)), 100, kNakInvalidRequest);
  }
  // In the middle and at the end.
  Responder m;
  m.give(m.write(Op::write_first, 100, 256, 500));
  check_fatal(m, m.give(m.write(Op::write_middle, 101, 256, 0)), 101, kNakInvalidRequest);
  Responder l;
  l.give(l.write(Op::write_first, 100, 256, 500));
  check_fatal(l, l.give(l.write(Op::write_last, 101, 243, 0)), 101, kNakInvalidRequest);
}

TEST_CASE("IBA 9.7.4.1.7: an atomic at a misaligned address: NAK invalid request", "[rc][responder]") {
  for (std::uint64_t off : {1, 4, 7}) {
    Responder p;
    Craft c = p.fetch_add(100);
    c.va += off;
    check_fatal(p, p.give(c), 100, kNakInvalidRequest);
    CHECK(p.b.mem.atomics == 0);
  }
}

TEST_CASE("IBA 9.4.1.1.3: SEND with Invalidate invalidates before it completes", "[rc][responder]") {
  Responder p;
  p.b.post_recv(1, {p.b.sge(0, 100)});
  Craft c = rc(Op::send_only_inv, 100, 4);
  c.inv_rkey = p.b.mem.add(p.b.buf.data(), 64, kAllAccess);
  p.b.mem.region(c.inv_rkey).invalidatable = true;
  CHECK(p.give(c).at(0).text() == "Acknowledge 100 ACK");
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].wc_flags == kWcWithInv);
  CHECK(p.b.recvs()[0].imm_or_rkey == c.inv_rkey);
  CHECK(p.b.mem.invalidations == 1);
}

TEST_CASE("IBA 9.4.1.1.3: an R_Key that may not be invalidated: NAK remote access", "[rc][responder]") {
  Responder p;
  p.b.post_recv(1, {p.b.sge(0, 100)});
  Craft c = rc(Op::send_only_inv, 100, 4);
  c.inv_rkey = p.b.key;
  check_fatal(p, p.give(c), 100, kNakRemoteAccess);
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].status == WcStatus::rem_inv_req_err);
}

TEST_CASE("A fatal error is visible only when its NAK has been handed out", "[rc][responder]") {
  Responder p;
  p.b.post_recv(1, {p.b.sge(0, 4)});
  p.b.post_send(p.send(5, WrOpcode::rdma_write), {p.b.sge(0, 4)});
  p.deliver(p.b, p.read(100, 600).make());
  p.deliver(p.b, rc(Op::send_only, 103, 5).make());  // too long
  CHECK(p.b.qp->state() == QpState::err);
  p.b.collect();
  CHECK(p.b.events.empty());
  CHECK(p.b.qp->wants_transmit(p.now));
  // What the requester still waits for goes first.
  const auto v = p.answers();
  REQUIRE(v.size() == 4);
  CHECK(v[2].text() == "RDMA READ response Last 102");
  CHECK(v[3].text() == "Acknowledge 103 NAK1");
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].status == WcStatus::loc_len_err);
  REQUIRE(p.b.sends().size() == 1);
  CHECK(p.b.sends()[0].status == WcStatus::wr_flush_err);
}

TEST_CASE("IBA 9.7.4.4.1: duplicate READs: the whole, a part, and what does not match", "[rc][replay]") {
  Responder p;
  CHECK(p.give(p.read(100, 1000)).size() == 4);
  auto v = p.give(p.read(100, 1000));
  CHECK(v.size() == 4);
  v = p.give(p.read(102, 1000 - 512, 512));
  REQUIRE(v.size() == 2);
  CHECK(v[0].text() == "RDMA READ response First 102");
  CHECK(v[1].text() == "RDMA READ response Last 103");
  CHECK(std::memcmp(v[0].payload(), p.b.buf.data() + 4096 + 512, 256) == 0);
  CHECK(p.b.qp->counters().drops == 0);
  Craft c = p.read(100, 1000);
  c.rkey ^= 1;
  CHECK(p.give(c).empty());
  CHECK(p.give(p.read(100, 1001)).empty());  // longer than the original
  CHECK(p.give(p.read(102, 600, 512)).empty());
  CHECK(p.give(p.read(103, 500, 0)).empty());    // would go beyond its PSNs
  CHECK(p.give(p.read(101, 8, ~0ull)).empty());  // before its range
  CHECK(p.give(p.fetch_add(100)).empty());       // another operation
  CHECK(p.give(p.read(90, 8)).empty());          // not saved
  CHECK(p.b.qp->counters().drops == 7);
  CHECK(p.b.qp->state() == QpState::rts);
}

TEST_CASE("IBA 9.7.4.4.1: only the last max_dest_rd_atomic requests can be replayed", "[rc][replay]") {
  PairConfig c;
  c.rd_atomic = 3;
  Responder p(c);
  for (std::uint32_t i = 0; i < 5; ++i) CHECK(p.give(p.fetch_add(100 + i)).size() == 1);
  CHECK(p.give(p.fetch_add(100)).empty());
  CHECK(p.give(p.fetch_add(101)).empty());
  for (std::uint32_t i = 2; i < 5; ++i) {
    const auto v = p.give(p.fetch_add(100 + i));
    REQUIRE(v.size() == 1);
    CHECK(v[0].psn() == 100 + i);
  }
  CHECK(p.b.mem.atomics == 5);
}

TEST_CASE("IBA 9.7.4.4.1: replays come in PSN order, also when asked for out of order", "[rc][replay]") {
  Responder p;
  p.b.word(64) = 10;
  for (std::uint32_t i = 0; i < 3; ++i) p.give(p.fetch_add(100 + i));
  p.deliver(p.b, p.fetch_add(102).make());
  p.deliver(p.b, p.fetch_add(100).make());
  const auto v = p.answers();
  REQUIRE(v.size() == 2);
  CHECK(v[0].psn() == 100);
  CHECK(wire::AtomicAckEth::read(v[0].bytes.data() + 16).original == 10);
  CHECK(v[1].psn() == 102);
  CHECK(wire::AtomicAckEth::read(v[1].bytes.data() + 16).original == 12);
}

TEST_CASE("IBA 9.7.3: a READ sees the WRITE before it; its PSNs are all used up", "[rc][responder]") {
  Responder p;
  p.deliver(p.b, p.write(Op::write_only, 100, 8, 8).make());
  p.deliver(p.b, p.read(101, 600).make());
  p.b.post_recv(1, {p.b.sge(0, 8)});
  const auto v = p.answers();
  CHECK(v.at(0).payload()[0] == 0x5A);
  CHECK(p.give(rc(Op::send_only, 104, 4)).at(0).text() == "Acknowledge 104 ACK");
}

TEST_CASE("IBA 11.2.5.2: max_dest_rd_atomic raised in SQD keeps saved results", "[rc][replay]") {
  PairConfig c;
  c.rd_atomic = 1;
  Responder p(c);
  CHECK(p.give(p.fetch_add(100)).size() == 1);
  p.b.qp->modify(p.now, QpState::sqd, p.b.attrs);
  p.b.attrs.max_dest_rd_atomic = 5;
  p.b.qp->modify(p.now, QpState::sqd, p.b.attrs);
  CHECK(p.give(p.fetch_add(100)).size() == 1);
  for (std::uint32_t i = 1; i < 6; ++i) p.deliver(p.b, p.fetch_add(100 + i).make());
  CHECK(p.answers().size() == 5);
  CHECK(p.b.mem.atomics == 6);
}
