// Setting up connections: the states of both sides, what events say, refusals, time-outs.
#include <vector>

#include "tests/unit/cm/cm_pair.h"

namespace softrnic::cm {

TEST_CASE("IBA 12.9.6, 12.9.7: REQ, REP and RTU establish a connection", "[cm]") {
  Pair t;
  ReqParams q = t.req();
  q.private_data = bytes_of("hello");
  const CommId ia = t.ask(q);
  CHECK(t.a.agent.state(ia) == State::req_sent);
  const auto req = t.a.take_one<ReqMessage>();
  CHECK(req.route == q.route);
  t.b.give(req);

  const Event asked = t.b.expect(EventKind::req_received);
  CHECK(asked.listener == t.listener);
  CHECK(asked.state == State::req_rcvd);
  CHECK(asked.remote_ca_guid == t.a.guid);
  CHECK(asked.remote_qpn == 0x1001);
  CHECK(asked.starting_psn == 0xABCDE);
  CHECK(asked.transport == Transport::rc);
  CHECK(asked.responder_resources == 3);  // the peer's initiator depth
  CHECK(asked.initiator_depth == 4);
  CHECK(asked.retry_count == 7);
  CHECK(asked.rnr_retry_count == 6);
  CHECK(asked.path_mtu == 3);
  CHECK(asked.pkey == 0xFFFF);
  CHECK(asked.service_id == kService);
  CHECK(asked.path.local_gid == t.b.gid);
  CHECK(asked.path.remote_gid == t.a.gid);
  CHECK(asked.path.packet_life_time == 4);
  CHECK_FALSE(asked.has_alternate);
  CHECK(asked.private_data_length == 92);
  CHECK(text_of(asked) == "hello");
  CHECK(t.b.agent.remote_id(asked.id) == ia);

  RepParams p = Pair::rep();
  p.private_data = bytes_of("welcome");
  REQUIRE(t.b.agent.accept(t.b.now, asked.id, p) == Result::ok);
  CHECK(t.b.agent.state(asked.id) == State::rep_sent);
  const auto rep = t.b.take_one<RepMessage>();
  CHECK(tid_of(rep) == tid_of(req));
  CHECK(read_as<RepMessage>(rep).failover == Failover::unsupported);
  t.a.give(rep);

  const Event accepted = t.a.expect(EventKind::rep_received);
  CHECK(accepted.id == ia);
  CHECK(accepted.state == State::rep_rcvd);
  CHECK(accepted.remote_ca_guid == t.b.guid);
  CHECK(accepted.remote_qpn == 0x2002);
  CHECK(accepted.starting_psn == 0x54321);
  CHECK(accepted.responder_resources == 1);
  CHECK(accepted.initiator_depth == 2);
  CHECK(accepted.rnr_retry_count == 5);
  CHECK(accepted.private_data_length == 196);
  CHECK(text_of(accepted) == "welcome");

  REQUIRE(t.a.agent.ready(t.a.now, ia, bytes_of("go")) == Result::ok);
  CHECK(t.a.agent.state(ia) == State::established);
  const auto rtu = t.a.take_one<RtuMessage>();
  CHECK(tid_of(rtu) == tid_of(req));
  t.b.give(rtu);
  const Event established = t.b.expect(EventKind::rtu_received);
  CHECK(established.id == asked.id);
  CHECK(established.state == State::established);
  CHECK(text_of(established) == "go");

  CHECK(t.a.agent.next_timeout() == kNever);
  CHECK(t.b.agent.next_timeout() == kNever);
  t.a.expect_silence();
  t.b.expect_silence();
}

TEST_CASE("IBA 12.9.6: a REQ without an answer is repeated as it was, then given up", "[cm]") {
  Pair t;
  ReqParams q = t.req();
  q.path.packet_life_time = 12;
  const CommId ia = t.ask(q);
  const auto first = t.a.take_one<ReqMessage>();
  for (unsigned retry = 1; retry <= 3; ++retry) {
    const Nanos due = t.a.agent.next_timeout();
    CHECK(due == t.a.now + time_of_code(10) + 2 * time_of_code(12));
    t.a.agent.on_timeout(due - 1);
    CHECK(t.a.take().empty());
    t.a.now = due;
    t.a.agent.on_timeout(due);
    const auto again = t.a.take_one<ReqMessage>();
    CHECK(again.data == first.data);
    t.a.expect_silence();
  }
  CHECK(t.a.agent.counters().tx_msgs[0] == 4);
  CHECK(t.a.agent.counters().tx_retries[0] == 3);
  t.a.time_out();
  CHECK(t.a.expect(EventKind::req_error).id == ia);
  CHECK(t.a.agent.state(ia) == State::idle);
  // The peer may have seen a REQ: it is told, and finds the connection by the GUID.
  const auto rej = t.a.take_one<RejMessage>();
  const auto m = read_as<RejMessage>(rej);
  CHECK(m.reason == RejReason::timeout);
  CHECK(m.local_comm_id == ia);
  CHECK(m.info_length == 8);
  CHECK(load_be64(rej.data.data() + 24 + RejMessage::kInfo) == t.a.guid);
  CHECK(t.a.agent.next_timeout() == kNever);
  t.a.agent.destroy(t.a.now, ia);
  CHECK(t.a.agent.size() == 0);
  t.a.expect_silence();
}

TEST_CASE("IBA 12.9.7: a REP without an RTU is repeated, then taken back", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.accepted();
  const auto rep = t.b.take_one<RepMessage>();
  t.a.give(rep);
  t.a.expect(EventKind::rep_received);
  REQUIRE(t.a.agent.ready(t.a.now, ia) == Result::ok);
  t.a.take();  // and every RTU is lost
  for (int retry = 0; retry < 3; ++retry) {
    t.b.time_out();
    CHECK(t.b.take_one<RepMessage>().data == rep.data);
  }
  t.b.time_out();
  t.b.expect(EventKind::rep_error);
  CHECK(t.b.agent.state(ib) == State::dreq_sent);
  t.b.take_one<RejMessage>();  // lost, too
  // What the peer took for established ends on both sides nevertheless.
  t.b.time_out();
  t.a.give(t.b.take_one<DreqMessage>());
  t.a.expect(EventKind::dreq_received);
  REQUIRE(t.a.agent.confirm_disconnect(t.a.now, ia) == Result::ok);
  t.b.give(t.a.take_one<DrepMessage>());
  CHECK(t.b.agent.state(ib) == State::timewait);
  t.b.expect_silence();
  t.b.time_out();
  t.b.expect(EventKind::timewait_exit);
  t.b.agent.destroy(t.b.now, ib);
  CHECK(t.b.agent.size() == 0);
}

TEST_CASE("IBA 12.9.7: a packet on the QP is as good as the RTU", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.asked();
  CHECK(t.b.agent.establish(t.b.now, ib) == Result::bad_state);
  REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::ok);
  t.pump();
  t.a.expect(EventKind::rep_received);
  REQUIRE(t.a.agent.ready(t.a.now, ia) == Result::ok);
  const auto rtu = t.a.take_one<RtuMessage>();
  REQUIRE(t.b.agent.establish(t.b.now, ib) == Result::ok);
  CHECK(t.b.agent.establish(t.b.now, ib) == Result::connected);
  t.b.expect(EventKind::user_established);
  t.b.give(rtu);  // is then only a duplicate
  t.b.expect_silence();
  CHECK(t.b.agent.state(ib) == State::established);
  CHECK(t.b.agent.next_timeout() == kNever);
}

