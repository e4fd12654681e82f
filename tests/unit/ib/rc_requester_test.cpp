// The RC requester: window, order, retries, local requests, queue states.
#include <catch2/catch.hpp>

#include "tests/unit/ib/craft.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

using Lines = std::vector<std::string>;

std::vector<Packet> take_all(Pair& p, End& e) {
  std::vector<Packet> v;
  while (auto pkt = p.take(e)) v.push_back(*pkt);
  return v;
}
SendWqe write(Pair& p, std::uint64_t wr_id, std::size_t to = 20000) {
  SendWqe w = p.send(wr_id, WrOpcode::rdma_write);
  w.remote_addr = p.b.addr(to);
  return w;
}
SendWqe read(Pair& p, std::uint64_t wr_id, std::size_t from = 20000) {
  SendWqe w = p.send(wr_id, WrOpcode::rdma_read);
  w.remote_addr = p.b.addr(from);
  return w;
}
void ack(Pair& p, std::uint32_t psn, std::uint8_t syndrome = 0x1F, std::uint32_t msn = 0) {
  Craft c = rc(Op::acknowledge, psn);
  c.syndrome = syndrome;
  c.msn = msn;
  p.deliver(p.a, c.make());
  p.a.collect();
}

}  // namespace

TEST_CASE("IBA 9.7.2: segmentation into First, Middle and Last with full packets", "[rc]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 800)});
  const auto v = take_all(p, p.a);
  REQUIRE(v.size() == 4);
  CHECK(v[0].op() == Op::write_first);
  CHECK(v[1].op() == Op::write_middle);
  CHECK(v[2].op() == Op::write_middle);
  CHECK(v[3].op() == Op::write_last);
  CHECK(v[0].reth().length == 800);
  CHECK(v[0].reth().va == p.b.addr(20000));
  for (std::uint32_t i = 0; i < 4; ++i) {
    CHECK(v[i].psn() == 100 + i);
    CHECK(v[i].payload_len() == (i < 3 ? 256 : 32));
    CHECK(v[i].bth().mig_req());
    CHECK(v[i].bth().dest_qpn() == 0x12);
    CHECK(v[i].bth().ack_req() == (i == 3));
  }
}

TEST_CASE("IBA 9.2.8: pad bytes are counted and zero", "[rc]") {
  for (std::uint32_t n = 1; n <= 8; ++n) {
    Pair p;
    p.a.post_send(write(p, 1), {p.a.sge(0, n)});
    const auto v = take_all(p, p.a);
    REQUIRE(v.size() == 1);
    CHECK(v[0].bth().pad_count() == (4 - n % 4) % 4);
    CHECK(v[0].bytes.size() % 4 == 0);
    for (std::size_t i = v[0].bytes.size() - v[0].bth().pad_count(); i < v[0].bytes.size(); ++i)
      CHECK(v[0].bytes[i] == 0);
  }
}

TEST_CASE("IBA 9.7.3.2: AckReq on the last packet and every 16th of a long message", "[rc]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 40 * 256)});
  const auto v = take_all(p, p.a);
  REQUIRE(v.size() == 40);
  for (std::size_t i = 0; i < v.size(); ++i) CHECK(v[i].bth().ack_req() == (i == 15 || i == 31 || i == 39));
}

TEST_CASE("IBA 9.2.3: SE on the last packet of SENDs and WRITEs with immediate data only", "[rc]") {
  Pair p;
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.b.post_recv(2, {p.b.sge(0, 1000)});
  p.a.post_send(p.send(1, WrOpcode::send, kSendSolicited), {p.a.sge(0, 600)});
  p.pump();
  SendWqe w = p.send(2, WrOpcode::rdma_write_with_imm, kSendSolicited);
  p.a.post_send(w, {p.a.sge(0, 10)});
  p.pump();
  w = write(p, 3);
  w.flags = kSendSolicited;
  p.a.post_send(w, {p.a.sge(0, 10)});
  p.pump();
  std::vector<bool> se;
  for (auto& [from_a, pkt] : p.log) {
    if (from_a) se.push_back(pkt.bth().solicited());
  }
  CHECK(se == std::vector<bool>{false, false, true, true, false});
  CHECK(p.b.recvs()[0].solicited);
  CHECK(p.b.recvs()[1].solicited);
}

TEST_CASE("IBA 9.7.2: no more than the window is unacknowledged; an ACK inside a message moves it", "[rc]") {
  Pair p;
  p.a.post_send(write(p, 1, 0), {p.a.sge(0, 60000), p.a.sge(0, 60000), p.a.sge(0, 60000)});
  auto v = take_all(p, p.a);
  CHECK(v.size() == 512);
  CHECK_FALSE(p.a.qp->wants_transmit(p.now));
  ack(p, 100 + 15);
  CHECK(p.a.qp->wants_transmit(p.now));
  v = take_all(p, p.a);
  CHECK(v.size() == 16);
}

