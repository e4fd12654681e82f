// What a completion says when its request failed, for every way in which one can fail.
#include <catch2/catch.hpp>

#include "tests/unit/ib/craft.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

// A pair on whose send queue A the first request fails; a second one is posted behind it, and a receive.
struct Failing : Pair {
  explicit Failing(PairConfig c = {}) : Pair(c) {}

  void post(const SendWqe& first, const std::vector<Sge>& sges) {
    SendWqe w = first;
    w.wr_id = 70;
    a.post_send(w, sges);
    w = send(71, WrOpcode::rdma_write);
    a.post_send(w, {a.sge(0, 8)});
    a.post_recv(72, {a.sge(0, 8)});
  }
  // Everything posted on A completed once, the first request with `status`, the others flushed; all that failed on
  // either side says so in full.
  void check(WcStatus status) const {
    REQUIRE(a.sends().size() == 2);
    REQUIRE(a.recvs().size() == 1);
    CHECK(a.sends()[0].status == status);
    CHECK(a.sends()[0].wr_id == 70);
    CHECK(a.sends()[1].status == WcStatus::wr_flush_err);
    CHECK(a.sends()[1].wr_id == 71);
    CHECK(a.recvs()[0].status == WcStatus::wr_flush_err);
    CHECK(a.recvs()[0].wr_id == 72);
    check_errors(a, 0x11);
    check_errors(b, 0x12);
  }
  // The first receive completion of B.
  void check_receiver(WcStatus status) const {
    REQUIRE_FALSE(b.recvs().empty());
    CHECK(b.recvs()[0].status == status);
    CHECK(b.recvs()[0].wr_id == 80);
  }

 private:
  static void check_errors(const End& e, std::uint32_t qpn) {
    for (const QpEvent& event : e.events) {
      if (event.kind == QpEvent::Kind::async || event.wc.status == WcStatus::success) continue;
      CHECK(event.wc.qp_num == qpn);
      CHECK(event.wc.vendor_err != 0);
      CHECK(event.wc.solicited);
    }
  }
};

}  // namespace

TEST_CASE("IBA 11.4.2.1: local errors complete with wr_id, status, qp_num and vendor_err", "[completion]") {
  Failing p;
  WcStatus want = WcStatus::success;
  SECTION("too long") {
    p.post(p.send(0), {p.a.sge(0, 0x80000000u), p.a.sge(0, 1)});
    want = WcStatus::loc_len_err;
  }
  SECTION("unknown operation") {
    p.post(p.send(0, static_cast<WrOpcode>(77)), {p.a.sge(0, 8)});
    want = WcStatus::loc_qp_op_err;
  }
  SECTION("key that does not exist") {
    p.post(p.send(0), {Sge{p.a.addr(), 8, 0xBAD}});
    want = WcStatus::loc_prot_err;
  }
  SECTION("memory that went away") {
    p.a.mem.read_faults = true;
    p.post(p.send(0), {p.a.sge(0, 8)});
    want = WcStatus::loc_prot_err;
  }
  SECTION("bind to a region that does not exist") {
    SendWqe w = p.send(0, WrOpcode::bind_mw);
    w.bind = {0x5000, 0x5001, 0xBAD, p.a.addr(), 64, kAccessRemoteWrite};
    p.post(w, {});
    want = WcStatus::mw_bind_err;
  }
  p.pump();
  p.check(want);
}

TEST_CASE("IBA 11.4.2.1: remote errors complete with wr_id, status, qp_num and vendor_err", "[completion]") {
  Failing p;
  SECTION("no such R_Key") {
    SendWqe w = p.send(0, WrOpcode::rdma_write);
    w.rkey = 0xBAD;
    p.post(w, {p.a.sge(0, 8)});
    p.pump();
    p.check(WcStatus::rem_access_err);
  }
  SECTION("message longer than the receive buffer") {
    p.b.post_recv(80, {p.b.sge(0, 4)});
    p.post(p.send(0), {p.a.sge(0, 8)});
    p.pump();
    p.check(WcStatus::rem_inv_req_err);
    p.check_receiver(WcStatus::loc_len_err);
  }
  SECTION("receive buffer without a key") {
    p.b.post_recv(80, {Sge{p.b.addr(), 8, 0xBAD}});
    p.post(p.send(0), {p.a.sge(0, 8)});
    p.pump();
    p.check(WcStatus::rem_op_err);
    p.check_receiver(WcStatus::loc_prot_err);
  }
  SECTION("response that does not fit the request") {
    p.post(p.send(0, WrOpcode::rdma_read), {p.a.sge(0, 100)});
    while (p.take(p.a)) {
    }
    p.deliver(p.a, rc(Op::read_resp_only, 100, 8).make());
    p.a.collect();
    p.check(WcStatus::bad_resp_err);
  }
}

TEST_CASE("IBA 11.4.2.1: requests given up complete with wr_id, status, qp_num and vendor_err", "[completion]") {
  PairConfig c;
  c.retry_cnt = 1;
  c.rnr_retry = 1;
  Failing p(c);
  WcStatus want = WcStatus::rnr_retry_exc_err;
  SECTION("nobody answers") {
    p.tap = [](bool, Packet&) { return false; };
    want = WcStatus::retry_exc_err;
  }
  SECTION("nobody has a receive request") {}
  p.post(p.send(0), {p.a.sge(0, 8)});
  p.run_for(10'000'000'000);
  p.check(want);
}