TEST_CASE("IBA 12.9.7: no listener, another transport, another version", "[cm]") {
  Pair t;
  ReqParams q = t.req();
  q.service_id = kService + 1;
  CommId id = t.ask(q);
  t.pump();
  Event e = t.a.expect(EventKind::rej_received);
  CHECK(e.reason == RejReason::invalid_service_id);
  CHECK(e.rejected == MessageRef::req);
  CHECK(e.state == State::idle);
  CHECK(t.b.agent.size() == 0);

  id = t.ask(t.req());
  auto m = t.a.take_one<ReqMessage>();
  m.data[24 + 43] |= 2 << 1;  // RD
  t.b.give(m);
  t.a.give(t.b.take_one<RejMessage>());
  e = t.a.expect(EventKind::rej_received);
  CHECK(e.id == id);
  CHECK(e.reason == RejReason::invalid_transport_type);

  id = t.ask(t.req());
  m = t.a.take_one<ReqMessage>();
  m.data[2] = 1;
  t.b.give(m);
  t.a.give(t.b.take_one<RejMessage>());
  e = t.a.expect(EventKind::rej_received);
  CHECK(e.id == id);
  CHECK(e.reason == RejReason::invalid_class_version);
  REQUIRE(e.ari_length == 1);
  CHECK(e.ari[0] == 2);
}