TEST_CASE("IBA 9.7.2: responses of READs take no room in the window", "[rc]") {
  PairConfig c;
  c.buf_size = 1 << 20;
  Pair p(c);
  p.a.post_send(read(p, 1, 0), {p.a.sge(0, 200000)});
  p.a.post_send(write(p, 2, 300000), {p.a.sge(300000, 100 * 256)});
  auto v = take_all(p, p.a);
  CHECK(v.size() == 101);
  // Responses and their count stay in step: afterwards the window is as large as before.
  for (auto& pkt : v) p.deliver(p.b, pkt);
  p.pump();
  CHECK(p.a.sends().size() == 2);
  p.a.post_send(write(p, 3, 0), {p.a.sge(0, 600 * 256)});
  CHECK(take_all(p, p.a).size() == 512);
}

TEST_CASE("IBA 9.7.2: a READ that is half answered leaves the window as it is", "[rc]") {
  PairConfig c;
  c.buf_size = 1 << 20;
  Pair p(c);
  p.a.post_send(read(p, 1, 0), {p.a.sge(0, 200 * 256)});
  p.a.post_send(write(p, 2, 300000), {p.a.sge(300000, 1000 * 256)});
  CHECK(take_all(p, p.a).size() == 512);
  p.deliver(p.a, rc(Op::read_resp_first, 100, 256).make());
  for (std::uint32_t i = 1; i < 100; ++i) p.deliver(p.a, rc(Op::read_resp_middle, 100 + i, 256).make());
  CHECK(take_all(p, p.a).empty());
}

TEST_CASE("IBA 9.7.1: PSNs wrap from 0xFFFFFF to 0", "[rc]") {
  PairConfig c;
  c.psn_a = 0xFFFFFE;
  Pair p(c);
  p.b.post_recv(1, {p.b.sge(0, 2000)});
  p.a.post_send(p.send(1), {p.a.sge(0, 1000)});
  p.a.post_send(read(p, 2), {p.a.sge(0, 1000)});
  p.pump();
  CHECK(p.a.sends().size() == 2);
  CHECK(p.log[2].second.psn() == 0);
}

TEST_CASE("IBA 9.7.7.2: without credits one message goes as a probe, credits release the others", "[rc][credits]") {
  PairConfig c;
  Pair p(c);
  for (int i = 0; i < 4; ++i) p.b.post_recv(i, {p.b.sge(0, 64)});
  for (int i = 0; i < 8; ++i) p.a.post_send(p.send(i), {p.a.sge(0, 8)});
  auto v = take_all(p, p.a);
  REQUIRE(v.size() == 1);
  p.deliver(p.b, v[0]);
  auto reply = p.take(p.b);
  REQUIRE(reply);
  CHECK(reply->syndrome() == 3);  // three receive requests left
  CHECK(reply->aeth().msn == 1);
  p.deliver(p.a, *reply);
  v = take_all(p, p.a);
  CHECK(v.size() == 4);  // three with credits and a probe
}

TEST_CASE("IBA 9.7.7.2: RDMA WRITE and READ need no credits", "[rc][credits]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  p.a.post_send(write(p, 2), {p.a.sge(0, 8)});
  p.a.post_send(read(p, 3), {p.a.sge(0, 8)});
  CHECK(take_all(p, p.a).size() == 3);
}

TEST_CASE("IBA 9.7.7.2: credits never move back; code 0x1F lifts the limit for good", "[rc][credits]") {
  Pair p;
  for (int i = 0; i < 20; ++i) p.a.post_send(p.send(i), {p.a.sge(0, 8)});
  take_all(p, p.a);
  ack(p, 100, 6, 1);  // MSN 1, 8 credits
  CHECK(take_all(p, p.a).size() == 9);
  ack(p, 101, 1, 2);  // fewer: an old one
  CHECK(take_all(p, p.a).empty());
  ack(p, 102, 0x1F, 3);
  CHECK(take_all(p, p.a).size() == 10);
}

TEST_CASE("IBA 9.7.7.2: an SRQ responder advertises no credits", "[rc][credits][srq]") {
  PairConfig c;
  c.srq = true;
  Pair p(c);
  p.b.post_recv(1, {p.b.sge(0, 64)});
  p.a.post_send(p.send(1), {p.a.sge(0, 8)});
  p.pump();
  CHECK(p.log.back().second.syndrome() == 0x1F);
}

TEST_CASE("IBA 10.8.3.3: a fenced request waits for READs and atomics before it", "[rc]") {
  Pair p;
  p.a.post_send(read(p, 1), {p.a.sge(0, 100)});
  SendWqe w = write(p, 2);
  p.a.post_send(w, {p.a.sge(0, 8)});
  w = write(p, 3);
  w.flags = kSendFence;
  p.a.post_send(w, {p.a.sge(0, 8)});
  auto v = take_all(p, p.a);
  REQUIRE(v.size() == 2);
  CHECK_FALSE(p.a.qp->wants_transmit(p.now));
  p.deliver(p.b, v[0]);
  auto reply = p.take(p.b);
  p.deliver(p.a, *reply);
  CHECK(take_all(p, p.a).size() == 1);
}

