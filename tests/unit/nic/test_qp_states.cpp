// Attributes and states of queue pairs.
#include <cstring>
#include <set>

#include "nic_fixture.h"

using namespace softrnic;
using namespace softrnic::nic;
using namespace softrnic::nic::test;
using ib::QpState;

TEST_CASE("IBA 11.2.5.2: attributes out of range are refused and change nothing", "[states]") {
  Host host;
  Party p(host);
  const std::uint8_t gid = p.gid_index();
  const auto modify = [](QueuePair* qp, QpAttrsAll a, std::uint32_t mask, auto change) {
    change(a);
    const QpState before = qp->state();
    const int rc = qp->modify(a, mask);
    if (rc != 0) CHECK(qp->state() == before);
    return rc;
  };
  const auto same = [](QpAttrsAll&) {};
  QueuePair* qp = p.make_qp();

  CHECK(modify(qp, init_attrs(), kInitMask & ~ib::kAttrPort, same) == EINVAL);
  CHECK(modify(qp, init_attrs(), kInitMask | ib::kAttrQkey, same) == EINVAL);
  CHECK(modify(qp, init_attrs(), kInitMask, [](QpAttrsAll& a) { a.port_num = 2; }) == EINVAL);
  CHECK(modify(qp, init_attrs(), kInitMask, [](QpAttrsAll& a) { a.pkey_index = 1; }) == EINVAL);
  CHECK(modify(qp, state_only(QpState::rts), ib::kAttrState, same) == EINVAL);
  CHECK(modify(qp, state_only(QpState::err), ib::kAttrState, same) == EINVAL);
  CHECK(modify(qp, init_attrs(), kInitMask, same) == 0);

  const QpAttrsAll rtr = rtr_attrs(p.address(gid), 0x123);
  const auto rtr_with = [&](auto change) { return modify(qp, rtr, kRcRtrMask, change); };
  CHECK(rtr_with([](QpAttrsAll& a) { a.path_mtu_enum = 0; }) == EINVAL);
  CHECK(rtr_with([](QpAttrsAll& a) { a.path_mtu_enum = 6; }) == EINVAL);
  CHECK(rtr_with([](QpAttrsAll& a) { a.ib.dest_qpn = 1u << 24; }) == EINVAL);
  CHECK(rtr_with([](QpAttrsAll& a) { a.ib.min_rnr_timer = 32; }) == EINVAL);
  CHECK(rtr_with([&](QpAttrsAll& a) {
          a.ib.max_dest_rd_atomic = static_cast<std::uint8_t>(p.ctx->device().max_qp_rd_atom + 1);
        }) == EINVAL);
  CHECK(rtr_with([](QpAttrsAll& a) { a.av.is_global = false; }) == EINVAL);
  CHECK(rtr_with([](QpAttrsAll& a) { a.av.port_num = 2; }) == EINVAL);
  CHECK(rtr_with([](QpAttrsAll& a) { a.av.sgid_index = 200; }) == EINVAL);
  CHECK(rtr_with([&](QpAttrsAll& a) { a.av.dgid = p.gid_at(p.gid_index(1, false)); }) == EINVAL);
  CHECK(modify(qp, rtr, kRcRtrMask & ~ib::kAttrAv, same) == EINVAL);
  CHECK(modify(qp, rtr, kRcRtrMask | ib::kAttrAltPath, same) == EINVAL);
  CHECK(rtr_with([](QpAttrsAll& a) { a.ib.rq_psn = 0xFF000005; }) == 0);
  QpAttrsAll q;
  QpCaps caps;
  qp->query(&q, &caps);
  CHECK(q.ib.rq_psn == 5);

  const auto rts_with = [&](auto change) { return modify(qp, rts_attrs(), kRcRtsMask | ib::kAttrCurState, change); };
  const auto from = [](QpAttrsAll& a) { a.cur_state = QpState::rtr; };
  CHECK(rts_with([&](QpAttrsAll& a) { a.cur_state = QpState::init; }) == EINVAL);
  CHECK(rts_with([&](QpAttrsAll& a) { from(a), a.ib.timeout = 32; }) == EINVAL);
  CHECK(rts_with([&](QpAttrsAll& a) { from(a), a.ib.retry_cnt = 8; }) == EINVAL);
  CHECK(rts_with([&](QpAttrsAll& a) { from(a), a.ib.rnr_retry = 8; }) == EINVAL);
  CHECK(rts_with([&](QpAttrsAll& a) {
          from(a), a.ib.max_rd_atomic = static_cast<std::uint8_t>(p.ctx->device().max_qp_init_rd_atom + 1);
        }) == EINVAL);
  CHECK(rts_with(from) == 0);
  CHECK(qp->state() == QpState::rts);
  CHECK(modify(qp, state_only(QpState::rtr), ib::kAttrState, same) == EINVAL);
  CHECK(modify(qp, state_only(QpState::err), ib::kAttrState, same) == 0);
  CHECK(modify(qp, state_only(QpState::reset), ib::kAttrState, same) == 0);
}