TEST_CASE("IBA 12.9.7: the passive side refuses", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.asked();
  const std::uint8_t info[] = {5, 6, 7};
  REQUIRE(t.b.agent.reject(t.b.now, ib, RejReason::consumer_defined, info, bytes_of("no")) == Result::ok);
  CHECK(t.b.agent.state(ib) == State::idle);
  CHECK(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::bad_state);
  t.b.agent.destroy(t.b.now, ib);
  t.pump();
  const Event e = t.a.expect(EventKind::rej_received);
  CHECK(e.id == ia);
  CHECK(e.reason == RejReason::consumer_defined);
  CHECK(e.rejected == MessageRef::req);
  REQUIRE(e.ari_length == 3);
  CHECK(e.ari[2] == 7);
  CHECK(e.private_data_length == 148);
  CHECK(text_of(e) == "no");
  CHECK(e.state == State::idle);
  t.a.agent.destroy(t.a.now, ia);
  // The passive side knows duplicates of the REQ for a while; then nothing is left.
  t.advance(1000 * kMs);
  CHECK(t.a.agent.size() == 0);
  CHECK(t.b.agent.size() == 0);
}

TEST_CASE("IBA 12.9.6: the active side refuses the REP", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.replied();
  REQUIRE(t.a.agent.reject(t.a.now, ia, RejReason::consumer_defined) == Result::ok);
  CHECK(t.a.agent.state(ia) == State::timewait);
  t.pump();
  const Event e = t.b.expect(EventKind::rej_received);
  CHECK(e.id == ib);
  CHECK(e.rejected == MessageRef::rep);
  CHECK(e.state == State::timewait);
  t.advance(1000 * kMs);
  t.a.expect(EventKind::timewait_exit);
  t.b.expect(EventKind::timewait_exit);
}

TEST_CASE("IBA 12.9.6, 12.9.7: a REJ of a REP that is lost is repeated when the REP comes again", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.replied();
  const bool whole_id = GENERATE(true, false);
  if (whole_id) {
    REQUIRE(t.a.agent.reject(t.a.now, ia, RejReason::consumer_defined) == Result::ok);
  } else {
    t.a.agent.destroy(t.a.now, ia);
  }
  t.a.take();  // the REJ is lost
  t.b.time_out();
  t.a.give(t.b.take_one<RepMessage>());
  t.b.give(t.a.take_one<RejMessage>());
  t.b.expect(EventKind::rej_received);
}

TEST_CASE("IBA 12.9.6: a REQ that is taken back is refused on the passive side", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.asked();
  t.a.agent.destroy(t.a.now, ia);
  CHECK(t.a.agent.size() == 0);
  t.pump();
  const Event e = t.b.expect(EventKind::rej_received);
  CHECK(e.id == ib);
  CHECK(e.reason == RejReason::timeout);
  CHECK(e.state == State::idle);
  CHECK(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::bad_state);
}

TEST_CASE("IBA 12.9.7: a REP that is taken back before it arrives refuses the REQ", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.accepted();
  t.b.take();  // lost
  REQUIRE(t.b.agent.reject(t.b.now, ib, RejReason::consumer_defined) == Result::ok);
  t.a.give(t.b.take_one<RejMessage>());
  const Event e = t.a.expect(EventKind::rej_received);
  CHECK(e.id == ia);
  CHECK(e.reason == RejReason::consumer_defined);
}