TEST_CASE("IBA 9.7.4: no more READs and atomics outstanding than max_rd_atomic", "[rc]") {
  PairConfig c;
  c.rd_atomic = 2;
  Pair p(c);
  for (int i = 0; i < 4; ++i) p.a.post_send(read(p, i), {p.a.sge(0, 100)});
  p.a.post_send(write(p, 9), {p.a.sge(0, 8)});
  auto v = take_all(p, p.a);
  CHECK(v.size() == 2);
  for (auto& pkt : v) p.deliver(p.b, pkt);
  p.pump();
  CHECK(p.a.sends().size() == 5);
}

TEST_CASE("max_rd_atomic 0: a READ completes with LOC_QP_OP_ERR instead of waiting for ever", "[rc]") {
  PairConfig c;
  c.rd_atomic = 0;
  Pair p(c);
  p.a.post_send(read(p, 1), {p.a.sge(0, 100)});
  p.pump();
  REQUIRE(p.a.sends().size() == 1);
  CHECK(p.a.sends()[0].status == WcStatus::loc_qp_op_err);
}

TEST_CASE("IBA 9.7.6.1.3: retry_cnt 7 means seven retries, then RETRY_EXC_ERR and flushes", "[rc][retry]") {
  for (std::uint8_t retries : {0, 3, 7}) {
    PairConfig c;
    c.retry_cnt = retries;
    Pair p(c);
    p.tap = [](bool, Packet&) { return false; };
    p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
    p.a.post_send(write(p, 2), {p.a.sge(0, 8)});
    p.run_for(10'000'000'000);
    CHECK(p.log.size() == 2u * (retries + 1u));
    REQUIRE(p.a.sends().size() == 2);
    CHECK(p.a.sends()[0].status == WcStatus::retry_exc_err);
    CHECK(p.a.sends()[0].vendor_err != 0);
    CHECK(p.a.sends()[1].status == WcStatus::wr_flush_err);
    CHECK(p.a.qp->state() == QpState::err);
    CHECK(p.a.qp->next_timeout() == kNever);
    CHECK(p.a.qp->counters().retry_exceeded_err == 1);
    CHECK(p.a.qp->counters().local_ack_timeout_err == retries + 1u);
  }
}

TEST_CASE("IBA 9.7.6.1.3: timeout 0 never fires", "[rc][retry]") {
  PairConfig c;
  c.timeout = 0;
  Pair p(c);
  p.tap = [](bool, Packet&) { return false; };
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  p.pump();
  CHECK(p.a.qp->next_timeout() == kNever);
}

TEST_CASE("IBA 9.7.6.1.3: progress reloads the retry counter", "[rc][retry]") {
  PairConfig c;
  c.retry_cnt = 1;
  Pair p(c);
  int n = 0;
  p.tap = [&](bool from_a, Packet&) { return !from_a || ++n % 2 == 0; };  // every other request is lost
  for (int i = 0; i < 10; ++i) {
    p.a.post_send(write(p, i), {p.a.sge(0, 8)});
    p.run_for(1'000'000'000);
  }
  CHECK(p.a.sends().size() == 10);
  CHECK(p.a.qp->state() == QpState::rts);
}

TEST_CASE("IBA 9.7.6.1.3: progress restarts the timer, nothing outstanding stops it", "[rc][retry]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  p.a.post_send(write(p, 2), {p.a.sge(0, 8)});
  take_all(p, p.a);
  const Nanos first = p.a.qp->next_timeout();
  p.now += 1'000'000;
  ack(p, 100);
  CHECK(p.a.qp->next_timeout() == first + 1'000'000);
  ack(p, 101);
  CHECK(p.a.qp->next_timeout() == kNever);
}

TEST_CASE("The engine may postpone the acknowledgement timer but not an RNR wait", "[rc][retry]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  take_all(p, p.a);
  const Nanos t = p.a.qp->next_timeout();
  p.a.qp->postpone_timeout(p.now + 5);
  CHECK(p.a.qp->next_timeout() == t + 5);
  ack(p, 100, kSyndromeRnr | 12);
  const Nanos rnr = p.a.qp->next_timeout();
  CHECK(rnr == p.now + rnr_timer_ns(12));
  p.a.qp->postpone_timeout(p.now + 5);
  CHECK(p.a.qp->next_timeout() == rnr);
}

TEST_CASE("IBA 9.7.5.2.8: the RNR timer is truly waited for", "[rc][rnr]") {
  for (std::uint8_t code : {1, 12, 25, 0}) {
    CAPTURE(int(code));
    Pair p;
    p.a.post_send(p.send(1), {p.a.sge(0, 8)});
    take_all(p, p.a);
    ack(p, 100, static_cast<std::uint8_t>(kSyndromeRnr | code));
    const Nanos start = p.now;
    CHECK(p.a.qp->next_timeout() == start + rnr_timer_ns(code));
    p.now = start + rnr_timer_ns(code) - 1;
    CHECK_FALSE(p.a.qp->wants_transmit(p.now));
    CHECK(take_all(p, p.a).empty());
    p.now = start + rnr_timer_ns(code);
    CHECK(p.a.qp->wants_transmit(p.now));
    p.a.qp->on_timeout(p.now);
    const auto v = take_all(p, p.a);
    REQUIRE(v.size() == 1);
    CHECK(v[0].psn() == 100);
  }
}

TEST_CASE("IBA 9.7.5.2.8: rnr_retry counts, 7 is for ever", "[rc][rnr]") {
  for (std::uint8_t retries : {0, 2, 7}) {
    PairConfig c;
    c.rnr_retry = retries;
    Pair p(c);
    p.a.post_send(p.send(1), {p.a.sge(0, 8)});
    p.run_for(rnr_timer_ns(12) * 40);
    std::size_t tries = 0;
    for (auto& [from_a, pkt] : p.log) tries += from_a;
    if (retries == 7) {
      CHECK(tries >= 40);
      CHECK(p.a.sends().empty());
    } else {
      CHECK(tries == retries + 1u);
      REQUIRE(p.a.sends().size() == 1);
      CHECK(p.a.sends()[0].status == WcStatus::rnr_retry_exc_err);
      CHECK(p.a.qp->counters().retry_rnr_exceeded_err == 1);
    }
    CHECK(p.b.qp->counters().send_rnr_err == tries);
    CHECK(p.a.qp->counters().rcvd_rnr_err == tries);
    CHECK(p.b.qp->state() == QpState::rts);
  }
}

TEST_CASE("IBA 9.7.5.1.2: an RNR NAK acknowledges what lies before it", "[rc][rnr]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  p.a.post_send(write(p, 2), {p.a.sge(0, 8)});
  p.a.post_send(p.send(3), {p.a.sge(0, 8)});
  ack(p, 99);  // unlimited credits
  take_all(p, p.a);
  ack(p, 102, kSyndromeRnr | 12);
  CHECK(p.a.sends().size() == 2);
}

TEST_CASE("IBA 9.7.5.2: fatal NAKs give their status to the request they name", "[rc][nak]") {
  const std::pair<std::uint8_t, WcStatus> cases[] = {{kNakInvalidRequest, WcStatus::rem_inv_req_err},
                                                     {kNakRemoteAccess, WcStatus::rem_access_err},
                                                     {kNakRemoteOperational, WcStatus::rem_op_err},
                                                     {0x64, WcStatus::bad_resp_err},
                                                     {0x7F, WcStatus::bad_resp_err}};
  for (auto [syndrome, status] : cases) {
    CAPTURE(int(syndrome));
    Pair p;
    for (int i = 0; i < 4; ++i) p.a.post_send(write(p, i), {p.a.sge(0, 300)});
    take_all(p, p.a);
    ack(p, 105, syndrome);  // second packet of the third message
    const auto c = p.a.sends();
    REQUIRE(c.size() == 4);
    CHECK(c[0].status == WcStatus::success);
    CHECK(c[1].status == WcStatus::success);
    CHECK(c[2].status == status);
    CHECK(c[3].status == WcStatus::wr_flush_err);
    for (int i = 0; i < 4; ++i) CHECK(c[i].wr_id == static_cast<std::uint64_t>(i));
    CHECK(p.a.qp->state() == QpState::err);
    CHECK_FALSE(p.take(p.a));
  }
}

TEST_CASE("IBA 9.7.5.1: a reserved AETH type and PSNs never sent are ignored", "[rc]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  take_all(p, p.a);
  ack(p, 100, 0x40);  // reserved type
  ack(p, 101);        // not sent yet
  ack(p, 5000);
  ack(p, 101, kNakRemoteAccess);
  CHECK(p.a.sends().empty());
  CHECK(p.a.qp->state() == QpState::rts);
  ack(p, 100, 0x9F);  // reserved bit 7 is not looked at
  CHECK(p.a.sends().size() == 1);
}

TEST_CASE("IBA 9.7.5.1: READ responses and atomic acknowledgements that carry a NAK are dropped", "[rc]") {
  for (const Op op : {Op::read_resp_only, Op::atomic_ack}) {
    CAPTURE(int(op));
    const bool atomic = op == Op::atomic_ack;
    Pair p;
    p.a.post_send(atomic ? p.send(1, WrOpcode::atomic_fetch_and_add) : read(p, 1), {p.a.sge(0, 8)});
    take_all(p, p.a);
    const auto before = p.a.buf;
    for (const std::uint8_t syndrome : {std::uint8_t{kSyndromeRnr | 1}, kNakPsnSequence, kNakRemoteAccess}) {
      Craft c = rc(op, 100, atomic ? 0 : 8);
      c.syndrome = syndrome;
      p.deliver(p.a, c.make());
      p.a.collect();
      CHECK(p.a.sends().empty());
      CHECK(p.a.qp->state() == QpState::rts);
      CHECK_FALSE(p.take(p.a));  // it starts no retry either
    }
    CHECK(p.a.buf == before);
    CHECK(p.a.qp->counters().drops == 3);
    p.deliver(p.a, rc(op, 100, atomic ? 0 : 8).make());
    p.a.collect();
    CHECK(p.a.sends().size() == 1);
  }
}

TEST_CASE("IBA 9.7.5.1.2: an ACK covers all earlier messages; unsignaled ones make no completion", "[rc]") {
  PairConfig c;
  c.sig_all = false;
  Pair p(c);
  for (int i = 0; i < 6; ++i) {
    SendWqe w = write(p, i);
    w.flags = i == 3 ? kSendSignaled : 0;
    p.a.post_send(w, {p.a.sge(0, 8)});
  }
  take_all(p, p.a);
  ack(p, 105);
  REQUIRE(p.a.sends().size() == 1);
  CHECK(p.a.sends()[0].wr_id == 3);
  CHECK(p.a.events[0].sq_free_to == 4);
}

TEST_CASE("IBA 11.6.2: an error always makes a completion, signaled or not", "[rc]") {
  PairConfig c;
  c.sig_all = false;
  Pair p(c);
  for (int i = 0; i < 3; ++i) p.a.post_send(write(p, i), {p.a.sge(0, 8)});
  take_all(p, p.a);
  ack(p, 101, kNakRemoteAccess);
  REQUIRE(p.a.sends().size() == 2);
  CHECK(p.a.sends()[0].wr_id == 1);
  CHECK(p.a.sends()[0].status == WcStatus::rem_access_err);
  CHECK(p.a.sends()[0].solicited);
  CHECK(p.a.sends()[1].status == WcStatus::wr_flush_err);
}

TEST_CASE("IBA 9.7.5.3: READ responses of the wrong length or kind are bad responses", "[rc]") {
  auto run = [](Op op, std::uint32_t psn, std::uint32_t payload) {
    Pair p;
    p.a.post_send(read(p, 1), {p.a.sge(0, 600)});
    take_all(p, p.a);
    p.deliver(p.a, rc(op, psn, payload).make());
    p.a.collect();
    return p.a.sends().empty() ? WcStatus::success : p.a.sends()[0].status;
  };
  CHECK(run(Op::read_resp_first, 100, 256) == WcStatus::success);
  CHECK(run(Op::read_resp_first, 100, 100) == WcStatus::bad_resp_err);
  CHECK(run(Op::read_resp_only, 100, 256) == WcStatus::bad_resp_err);
  CHECK(run(Op::read_resp_last, 100, 88) == WcStatus::bad_resp_err);
  CHECK(run(Op::atomic_ack, 100, 0) == WcStatus::bad_resp_err);
  CHECK(run(Op::read_resp_middle, 101, 256) == WcStatus::success);  // ahead: dropped
}

TEST_CASE("IBA 9.7.5.3: a READ response for a WRITE, an atomic acknowledgement for a READ", "[rc]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  take_all(p, p.a);
  p.deliver(p.a, rc(Op::read_resp_only, 100, 8).make());
  p.a.collect();
  REQUIRE(p.a.sends().size() == 1);
  CHECK(p.a.sends()[0].status == WcStatus::bad_resp_err);
}

TEST_CASE("IBA 10.6.3.1: local key, bounds and access errors of the gather list are LOC_PROT_ERR", "[rc]") {
  Pair p;
  const auto run = [](Sge s) {
    Pair q;
    s.addr += q.a.addr();
    if (s.lkey == 1) s.lkey = q.a.key;
    q.a.post_send(write(q, 1), {s});
    q.pump();
    return q.a.sends().at(0).status;
  };
  CHECK(run({0, 8, 0xBAD}) == WcStatus::loc_prot_err);
  CHECK(run({64 * 1024 - 4, 8, 1}) == WcStatus::loc_prot_err);
  CHECK(run({0, 8, 1}) == WcStatus::success);
}

TEST_CASE("IBA 10.6.3.1: a READ sink without local write access is LOC_PROT_ERR", "[rc]") {
  Pair p;
  const std::uint32_t key = p.a.mem.add(p.a.buf.data(), 4096, 0);
  p.a.post_send(read(p, 1), {Sge{p.a.addr(), 100, key}});
  p.pump();
  REQUIRE(p.a.sends().size() == 1);
  CHECK(p.a.sends()[0].status == WcStatus::loc_prot_err);
}

TEST_CASE("A local error waits for the requests before it, which keep their status", "[rc]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  p.a.post_send(write(p, 2), {Sge{p.a.addr(), 8, 0xBAD}});
  p.a.post_send(write(p, 3), {p.a.sge(0, 8)});
  CHECK(take_all(p, p.a).size() == 1);
  p.a.collect();
  CHECK(p.a.sends().empty());
  CHECK_FALSE(p.a.qp->wants_transmit(p.now));
  ack(p, 100);
  const auto c = p.a.sends();
  REQUIRE(c.size() == 3);
  CHECK(c[0].status == WcStatus::success);
  CHECK(c[1].status == WcStatus::loc_prot_err);
  CHECK(c[2].status == WcStatus::wr_flush_err);
}

TEST_CASE("A local error while an earlier request must be retried: the retry happens first", "[rc]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 300)});
  p.a.post_send(write(p, 2), {p.a.sge(0, 256), Sge{p.a.addr(), 8, 0xBAD}});
  CHECK(take_all(p, p.a).size() == 3);  // all but the packet that cannot be built
  p.now = p.a.qp->next_timeout();
  p.a.qp->on_timeout(p.now);
  CHECK(take_all(p, p.a).size() == 2);
  ack(p, 101);
  REQUIRE(p.a.sends().size() == 2);
  CHECK(p.a.sends()[0].status == WcStatus::success);
  CHECK(p.a.sends()[1].status == WcStatus::loc_prot_err);
}

TEST_CASE("A key that became invalid before a retransmission fails the earlier request", "[rc]") {
  Pair p;
  const std::uint32_t key = p.a.mem.add(p.a.buf.data(), 4096, kAllAccess);
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  p.a.post_send(write(p, 2), {Sge{p.a.addr(), 8, key}});
  p.a.post_send(write(p, 3), {Sge{p.a.addr(), 8, 0xBAD}});
  CHECK(take_all(p, p.a).size() == 2);
  p.a.mem.remove(key);
  p.now = p.a.qp->next_timeout();
  p.a.qp->on_timeout(p.now);
  CHECK(take_all(p, p.a).size() == 1);
  ack(p, 100);
  const auto c = p.a.sends();
  REQUIRE(c.size() == 3);
  CHECK(c[0].status == WcStatus::success);
  CHECK(c[1].status == WcStatus::loc_prot_err);
  CHECK(c[2].status == WcStatus::wr_flush_err);
}

TEST_CASE("Memory that faults while a packet is gathered fails the request as a key error", "[rc]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  p.pump();
  p.a.mem.read_faults = true;
  p.a.post_send(write(p, 2), {p.a.sge(0, 8)});
  p.pump();
  REQUIRE(p.a.sends().size() == 2);
  CHECK(p.a.sends()[0].status == WcStatus::success);
  CHECK(p.a.sends()[1].status == WcStatus::loc_prot_err);
}

TEST_CASE("IBA C9-94: lengths beyond 2^31 and atomics that are not 8 bytes are LOC_LEN_ERR", "[rc]") {
  Pair p;
  SendWqe w = write(p, 1);
  p.a.post_send(w, {p.a.sge(0, 0x80000000u), p.a.sge(0, 1)});
  p.pump();
  REQUIRE(p.a.sends().size() == 1);
  CHECK(p.a.sends()[0].status == WcStatus::loc_len_err);
  Pair q;
  w = q.send(1, WrOpcode::atomic_fetch_and_add);
  q.a.post_send(w, {q.a.sge(0, 4)});
  q.pump();
  CHECK(q.a.sends().at(0).status == WcStatus::loc_len_err);
}

TEST_CASE("IBA 9.7.1: a READ of 2^31 bytes at MTU 256 fits the PSN window exactly", "[rc]") {
  Pair p;
  p.a.post_send(read(p, 1), {p.a.sge(0, 0x80000000u)});
  p.a.post_send(read(p, 2), {p.a.sge(0, 300)});
  const auto v = take_all(p, p.a);
  REQUIRE(v.size() == 1);
  CHECK(v[0].reth().length == 0x80000000u);
  p.deliver(p.a, rc(Op::read_resp_first, 100, 256).make());
  CHECK(p.a.qp->state() == QpState::rts);
  CHECK(take_all(p, p.a).empty());  // one PSN is free, two are needed
  p.deliver(p.a, rc(Op::read_resp_middle, 101, 256).make());
  CHECK(take_all(p, p.a).size() == 1);
  // A WRITE has to wait just so.
  Pair q;
  q.a.post_send(read(q, 1), {q.a.sge(0, 0x80000000u)});
  q.a.post_send(write(q, 2), {q.a.sge(0, 8)});
  CHECK(take_all(q, q.a).size() == 1);
  q.deliver(q.a, rc(Op::read_resp_first, 100, 256).make());
  CHECK(take_all(q, q.a).size() == 1);
}

TEST_CASE("Unknown request opcodes are LOC_QP_OP_ERR", "[rc]") {
  Pair p;
  p.a.post_send(p.send(1, static_cast<WrOpcode>(77)), {p.a.sge(0, 8)});
  p.pump();
  REQUIRE(p.a.sends().size() == 1);
  CHECK(p.a.sends()[0].status == WcStatus::loc_qp_op_err);
}

TEST_CASE("Inline data goes out from the queue; elements are not looked at", "[rc]") {
  Pair p;
  SendWqe* slot = p.a.sq->reserve();
  *slot = write(p, 1);
  slot->flags = kSendInline;
  slot->length = 13;
  std::memcpy(p.a.sq->inline_data(slot), "inline bytes!", 13);
  p.a.sq->publish(1);
  const auto before = p.a.mem.resolved;
  p.pump();
  CHECK(p.a.mem.resolved == before);
  CHECK(std::memcmp(p.b.buf.data() + 20000, "inline bytes!", 13) == 0);
  CHECK(p.a.sends().size() == 1);
}

TEST_CASE("Gather and scatter over several elements, empty ones among them", "[rc]") {
  PairConfig c;
  c.max_sge = 8;
  Pair p(c);
  p.b.post_recv(1, {p.b.sge(0, 100), p.b.sge(500, 0), p.b.sge(1000, 700)});
  p.a.post_send(p.send(1), {p.a.sge(0, 5), p.a.sge(900, 0), p.a.sge(10, 500), p.a.sge(2000, 0), p.a.sge(600, 95)});
  p.pump();
  REQUIRE(p.b.recvs().size() == 1);
  CHECK(p.b.recvs()[0].byte_len == 600);
  std::vector<std::uint8_t> want(p.a.buf.begin(), p.a.buf.begin() + 5);
  want.insert(want.end(), p.a.buf.begin() + 10, p.a.buf.begin() + 510);
  want.insert(want.end(), p.a.buf.begin() + 600, p.a.buf.begin() + 695);
  CHECK(std::memcmp(want.data(), p.b.buf.data(), 100) == 0);
  CHECK(std::memcmp(want.data() + 100, p.b.buf.data() + 1000, 500) == 0);
  // A READ scatters the same way.
  p.a.post_send(read(p, 2, 30000), {p.a.sge(40000, 100), p.a.sge(41000, 0), p.a.sge(42000, 500)});
  p.pump();
  CHECK(std::memcmp(p.a.buf.data() + 40000, p.b.buf.data() + 30000, 100) == 0);
  CHECK(std::memcmp(p.a.buf.data() + 42000, p.b.buf.data() + 30100, 500) == 0);
}

TEST_CASE("IBA 10.6.7.2: bind and invalidate are executed in order, once, without packets", "[rc][mw]") {
  Pair p;
  SendWqe bind = p.send(1, WrOpcode::bind_mw);
  bind.bind = {0x5000, 0x5001, p.a.key, p.a.addr(), 64, kAccessRemoteWrite};
  p.a.post_send(write(p, 0), {p.a.sge(0, 8)});
  p.a.post_send(bind);
  SendWqe inv = p.send(2, WrOpcode::local_inv);
  inv.imm_or_inv = 0x5001;
  p.a.post_send(inv);
  p.a.post_send(write(p, 3), {p.a.sge(0, 8)});
  auto v = take_all(p, p.a);
  CHECK(v.size() == 1);
  CHECK(p.a.mem.binds == 1);
  CHECK(p.a.mem.invalidations == 0);  // waits for the WRITE before it
  p.a.collect();
  CHECK(p.a.sends().empty());
  // A retry passes the bind without executing it again.
  p.now = p.a.qp->next_timeout();
  p.a.qp->on_timeout(p.now);
  CHECK(take_all(p, p.a).size() == 1);
  CHECK(p.a.mem.binds == 1);
  ack(p, 100);
  CHECK(p.a.sends().size() == 2);
  CHECK(take_all(p, p.a).size() == 1);
  CHECK(p.a.mem.invalidations == 1);
  ack(p, 101);
  const auto c = p.a.sends();
  REQUIRE(c.size() == 4);
  CHECK(c[1].opcode == WcOpcode::bind_mw);
  CHECK(c[2].opcode == WcOpcode::local_inv);
  for (std::size_t i = 0; i < 4; ++i) CHECK((c[i].wr_id == i && c[i].status == WcStatus::success));
}

TEST_CASE("A retry that arrives late does not step back over executed local requests", "[rc][mw]") {
  PairConfig c;
  c.sq_depth = 4;
  Pair p(c);
  p.a.post_send(write(p, 0), {p.a.sge(0, 8)});
  SendWqe bind = p.send(1, WrOpcode::bind_mw);
  bind.bind = {0x5000, 0x5001, p.a.key, p.a.addr(), 64, kAccessRemoteWrite};
  p.a.post_send(bind);
  p.a.post_send(write(p, 2), {p.a.sge(0, 8)});
  take_all(p, p.a);
  p.now = p.a.qp->next_timeout();
  p.a.qp->on_timeout(p.now);
  p.take(p.a);  // only the first again
  ack(p, 100);
  CHECK(p.a.sends().size() == 2);
  // The freed places take new requests before the retry goes on.
  p.a.post_send(write(p, 3), {p.a.sge(0, 8)});
  p.a.post_send(write(p, 4), {p.a.sge(0, 8)});
  const auto v = take_all(p, p.a);
  REQUIRE(v.size() == 3);
  CHECK(v[0].psn() == 101);
  CHECK(v[1].psn() == 102);
  CHECK(v[2].psn() == 103);
  CHECK(p.a.mem.binds == 1);
}

TEST_CASE("IBA 10.6.7.2: a failing bind is MW_BIND_ERR, a failing invalidate LOC_QP_OP_ERR; then ERR", "[rc][mw]") {
  Pair p;
  SendWqe w = p.send(1, WrOpcode::bind_mw);
  w.bind = {0x5000, 0x5001, 0xBAD, p.a.addr(), 64, kAccessRemoteWrite};
  p.a.post_send(w);
  p.pump();
  REQUIRE(p.a.sends().size() == 1);
  CHECK(p.a.sends()[0].status == WcStatus::mw_bind_err);
  CHECK(p.a.qp->state() == QpState::err);
  Pair q;
  w = q.send(1, WrOpcode::local_inv);
  w.imm_or_inv = q.a.key;
  q.a.post_send(w);
  q.pump();
  REQUIRE(q.a.sends().size() == 1);
  CHECK(q.a.sends()[0].status == WcStatus::loc_qp_op_err);
  CHECK(q.a.qp->state() == QpState::err);
}

TEST_CASE("IBA 10.3.1.4: SQD finishes started requests, starts none, then reports SQ_DRAINED", "[rc][sqd]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 600)});
  p.a.post_send(write(p, 2), {p.a.sge(0, 8)});
  auto first = p.take(p.a);
  p.a.qp->modify(p.now, QpState::sqd, p.a.attrs, true);
  CHECK(p.a.qp->attrs().sq_draining);
  auto rest = take_all(p, p.a);
  CHECK(rest.size() == 2);
  p.a.collect();
  CHECK(p.a.count(AsyncEvent::sq_drained) == 0);
  p.deliver(p.b, *first);
  for (auto& pkt : rest) p.deliver(p.b, pkt);
  p.pump();
  CHECK(p.a.sends().size() == 1);
  CHECK(p.a.count(AsyncEvent::sq_drained) == 1);
  CHECK_FALSE(p.a.qp->attrs().sq_draining);
  CHECK_FALSE(p.a.qp->wants_transmit(p.now));
  p.a.qp->modify(p.now, QpState::rts, p.a.attrs);
  p.pump();
  CHECK(p.a.sends().size() == 2);
}

TEST_CASE("IBA 10.3.1.4: SQD with nothing started drains at once; no event unless asked for", "[rc][sqd]") {
  Pair p;
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  p.a.qp->modify(p.now, QpState::sqd, p.a.attrs, true);
  p.a.collect();
  CHECK(p.a.count(AsyncEvent::sq_drained) == 1);
  Pair q;
  q.a.qp->modify(q.now, QpState::sqd, q.a.attrs, false);
  q.a.collect();
  CHECK(q.a.events.empty());
  CHECK_FALSE(q.a.qp->attrs().sq_draining);
}

TEST_CASE("IBA 10.3.1.4: the responder goes on in SQD, and requests are retried", "[rc][sqd]") {
  Pair p;
  p.tap = [n = 0](bool from_a, Packet&) mutable { return !from_a || n++ != 0; };
  p.a.post_send(write(p, 1), {p.a.sge(0, 8)});
  p.pump();
  p.a.qp->modify(p.now, QpState::sqd, p.a.attrs, true);
  SendWqe w = p.send(7, WrOpcode::rdma_write);
  w.rkey = p.a.key;
  w.remote_addr = p.a.addr(5000);
  p.b.post_send(w, {p.b.sge(0, 8)});
  p.run_for(1'000'000'000);
  CHECK(p.b.sends().size() == 1);
  CHECK(p.a.sends().size() == 1);
  CHECK(p.a.count(AsyncEvent::sq_drained) == 1);
}

TEST_CASE("Retransmitted requests are the same packets bit for bit", "[rc][retry]") {
  Pair p;
  p.b.post_recv(1, {p.b.sge(0, 1000)});
  p.a.post_send(p.send(1), {p.a.sge(0, 1000)});
  p.a.post_send(write(p, 2), {p.a.sge(0, 5000)});
  SendWqe w = p.send(3, WrOpcode::atomic_fetch_and_add);
  p.a.post_send(w, {p.a.sge(0, 8)});
  const auto v = take_all(p, p.a);
  p.now = p.a.qp->next_timeout();
  p.a.qp->on_timeout(p.now);
  const auto again = take_all(p, p.a);
  REQUIRE(again.size() == v.size());
  for (std::size_t i = 0; i < v.size(); ++i) CHECK(v[i].bytes == again[i].bytes);
}

TEST_CASE("Late answers to the first transmission end a retry that has not begun", "[rc][retry]") {
  Pair p;
  for (int i = 0; i < 3; ++i) p.a.post_send(write(p, i), {p.a.sge(0, 300)});
  take_all(p, p.a);
  p.now = p.a.qp->next_timeout();
  p.a.qp->on_timeout(p.now);
  ack(p, 103);  // first two messages
  const auto v = take_all(p, p.a);
  REQUIRE(v.size() == 2);
  CHECK(v[0].psn() == 104);
  CHECK(p.a.sends().size() == 2);
}