// librdmacm sets the state alone in a struct it has not cleared.
TEST_CASE("attributes outside the mask may hold anything", "[states]") {
  Host host;
  Party p(host);
  QueuePair* qp = p.make_qp();
  QpAttrsAll rubbish;
  std::memset(static_cast<void*>(&rubbish), 0xD0, sizeof rubbish);
  for (const QpState to : {QpState::reset, QpState::err, QpState::reset}) {
    to_rts(qp, p.address(p.gid_index()), 0xABCDEF);
    rubbish.state = to;
    CHECK(qp->modify(rubbish, ib::kAttrState) == 0);
    CHECK(qp->state() == to);
    if (to == QpState::err) CHECK(qp->modify(state_only(QpState::reset), ib::kAttrState) == 0);
  }
}

TEST_CASE("ibv_query_qp gives back what modify set, and the state", "[states]") {
  Host host;
  Party p(host);
  QueuePair* qp = p.make_qp();
  QpAttrsAll q;
  QpCaps caps;
  qp->query(&q, &caps);
  CHECK(q.state == QpState::reset);
  CHECK(caps.max_send_wr == 64);
  CHECK(caps.max_recv_sge == 4);
  const AddressVector av = p.address(p.gid_index());
  to_rts(qp, av, 0xABCDEF);
  qp->query(&q, &caps);
  CHECK(q.state == QpState::rts);
  CHECK(q.cur_state == QpState::rts);
  CHECK(q.port_num == 1);
  CHECK(q.path_mtu_enum == 3);
  CHECK(q.ib.path_mtu == 1024);
  CHECK(q.ib.dest_qpn == 0xABCDEF);
  CHECK(q.ib.sq_psn == 0xFFFFF0);
  CHECK(q.ib.rq_psn == 0xFFFFF0);
  CHECK(q.ib.access_flags == kAllAccess);
  CHECK(q.ib.timeout == 14);
  CHECK(q.ib.retry_cnt == 7);
  CHECK(q.ib.rnr_retry == 7);
  CHECK(q.ib.min_rnr_timer == 1);
  CHECK(q.ib.max_rd_atomic == 4);
  CHECK(q.ib.max_dest_rd_atomic == 4);
  CHECK(q.av.dgid == av.dgid);
  CHECK(q.av.sgid_index == av.sgid_index);
  REQUIRE(qp->modify(state_only(QpState::reset), ib::kAttrState) == 0);
  qp->query(&q, &caps);
  CHECK(q.state == QpState::reset);
  CHECK(q.ib.dest_qpn == 0);
}