TEST_CASE("IBA 12.9.6: a REP to a connection that is gone is refused", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.asked();
  t.a.agent.destroy(t.a.now, ia);
  t.a.take();  // the REJ is lost
  REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::ok);
  t.pump();
  const Event e = t.b.expect(EventKind::rej_received);
  CHECK(e.reason == RejReason::invalid_comm_id);
  CHECK(e.rejected == MessageRef::rep);
}

TEST_CASE("IBA 12.9.6, 12.9.7: MRA gives the peer more time", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.asked();
  constexpr std::uint8_t kLong = 20;
  REQUIRE(t.b.agent.mra(t.b.now, ib, kLong, bytes_of("wait")) == Result::ok);
  CHECK(t.b.agent.state(ib) == State::mra_req_sent);
  const auto mra = t.b.take_one<MraMessage>();
  CHECK(read_as<MraMessage>(mra).local_comm_id == ib);
  t.a.give(mra);
  const Event e = t.a.expect(EventKind::mra_received);
  CHECK(e.service_timeout == kLong);
  CHECK(text_of(e) == "wait");
  CHECK(t.a.agent.state(ia) == State::mra_req_rcvd);
  CHECK(t.a.agent.next_timeout() >= t.a.now + time_of_code(kLong));
  const Nanos due = t.a.agent.next_timeout();
  t.advance(kMs);
  t.a.give(mra);  // a duplicate changes nothing
  t.a.expect_silence();
  CHECK(t.a.agent.next_timeout() == due);

  SECTION("and the answer may come late") {
    t.advance(time_of_code(kLong) - kMs);
    t.a.expect_silence();
    REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::ok);
    t.a.give(t.b.take_one<RepMessage>());
    t.a.expect(EventKind::rep_received);
    // The other way round: the active side needs time for the REP.
    REQUIRE(t.a.agent.mra(t.a.now, ia, kLong) == Result::ok);
    CHECK(t.a.agent.state(ia) == State::mra_rep_sent);
    t.b.give(t.a.take_one<MraMessage>());
    t.b.expect(EventKind::mra_received);
    CHECK(t.b.agent.state(ib) == State::mra_rep_rcvd);
    CHECK(t.b.agent.next_timeout() >= t.b.now + time_of_code(kLong));
    REQUIRE(t.a.agent.ready(t.a.now, ia) == Result::ok);
    t.pump();
    t.b.expect(EventKind::rtu_received);
  }
  SECTION("but not for ever") {
    unsigned sent = 1, waits = 0;
    while (t.a.agent.next_timeout() != kNever) {
      t.a.time_out();
      for (const auto& m : t.a.take()) {
        if (type_of(m) != MessageType::req) continue;
        ++sent;
        t.a.give(mra);  // the peer asks for patience each time
        t.a.give(mra);
        ++waits;
      }
    }
    CHECK(sent == 4);
    CHECK(waits == 3);
    t.a.expect(EventKind::req_error);
    CHECK(t.a.agent.state(ia) == State::idle);
  }
}

TEST_CASE("IBA 12.9.6, 12.9.7: an MRA may wait until the peer asks again", "[cm]") {
  Pair t;
  t.ask(t.req());
  const auto req = t.a.take_one<ReqMessage>();
  t.b.give(req);
  const CommId ib = t.b.expect(EventKind::req_received).id;
  REQUIRE(t.b.agent.mra(t.b.now, ib, 24, {}, true) == Result::ok);
  CHECK(t.b.take().empty());
  CHECK(t.b.agent.mra(t.b.now, ib, 24) == Result::bad_state);
  t.b.give(req);
  t.a.give(t.b.take_one<MraMessage>());
  CHECK(t.a.expect(EventKind::mra_received).service_timeout == 24);
  REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::ok);
  t.pump();
  t.a.expect(EventKind::rep_received);
}

TEST_CASE("IBA 12.9.7: an agent that is too busy drops a REQ, and takes the next", "[cm]") {
  Pair t;
  t.ask(t.req());
  t.pump();
  const CommId dropped = t.b.expect(EventKind::req_received).id;
  REQUIRE(t.b.agent.drop(dropped) == Result::ok);
  CHECK(t.b.agent.size() == 0);
  t.b.expect_silence();
  t.set_time(t.a.agent.next_timeout());
  t.pump();
  CHECK(t.b.expect(EventKind::req_received).id != dropped);
}

