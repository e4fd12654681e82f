// One packet lost, doubled or late: the exact exchange that follows.
#include <catch2/catch.hpp>

#include "tests/unit/ib/pair.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

using Lines = std::vector<std::string>;

// Drops the first packet that reads `line`.
void drop_once(Pair& p, const std::string& line) {
  p.tap = [&p, line, done = false](bool from_a, Packet& pkt) mutable {
    if (done || (from_a ? "> " : "< ") + pkt.text() != line) return true;
    done = true;
    return false;
  };
}
// Delivers the first packet that reads `line` twice.
void double_once(Pair& p, const std::string& line) {
  p.tap = [&p, line, done = false](bool from_a, Packet& pkt) mutable {
    if (done || (from_a ? "> " : "< ") + pkt.text() != line) return true;
    done = true;
    p.deliver(from_a ? p.b : p.a, pkt);
    return true;
  };
}

void post_message(Pair& p, WrOpcode op, std::uint32_t length) {
  SendWqe w = p.send(1, op);
  w.remote_addr = p.b.addr(20000);
  w.swap_or_add = 1;
  if (op == WrOpcode::send) p.b.post_recv(1, {p.b.sge(20000, 4096)});
  p.a.post_send(w, {p.a.sge(0, length)});
}

void check_complete(Pair& p, std::uint32_t length) {
  REQUIRE(p.a.sends().size() == 1);
  CHECK(p.a.sends()[0].status == WcStatus::success);
  CHECK(std::memcmp(p.a.buf.data(), p.b.buf.data() + 20000, length) == 0);
  CHECK(p.a.qp->state() == QpState::rts);
  CHECK(p.b.qp->state() == QpState::rts);
}

// Sends three packets at once before the receiver's answers are looked at.
void burst(Pair& p) {
  std::vector<Packet> out;
  while (auto pkt = p.take(p.a)) out.push_back(*pkt);
  for (Packet& pkt : out) {
    if (!p.tap || p.tap(true, pkt)) p.deliver(p.b, pkt);
  }
}

}  // namespace

TEST_CASE("IBA 9.7.5.2.4: SEND First lost: one sequence NAK, all is sent again", "[rc][fault]") {
  Pair p;
  drop_once(p, "> SEND First 100");
  post_message(p, WrOpcode::send, 600);
  burst(p);
  p.pump();
  CHECK(p.exchange() == Lines{"> SEND First 100", "> SEND Middle 101", "> SEND Last 102", "< Acknowledge 100 NAK0",
                              "> SEND First 100", "> SEND Middle 101", "> SEND Last 102", "< Acknowledge 102 ACK"});
  check_complete(p, 600);
  CHECK(p.b.qp->counters().out_of_seq_request == 2);
  CHECK(p.a.qp->counters().rcvd_seq_err == 1);
}

TEST_CASE("IBA 9.7.5.2.4: SEND Middle lost: resent from there", "[rc][fault]") {
  Pair p;
  drop_once(p, "> SEND Middle 101");
  post_message(p, WrOpcode::send, 600);
  burst(p);
  p.pump();
  CHECK(p.exchange() == Lines{"> SEND First 100", "> SEND Middle 101", "> SEND Last 102", "< Acknowledge 101 NAK0",
                              "> SEND Middle 101", "> SEND Last 102", "< Acknowledge 102 ACK"});
  check_complete(p, 600);
}