TEST_CASE("posting is allowed by state: sends from RTS on, receives from INIT on", "[states]") {
  Host host;
  Party p(host);
  QueuePair* qp = p.make_qp();
  const auto send = [&] { return post(qp, {.wr_id = 1, .sges = {sge(p, 0, 8)}}); };
  CHECK(send() == EINVAL);
  CHECK(recv(qp, 2, sge(p, 0, 8)) == EINVAL);
  to_init(qp);
  CHECK(send() == EINVAL);
  CHECK(recv(qp, 2, sge(p, 0, 8)) == 0);
  REQUIRE(qp->modify(rtr_attrs(p.address(p.gid_index()), qp->qpn()), kRcRtrMask) == 0);
  CHECK(send() == EINVAL);
  REQUIRE(qp->modify(state_only(QpState::err), ib::kAttrState) == 0);
  CHECK(send() == 0);
  CHECK(recv(qp, 3, sge(p, 0, 8)) == 0);
  for (const Completion& c : p.wait(3)) {
    CHECK(c.status == WcStatus::wr_flush_err);
    CHECK(c.qp_num == qp->qpn());
  }
}

TEST_CASE("posts that the QP's type or size does not allow: EINVAL", "[states]") {
  Host host;
  Party p(host);
  Pair rc(p, p);
  Pair uc(p, p, ib::QpType::uc);
  QueuePair* ud = p.make_qp(ib::QpType::ud);
  to_rts(ud, {}, 0);
  const auto try_op = [&](QueuePair* qp, WrOpcode op, std::uint32_t length) {
    return post(qp, {.opcode = op, .sges = {sge(p, 0, length)}, .remote_addr = p.base(), .rkey = p.mr->rkey});
  };
  CHECK(try_op(uc.a, WrOpcode::rdma_read, 8) == EINVAL);
  CHECK(try_op(uc.a, WrOpcode::atomic_fetch_and_add, 8) == EINVAL);
  CHECK(try_op(uc.a, WrOpcode::send_with_inv, 8) == EINVAL);
  CHECK(try_op(ud, WrOpcode::rdma_write, 8) == EINVAL);
  CHECK(try_op(ud, WrOpcode::send, 8) == EINVAL);  // no address handle
  CHECK(try_op(rc.a, WrOpcode::atomic_fetch_and_add, 16) == EINVAL);
  CHECK(post(rc.a, {.sges = std::vector<Sge>(5, sge(p, 0, 1))}) == EINVAL);
  CHECK(post(rc.a, {.sges = std::vector<Sge>(4, Sge{p.base(), 0xFFFFFFFF, p.mr->lkey})}) == EINVAL);
  const std::vector<Sge> five(5, sge(p, 0, 1));
  CHECK(rc.b->post_recv(1, five) == EINVAL);
  CHECK(p.quiet());
}

TEST_CASE("IBA table 56: each service type takes its own requests and no others", "[states]") {
  Host host;
  Party p(host);
  Pair rc(p, p);
  Pair uc(p, p, ib::QpType::uc);
  QueuePair* ud = p.make_qp(ib::QpType::ud);
  to_rts(ud, {}, 0);
  AddressHandle* ah = nullptr;
  REQUIRE(p.ctx->create_ah(p.pd, p.address(p.gid_index()), &ah) == 0);
  struct Row {
    WrOpcode op;
    bool rc, uc, ud;
  };
  const Row rows[] = {
      {WrOpcode::send, true, true, true},
      {WrOpcode::send_with_imm, true, true, true},
      {WrOpcode::send_with_inv, true, false, false},
      {WrOpcode::rdma_write, true, true, false},
      {WrOpcode::rdma_write_with_imm, true, true, false},
      {WrOpcode::rdma_read, true, false, false},
      {WrOpcode::atomic_cmp_and_swp, true, false, false},
      {WrOpcode::atomic_fetch_and_add, true, false, false},
      {WrOpcode::local_inv, true, true, false},
      {WrOpcode::bind_mw, true, true, false},
  };
  // In ERR what is posted is checked as ever, and then flushed.
  for (QueuePair* qp : {rc.a, uc.a, ud}) REQUIRE(qp->modify(state_only(QpState::err), ib::kAttrState) == 0);
  std::size_t taken = 0;
  for (const Row& row : rows) {
    CAPTURE(static_cast<int>(row.op));
    const auto try_on = [&](QueuePair* qp, bool allowed) {
      const int result =
          post(qp, {.opcode = row.op, .sges = {sge(p, 0, 8)}, .ah = ah->number, .remote_qpn = ud->qpn()});
      CHECK(result == (allowed ? 0 : EINVAL));
      taken += result == 0;
    };
    try_on(rc.a, row.rc);
    try_on(uc.a, row.uc);
    try_on(ud, row.ud);
  }
  for (const Completion& c : p.wait(taken)) CHECK(c.status == WcStatus::wr_flush_err);
  CHECK(p.quiet());
  CHECK(p.ctx->destroy_ah(ah) == 0);
}