TEST_CASE("CM: what the consumer may not do", "[cm]") {
  Pair t;
  CommId id = kNoId;
  std::vector<std::uint8_t> much(300);
  const auto refused = [&](auto change) {
    ReqParams q = t.req();
    change(q);
    return t.a.agent.connect(t.a.now, q, &id) == Result::bad_argument;
  };
  CHECK(refused([](ReqParams& q) { q.qpn = 0x1000000; }));
  CHECK(refused([](ReqParams& q) { q.starting_psn = 0x1000000; }));
  CHECK(refused([](ReqParams& q) { q.transport = Transport::rd; }));
  CHECK(refused([](ReqParams& q) { q.remote_cm_response_timeout = 32; }));
  CHECK(refused([](ReqParams& q) { q.local_cm_response_timeout = 32; }));
  CHECK(refused([](ReqParams& q) { q.retry_count = 8; }));
  CHECK(refused([](ReqParams& q) { q.rnr_retry_count = 8; }));
  CHECK(refused([](ReqParams& q) { q.max_cm_retries = 16; }));
  CHECK(refused([](ReqParams& q) { q.path_mtu = 0; }));
  CHECK(refused([](ReqParams& q) { q.path_mtu = 6; }));
  CHECK(refused([](ReqParams& q) { q.path.packet_life_time = 32; }));
  CHECK(refused([](ReqParams& q) { q.path.flow_label = 0x100000; }));
  CHECK(refused([&](ReqParams& q) { q.private_data = Bytes(much).first(93); }));
  CHECK_FALSE(refused([&](ReqParams& q) { q.private_data = Bytes(much).first(92); }));
  CHECK(t.a.agent.size() == 1);

  t.pump();
  const CommId ib = t.b.expect(EventKind::req_received).id;
  RepParams p = Pair::rep();
  p.private_data = Bytes(much).first(197);
  CHECK(t.b.agent.accept(t.b.now, ib, p) == Result::bad_argument);
  CHECK(t.b.agent.mra(t.b.now, ib, 32) == Result::bad_argument);
  CHECK(t.b.agent.mra(t.b.now, ib, 1, Bytes(much).first(223)) == Result::bad_argument);
  CHECK(t.b.agent.reject(t.b.now, ib, RejReason::no_qp, Bytes(much).first(73)) == Result::bad_argument);
  CHECK(t.b.agent.reject(t.b.now, ib, RejReason::no_qp, {}, Bytes(much).first(149)) == Result::bad_argument);
  CHECK(t.b.agent.disconnect(t.b.now, ib) == Result::bad_state);
  CHECK(t.b.agent.ready(t.b.now, ib) == Result::bad_state);
  p.private_data = Bytes(much).first(196);
  CHECK(t.b.agent.accept(t.b.now, ib, p) == Result::ok);
  CHECK(t.b.agent.accept(t.b.now, ib, p) == Result::bad_state);
  t.pump();
  CHECK(t.a.agent.ready(t.a.now, id, Bytes(much).first(225)) == Result::bad_argument);
  CHECK(t.a.agent.ready(t.a.now, id, Bytes(much).first(224)) == Result::ok);
  CHECK(t.a.agent.disconnect(t.a.now, id, Bytes(much).first(221)) == Result::bad_argument);
  CHECK(t.a.agent.disconnect(t.a.now, id, Bytes(much).first(220)) == Result::ok);
  t.pump();
  CHECK(t.b.agent.confirm_disconnect(t.b.now, ib, Bytes(much).first(225)) == Result::bad_argument);
  CHECK(t.b.agent.confirm_disconnect(t.b.now, ib, Bytes(much).first(224)) == Result::ok);
  CHECK(t.b.agent.reject(t.b.now, 12345, RejReason::no_qp) == Result::bad_state);
}