TEST_CASE("IBA 9.7.6.1.3: SEND Last lost: the timer finds out", "[rc][fault]") {
  Pair p;
  drop_once(p, "> SEND Last 102");
  post_message(p, WrOpcode::send, 600);
  const Nanos start = p.now;
  p.pump();
  CHECK(p.a.qp->next_timeout() >= start + (4096ull << 14));
  CHECK(p.a.qp->next_timeout() <= start + 4 * (4096ull << 14));
  p.run_for(1'000'000'000);
  CHECK(p.exchange() == Lines{"> SEND First 100", "> SEND Middle 101", "> SEND Last 102", "> SEND First 100",
                              "< Acknowledge 101 ACK", "> SEND Last 102", "< Acknowledge 102 ACK"});
  check_complete(p, 600);
  CHECK(p.a.qp->counters().local_ack_timeout_err == 1);
}

TEST_CASE("IBA 9.7.4.4: a doubled SEND packet is acknowledged, not placed again", "[rc][fault]") {
  for (const char* which : {"> SEND First 100", "> SEND Middle 101", "> SEND Last 102"}) {
    CAPTURE(which);
    Pair p;
    double_once(p, which);
    post_message(p, WrOpcode::send, 600);
    burst(p);
    p.pump();
    check_complete(p, 600);
    CHECK(p.b.recvs().size() == 1);
    CHECK(p.b.qp->counters().duplicate_request == 1);
  }
}

TEST_CASE("IBA 9.7.5.2.4: RDMA WRITE packets lost: resent with their PSNs, RETH only in the First", "[rc][fault]") {
  for (const char* which : {"> RDMA WRITE First 100", "> RDMA WRITE Middle 101", "> RDMA WRITE Last 102"}) {
    CAPTURE(which);
    Pair p;
    drop_once(p, which);
    post_message(p, WrOpcode::rdma_write, 600);
    burst(p);
    p.run_for(1'000'000'000);
    check_complete(p, 600);
  }
}

TEST_CASE("IBA 9.7.4.4: an ACK lost: the resent message is acknowledged again and not executed", "[rc][fault]") {
  Pair p;
  drop_once(p, "< Acknowledge 100 ACK");
  post_message(p, WrOpcode::send, 10);
  p.run_for(1'000'000'000);
  CHECK(p.exchange() == Lines{"> SEND Only 100", "< Acknowledge 100 ACK", "> SEND Only 100", "< Acknowledge 100 ACK"});
  check_complete(p, 10);
  CHECK(p.b.recvs().size() == 1);
}

TEST_CASE("IBA 9.7.5.1.2: a doubled ACK is ignored", "[rc][fault]") {
  Pair p;
  double_once(p, "< Acknowledge 100 ACK");
  post_message(p, WrOpcode::send, 10);
  p.pump();
  check_complete(p, 10);
  CHECK(p.exchange().size() == 2);
}

TEST_CASE("IBA 9.7.5.3: READ response First lost: the READ restarts where data is missing", "[rc][fault]") {
  Pair p;
  drop_once(p, "< RDMA READ response First 100");
  post_message(p, WrOpcode::rdma_read, 1000);
  p.run_for(1'000'000'000);
  CHECK(p.exchange()[0] == "> RDMA READ Request 100");
  // Everything behind the gap is dropped, the request repeated in full.
  int requests = 0;
  for (auto& [from_a, pkt] : p.log) {
    if (!from_a) continue;
    ++requests;
    CHECK(pkt.reth().length == 1000);
  }
  CHECK(requests == 2);
  check_complete(p, 1000);
}

TEST_CASE("IBA 9.7.5.3: READ response Middle lost: new request with PSN, VA and length moved on", "[rc][fault]") {
  Pair p;
  drop_once(p, "< RDMA READ response Middle 101");
  post_message(p, WrOpcode::rdma_read, 1000);
  p.run_for(1'000'000'000);
  check_complete(p, 1000);
  const Packet* second = nullptr;
  for (auto& [from_a, pkt] : p.log) {
    if (from_a) second = &pkt;
  }
  REQUIRE(second != nullptr);
  CHECK(second->psn() == 101);
  CHECK(second->reth().va == p.b.addr(20000) + 256);
  CHECK(second->reth().length == 1000 - 256);
  Lines tail = p.exchange();
  tail.erase(tail.begin(), std::find(tail.begin(), tail.end(), "> RDMA READ Request 101"));
  CHECK(tail == Lines{"> RDMA READ Request 101", "< RDMA READ response First 101", "< RDMA READ response Middle 102",
                      "< RDMA READ response Last 103"});
}

TEST_CASE("IBA 9.7.5.3: READ response Last lost: one response Only brings the rest", "[rc][fault]") {
  Pair p;
  drop_once(p, "< RDMA READ response Last 103");
  post_message(p, WrOpcode::rdma_read, 1000);
  p.run_for(1'000'000'000);
  check_complete(p, 1000);
  CHECK(p.exchange().back() == "< RDMA READ response Only 103");
  CHECK(p.log.back().second.payload_len() == 1000 - 3 * 256);
}

TEST_CASE("IBA 9.7.5.3: doubled READ responses are dropped", "[rc][fault]") {
  for (const char* which :
       {"< RDMA READ response First 100", "< RDMA READ response Middle 101", "< RDMA READ response Last 103"}) {
    CAPTURE(which);
    Pair p;
    double_once(p, which);
    post_message(p, WrOpcode::rdma_read, 1000);
    p.pump();
    check_complete(p, 1000);
    CHECK(p.exchange().size() == 5);
  }
}

TEST_CASE("IBA 9.7.5.1.2: an ACK beyond an unanswered READ means its response was lost", "[rc][fault]") {
  Pair p;
  drop_once(p, "< RDMA READ response Only 100");
  SendWqe w = p.send(1, WrOpcode::rdma_read);
  w.remote_addr = p.b.addr(20000);
  p.a.post_send(w, {p.a.sge(0, 100)});
  w = p.send(2, WrOpcode::rdma_write);
  p.a.post_send(w, {p.a.sge(200, 50)});
  p.pump();
  CHECK(p.exchange() == Lines{"> RDMA READ Request 100", "< RDMA READ response Only 100", "> RDMA WRITE Only 101",
                              "< Acknowledge 101 ACK", "> RDMA READ Request 100", "< RDMA READ response Only 100",
                              "> RDMA WRITE Only 101", "< Acknowledge 101 ACK"});
  REQUIRE(p.a.sends().size() == 2);
  CHECK(p.a.sends()[0].wr_id == 1);
  CHECK(p.a.sends()[1].status == WcStatus::success);
  CHECK(p.a.qp->counters().local_ack_timeout_err == 0);
}

TEST_CASE("IBA 9.7.5.1.2: a READ response acknowledges the requests before it", "[rc][fault]") {
  Pair p;
  drop_once(p, "< Acknowledge 100 ACK");
  p.b.post_recv(1, {p.b.sge(0, 100)});
  p.a.post_send(p.send(1), {p.a.sge(200, 50)});
  SendWqe w = p.send(2, WrOpcode::rdma_read);
  w.remote_addr = p.b.addr(20000);
  p.a.post_send(w, {p.a.sge(0, 100)});
  p.pump();
  CHECK(p.a.sends().size() == 2);
  CHECK(p.exchange().size() == 4);
}

TEST_CASE("IBA 9.7.4.4.1: lost atomic acknowledgement: executed once, the saved result is replayed", "[rc][fault]") {
  for (WrOpcode op : {WrOpcode::atomic_fetch_and_add, WrOpcode::atomic_cmp_and_swp}) {
    Pair p;
    drop_once(p, "< ATOMIC Acknowledge 100");
    p.b.word(64) = 5;
    SendWqe w = p.send(1, op);
    w.remote_addr = p.b.addr(64);
    w.compare = 5;
    w.swap_or_add = 6;
    p.a.post_send(w, {p.a.sge(0, 8)});
    p.run_for(1'000'000'000);
    REQUIRE(p.a.sends().size() == 1);
    CHECK(p.a.sends()[0].status == WcStatus::success);
    CHECK(p.a.word(0) == 5);
    CHECK(p.b.word(64) == (op == WrOpcode::atomic_cmp_and_swp ? 6 : 11));
    CHECK(p.b.mem.atomics == 1);
  }
}

TEST_CASE("IBA 9.7.4.4.1: a doubled atomic request is answered twice, executed once", "[rc][fault]") {
  Pair p;
  double_once(p, "> FetchAdd 100");
  p.b.word(64) = 5;
  SendWqe w = p.send(1, WrOpcode::atomic_fetch_and_add);
  w.remote_addr = p.b.addr(64);
  w.swap_or_add = 1;
  p.a.post_send(w, {p.a.sge(0, 8)});
  p.pump();
  CHECK(p.a.sends().size() == 1);
  CHECK(p.b.word(64) == 6);
  CHECK(p.b.mem.atomics == 1);
}

TEST_CASE("IBA 9.7.5.2.8: RNR NAK lost: the request is resent by the timer and refused again", "[rc][fault]") {
  Pair p;
  drop_once(p, "< Acknowledge 100 RNR");
  p.a.post_send(p.send(1), {p.a.sge(0, 10)});
  p.pump();
  CHECK(p.exchange() == Lines{"> SEND Only 100", "< Acknowledge 100 RNR"});
  const Nanos t = p.a.qp->next_timeout();
  p.now = t;
  p.a.qp->on_timeout(t);
  p.pump();
  CHECK(p.exchange().back() == "< Acknowledge 100 RNR");
  p.b.post_recv(1, {p.b.sge(0, 10)});
  p.run_for(1'000'000'000);
  REQUIRE(p.a.sends().size() == 1);
  CHECK(p.a.sends()[0].status == WcStatus::success);
}

TEST_CASE("IBA 9.7.5.2.4: a sequence NAK lost: the responder sends no second one, the timer takes over",
          "[rc][fault]") {
  Pair p;
  int dropped = 0;
  p.tap = [&](bool from_a, Packet& pkt) {
    const bool hit = (from_a && pkt.psn() == 100 && dropped == 0) || (!from_a && pkt.syndrome() == kNakPsnSequence);
    dropped += hit;
    return !hit;
  };
  post_message(p, WrOpcode::send, 1000);
  burst(p);
  p.pump();
  int naks = 0;
  for (auto& [from_a, pkt] : p.log) naks += !from_a;
  CHECK(naks == 1);
  p.run_for(1'000'000'000);
  check_complete(p, 1000);
}

TEST_CASE("IBA 9.7.5.2.4: a sequence NAK is followed by another for the next loss", "[rc][fault]") {
  Pair p;
  int sent_101 = 0, sent_100 = 0;
  p.tap = [&](bool from_a, Packet& pkt) {
    if (from_a && pkt.psn() == 100) return sent_100++ != 0;
    if (from_a && pkt.psn() == 101) return sent_101++ != 1;  // the first resent one is lost
    return true;
  };
  post_message(p, WrOpcode::send, 600);
  burst(p);
  p.move(p.b, p.a);
  burst(p);
  p.pump();
  int naks = 0;
  for (auto& [from_a, pkt] : p.log) naks += !from_a && pkt.syndrome() == kNakPsnSequence;
  CHECK(naks == 2);
  check_complete(p, 600);
  CHECK(p.a.qp->counters().local_ack_timeout_err == 0);
}