TEST_CASE("IBA 12.9.8.4: freed QPNs are used again as late as possible, in the order they were freed", "[states]") {
  Host host;
  Party p(host);
  std::vector<std::uint32_t> order;
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 10'000; ++i) {
    QpCreate c = p.create_attrs();
    c.caps = {1, 1, 1, 1, 0};
    QueuePair* qp = nullptr;
    REQUIRE(QueuePair::create(c, &qp) == 0);
    order.push_back(qp->qpn());
    seen.insert(qp->qpn());
    REQUIRE(qp->destroy() == 0);
  }
  CHECK(seen.size() >= 4000);
  CHECK(*seen.begin() > 1);
  CHECK(*seen.rbegin() < 0xFFF000);
  for (std::size_t i = 1; i < order.size(); ++i) {
    const auto first = std::find(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(i), order[i]);
    const auto distance = order.begin() + static_cast<std::ptrdiff_t>(i) - first;
    if (distance > 0 && distance < 2000) FAIL("QPN " << order[i] << " again after " << distance);
  }
}

TEST_CASE("IBA 11.2.4.3: RESET drops the QP's completions and requests, and only its own", "[states]") {
  Host host;
  Party p(host);
  Pair one(p, p), two(p, p);
  for (QueuePair* b : {one.b, two.b}) REQUIRE(recv(b, 20, sge(p, 100, 8)) == 0);
  REQUIRE(recv(one.b, 21, sge(p, 100, 8)) == 0);
  REQUIRE(post(one.a, {.wr_id = 10, .sges = {sge(p, 0, 8)}}) == 0);
  REQUIRE(post(two.a, {.wr_id = 11, .sges = {sge(p, 0, 8)}}) == 0);
  for (int i = 0; i < 20; ++i) p.vf->progress(100);
  REQUIRE(one.a->modify(state_only(QpState::reset), ib::kAttrState) == 0);
  REQUIRE(one.b->modify(state_only(QpState::reset), ib::kAttrState) == 0);
  for (const Completion& c : p.wait(2)) CHECK((c.qp_num == two.a->qpn() || c.qp_num == two.b->qpn()));
  CHECK(p.quiet());
  // It can be connected again and starts afresh.
  const AddressVector av = p.address(p.gid_index());
  to_rts(one.a, av, one.b->qpn());
  to_rts(one.b, av, one.a->qpn());
  REQUIRE(recv(one.b, 31, sge(p, 100, 8)) == 0);
  REQUIRE(post(one.a, {.wr_id = 30, .sges = {sge(p, 0, 8)}}) == 0);
  for (const Completion& c : p.wait(2)) CHECK(c.status == WcStatus::success);
}

TEST_CASE("IBA 10.3.1.4: SQD starts nothing new and reports when it is drained", "[states]") {
  Host host;
  Party p(host);
  Pair qp(p, p);
  QpAttrsAll sqd = state_only(QpState::sqd);
  sqd.en_sqd_async_notify = true;
  REQUIRE(qp.a->modify(sqd, ib::kAttrState | ib::kAttrEnSqdAsyncNotify) == 0);
  AsyncEventRecord ev;
  REQUIRE(p.ctx->async.pop(&ev) == 0);
  CHECK(ev.type == AsyncEvent::sq_drained);
  CHECK(ev.qp == qp.a);
  REQUIRE(recv(qp.b, 2, sge(p, 100, 8)) == 0);
  REQUIRE(post(qp.a, {.wr_id = 1, .sges = {sge(p, 0, 8)}}) == 0);
  CHECK(p.quiet());
  REQUIRE(qp.a->modify(state_only(QpState::rts), ib::kAttrState) == 0);
  CHECK(p.wait(2).size() == 2);
}