TEST_CASE("CM: listeners", "[cm]") {
  Agent agent{AgentOptions{}};
  CommId x, y, z;
  REQUIRE(agent.listen(0x1000, 0, &x) == Result::ok);
  CHECK(agent.state(x) == State::listen);
  CHECK(agent.listen(0x1000, 0, &y) == Result::in_use);
  CHECK(agent.listen(0x1000, ~std::uint64_t{0xFF}, &y) == Result::in_use);
  REQUIRE(agent.listen(0x2000, ~std::uint64_t{0xFF}, &y) == Result::ok);
  CHECK(agent.listen(0x2034, 0, &z) == Result::in_use);
  CHECK(agent.listen(0x0200'0000'0000'0007, 0, &z) == Result::bad_argument);
  REQUIRE(agent.listen(Agent::kAssignServiceId, 0, &z) == Result::ok);
  CHECK(agent.service_id(z) >> 56 == 2);
  CommId other;
  REQUIRE(agent.listen(Agent::kAssignServiceId, 0, &other) == Result::ok);
  CHECK(agent.service_id(other) != agent.service_id(z));
  agent.destroy(0, x);
  agent.destroy(0, y);
  CHECK(agent.state(x) == State::idle);
  CHECK(agent.listen(0x1000, 0, &x) == Result::ok);
  CHECK(agent.listen(0x2034, 0, &y) == Result::ok);
}

TEST_CASE("CM: a masked listener takes a range of service IDs", "[cm]") {
  Pair t;
  CommId range;
  REQUIRE(t.b.agent.listen(0xABC000, ~std::uint64_t{0xFFF}, &range) == Result::ok);
  ReqParams q = t.req();
  q.service_id = 0xABC123;
  t.ask(q);
  t.pump();
  const Event e = t.b.expect(EventKind::req_received);
  CHECK(e.listener == range);
  CHECK(e.service_id == 0xABC123);
}

TEST_CASE("CM: requests that a listener did not see are refused with it", "[cm]") {
  Pair t;
  t.ask(t.req(0x1001));
  t.ask(t.req(0x1002));
  t.pump();
  t.b.agent.destroy(t.b.now, t.listener);
  CHECK_FALSE(t.b.poll().has_value());
  t.pump();
  for (int i = 0; i < 2; ++i) CHECK(t.a.expect(EventKind::rej_received).reason == RejReason::invalid_service_id);
}

TEST_CASE("CM: the attributes of the QPs fit each other", "[cm]") {
  Pair t;
  const CommId ia = t.ask(t.req());
  QpSetup s;
  CHECK(t.a.agent.qp_setup(ia, QpTarget::rtr, &s) == Result::bad_state);
  REQUIRE(t.a.agent.qp_setup(ia, QpTarget::init, &s) == Result::ok);
  CHECK(s.mask == (QpSetup::kState | QpSetup::kAccessFlags | QpSetup::kPkeyIndex | QpSetup::kPort));
  CHECK((s.remote_write && s.remote_read && s.remote_atomic));
  t.pump();
  const CommId ib = t.b.expect(EventKind::req_received).id;
  REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::ok);

  REQUIRE(t.b.agent.qp_setup(ib, QpTarget::rtr, &s) == Result::ok);
  CHECK(s.mask == (QpSetup::kState | QpSetup::kAv | QpSetup::kPathMtu | QpSetup::kDestQpn | QpSetup::kRqPsn |
                   QpSetup::kMaxDestRdAtomic | QpSetup::kMinRnrTimer));
  CHECK(s.dest_qpn == 0x1001);
  CHECK(s.rq_psn == 0x54321);
  CHECK(s.path_mtu == 3);
  CHECK(s.max_dest_rd_atomic == 2);
  CHECK(s.path.remote_gid == t.a.gid);
  REQUIRE(t.b.agent.qp_setup(ib, QpTarget::rts, &s) == Result::ok);
  CHECK(s.mask == (QpSetup::kState | QpSetup::kSqPsn | QpSetup::kRetryCnt | QpSetup::kRnrRetry | QpSetup::kMaxRdAtomic |
                   QpSetup::kTimeout));
  CHECK(s.sq_psn == 0xABCDE);
  CHECK(s.retry_cnt == 7);
  CHECK(s.rnr_retry == 6);
  CHECK(s.max_rd_atomic == 1);
  CHECK(s.timeout == 5);

  t.pump();
  t.a.expect(EventKind::rep_received);
  REQUIRE(t.a.agent.qp_setup(ia, QpTarget::rtr, &s) == Result::ok);
  CHECK(s.dest_qpn == 0x2002);
  CHECK(s.rq_psn == 0xABCDE);
  CHECK(s.max_dest_rd_atomic == 1);
  CHECK(s.path.remote_gid == t.b.gid);
  REQUIRE(t.a.agent.qp_setup(ia, QpTarget::rts, &s) == Result::ok);
  CHECK(s.sq_psn == 0x54321);
  CHECK(s.retry_cnt == 7);
  CHECK(s.rnr_retry == 5);
  CHECK(s.max_rd_atomic == 2);
}

TEST_CASE("CM: the time to acknowledge is the adapter's delay and two lives of a packet", "[cm]") {
  struct Row {
    std::uint8_t ca_ack_delay, packet_life_time, passive, active;
  };
  // Encoded times: a sum is the greater of the two, and one more only where both are about the same.
  const Row row = GENERATE(Row{0, 16, 17, 17}, Row{15, 16, 17, 17}, Row{16, 16, 18, 18}, Row{20, 16, 20, 20},
                           Row{18, 16, 19, 19}, Row{31, 31, 31, 31});
  AgentOptions o;
  o.ca_ack_delay = row.ca_ack_delay;
  Pair t(o);
  ReqParams q = t.req();
  q.path.packet_life_time = row.packet_life_time;
  const CommId ia = t.ask(q);
  t.pump();
  const CommId ib = t.b.expect(EventKind::req_received).id;
  REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::ok);
  t.pump();
  CHECK(t.a.expect(EventKind::rep_received).target_ack_delay == row.ca_ack_delay);
  QpSetup s;
  REQUIRE(t.b.agent.qp_setup(ib, QpTarget::rts, &s) == Result::ok);
  CHECK(s.timeout == row.passive);
  REQUIRE(t.a.agent.qp_setup(ia, QpTarget::rts, &s) == Result::ok);
  CHECK(s.timeout == row.active);
}

TEST_CASE("CM: the attributes of UC and XRC QPs", "[cm]") {
  Pair t;
  const Transport transport = GENERATE(Transport::uc, Transport::xrc);
  ReqParams q = t.req();
  q.transport = transport;
  const CommId ia = t.ask(q);
  t.pump();
  const Event asked = t.b.expect(EventKind::req_received);
  CHECK(asked.transport == transport);
  REQUIRE(t.b.agent.accept(t.b.now, asked.id, Pair::rep()) == Result::ok);
  t.pump();
  const Event accepted = t.a.expect(EventKind::rep_received);
  CHECK(accepted.remote_qpn == 0x2002);
  const auto mask = [](End& end, CommId id, QpTarget target) {
    QpSetup s;
    REQUIRE(end.agent.qp_setup(id, target, &s) == Result::ok);
    return s.mask;
  };
  const std::uint32_t rtr = QpSetup::kState | QpSetup::kAv | QpSetup::kPathMtu | QpSetup::kDestQpn | QpSetup::kRqPsn;
  const std::uint32_t responder = QpSetup::kMaxDestRdAtomic | QpSetup::kMinRnrTimer;
  const std::uint32_t rts = QpSetup::kState | QpSetup::kSqPsn;
  const std::uint32_t requester = QpSetup::kRetryCnt | QpSetup::kRnrRetry | QpSetup::kMaxRdAtomic;
  if (transport == Transport::uc) {
    for (const QpTarget target : {QpTarget::rtr, QpTarget::rts}) {
      CHECK(mask(t.a, ia, target) == (target == QpTarget::rtr ? rtr : rts));
      CHECK(mask(t.b, asked.id, target) == (target == QpTarget::rtr ? rtr : rts));
    }
  } else {
    CHECK(accepted.srq);
    CHECK(mask(t.a, ia, QpTarget::rtr) == rtr);
    CHECK(mask(t.a, ia, QpTarget::rts) == (rts | requester | QpSetup::kTimeout));
    CHECK(mask(t.b, asked.id, QpTarget::rtr) == (rtr | responder));
    CHECK(mask(t.b, asked.id, QpTarget::rts) == (rts | QpSetup::kTimeout));
  }
}

}  // namespace softrnic::cm
