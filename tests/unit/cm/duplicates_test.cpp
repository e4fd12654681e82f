// Messages that come twice, late, or from somebody else; limits.
#include <vector>

#include "tests/unit/cm/cm_pair.h"

namespace softrnic::cm {

TEST_CASE("IBA 12.9.7: a REQ that comes again is one request", "[cm]") {
  Pair t;
  const CommId ia = t.ask(t.req());
  const auto req = t.a.take_one<ReqMessage>();
  t.b.give(req);
  t.b.give(req);
  const CommId ib = t.b.expect(EventKind::req_received).id;
  t.b.expect_silence();
  CHECK(t.b.agent.counters().rx_duplicates[0] == 1);
  CHECK(t.b.agent.counters().rx_msgs[0] == 2);

  SECTION("its REP is sent again at once") {
    REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::ok);
    const auto rep = t.b.take_one<RepMessage>();
    t.b.give(req);
    CHECK(t.b.take_one<RepMessage>().data == rep.data);
  }
  SECTION("its REJ is sent again") {
    REQUIRE(t.b.agent.reject(t.b.now, ib, RejReason::no_resources, {}, bytes_of("full")) == Result::ok);
    t.b.agent.destroy(t.b.now, ib);
    t.b.take();  // lost
    t.set_time(t.a.agent.next_timeout());
    t.pump();
    t.b.expect_silence();
    const Event e = t.a.expect(EventKind::rej_received);
    CHECK(e.reason == RejReason::no_resources);
    CHECK(text_of(e) == "full");
  }
  SECTION("its REJ is sent again, however often") {
    REQUIRE(t.b.agent.reject(t.b.now, ib, RejReason::no_resources) == Result::ok);
    t.b.agent.destroy(t.b.now, ib);
    t.b.take();
    const Nanos remembered = t.b.agent.next_timeout() - t.b.now;
    for (int i = 0; i < 5; ++i) {
      t.advance(remembered - 1);
      t.a.take();
      t.b.give(req);
      t.b.take_one<RejMessage>();
    }
    t.b.expect_silence();
  }
  SECTION("it is nothing to an established connection, and nothing to one in time-wait") {
    REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::ok);
    t.pump();
    t.a.expect(EventKind::rep_received);
    REQUIRE(t.a.agent.ready(t.a.now, ia) == Result::ok);
    t.pump();
    t.b.expect(EventKind::rtu_received);
    t.b.give(req);
    t.b.expect_silence();
    REQUIRE(t.a.agent.disconnect(t.a.now, ia) == Result::ok);
    t.pump();
    t.b.expect(EventKind::dreq_received);
    t.b.give(req);
    t.b.expect_silence();
    t.b.agent.destroy(t.b.now, ib);
    t.pump();
    t.b.give(req);
    t.b.expect_silence();
  }
  SECTION("it does not come back to life when the peer took it back") {
    t.a.agent.destroy(t.a.now, ia);
    t.pump();
    t.b.expect(EventKind::rej_received);
    t.b.agent.destroy(t.b.now, ib);
    t.b.give(req);
    t.b.expect_silence();
  }
}

TEST_CASE("IBA 12.9.6: a REP that comes again gets the RTU again", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.accepted();
  const auto rep = t.b.take_one<RepMessage>();
  t.a.give(rep);
  t.a.give(rep);
  t.a.expect(EventKind::rep_received);
  t.a.expect_silence();
  REQUIRE(t.a.agent.ready(t.a.now, ia, bytes_of("data of the RTU")) == Result::ok);
  const auto lost = t.a.take_one<RtuMessage>();
  t.a.give(rep);
  const auto again = t.a.take_one<RtuMessage>();
  CHECK(again.data == lost.data);
  t.b.give(again);
  t.b.give(lost);
  t.b.expect(EventKind::rtu_received);
  t.b.expect_silence();
  CHECK(t.b.agent.counters().rx_duplicates[static_cast<std::size_t>(MessageType::rtu)] == 1);
}

TEST_CASE("IBA 12.9.6: a REP that comes again gets the MRA again", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.accepted();
  const auto rep = t.b.take_one<RepMessage>();
  t.a.give(rep);
  t.a.expect(EventKind::rep_received);
  REQUIRE(t.a.agent.mra(t.a.now, ia, 20, {}, true) == Result::ok);
  CHECK(t.a.take().empty());
  t.a.give(rep);
  t.b.give(t.a.take_one<MraMessage>());
  t.b.expect(EventKind::mra_received);
}

TEST_CASE("IBA 12.9.7: a communication ID in use for another connection is refused, one in time-wait is not", "[cm]") {
  Pair t;
  t.ask(t.req());
  auto req = t.a.take_one<ReqMessage>();
  t.b.give(req);
  const CommId ib = t.b.expect(EventKind::req_received).id;
  auto other = req;  // the same ID, another QP and another transaction
  other.data[15] ^= 1;
  other.data[24 + 34] ^= 0x80;
  t.b.give(other);
  CHECK(read_as<RejMessage>(t.b.take_one<RejMessage>()).reason == RejReason::duplicate_local_comm_id);
  CHECK(t.b.agent.state(ib) == State::req_rcvd);
  REQUIRE(t.b.agent.reject(t.b.now, ib, RejReason::no_qp) == Result::ok);
  t.b.take();
  t.b.give(other);
  CHECK(t.b.expect(EventKind::req_received).id != ib);
}

TEST_CASE("CM: only the peer's address speaks for a connection", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  REQUIRE(t.a.agent.disconnect(t.a.now, ids.a) == Result::ok);
  auto dreq = t.a.take_one<DreqMessage>();
  dreq.route.local_gid.raw[15] = 99;
  t.b.give(dreq);
  CHECK(t.b.agent.state(ids.b) == State::established);
  CHECK(t.b.agent.counters().wrong_source == 1);
  CHECK_FALSE(t.b.poll().has_value());
}

TEST_CASE("IBA 12.9.6: a REJ ends what was thought to be established", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  const Mad m = make_mad(1, RejMessage{ids.b, ids.a, MessageRef::other, 0, RejReason::invalid_comm_id});
  REQUIRE(t.a.agent.on_mad(t.a.now, t.req().route, m));
  const Event e = t.a.expect(EventKind::rej_received);
  CHECK(e.state == State::timewait);
  REQUIRE(t.a.agent.on_mad(t.a.now, t.req().route, m));
  t.a.expect_silence();
  // The peer's QP is free for another connection, so it is not stale.
  RepMessage rep;
  rep.local_comm_id = 5;
  rep.remote_comm_id = t.ask(t.req(0x1002));
  rep.local_qpn = 0x2002;
  rep.local_ca_guid = t.b.guid;
  REQUIRE(t.a.agent.on_mad(t.a.now, t.req().route, make_mad(1, rep)));
  t.a.expect(EventKind::rep_received);
}

TEST_CASE("IBA 12.9.6: a REJ answers a DREQ as well", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  REQUIRE(t.a.agent.disconnect(t.a.now, ids.a) == Result::ok);
  t.a.take();
  const Mad m = make_mad(1, RejMessage{ids.b, ids.a, MessageRef::other, 0, RejReason::invalid_comm_id});
  REQUIRE(t.a.agent.on_mad(t.a.now, t.req().route, m));
  t.a.expect(EventKind::drep_received);
  CHECK(t.a.agent.state(ids.a) == State::timewait);
}

TEST_CASE("IBA tables 115, 116: a LAP is answered, and refused", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  LapMessage lap{ids.a, ids.b, 0x2002, 20, {}};
  const auto status_of = [&](const LapMessage& m) {
    REQUIRE(t.b.agent.on_mad(t.b.now, t.req().route.reversed(), make_mad(0x77, m)));
    const auto apr = t.b.take_one<AprMessage>();
    CHECK(tid_of(apr) == 0x77);
    const auto r = read_as<AprMessage>(apr);
    CHECK(r.local_comm_id == m.remote_comm_id);
    CHECK(r.remote_comm_id == m.local_comm_id);
    return r.status;
  };
  CHECK(status_of(lap) == ApStatus::unsupported);
  lap.remote_qpn = 0x2003;
  CHECK(status_of(lap) == ApStatus::invalid_qpn);
  lap.remote_qpn = 0x2002;
  lap.remote_comm_id ^= 1;
  CHECK(status_of(lap) == ApStatus::invalid_comm_id);
  lap.remote_comm_id ^= 1;
  REQUIRE(t.b.agent.disconnect(t.b.now, ids.b) == Result::ok);
  t.b.take();
  CHECK(status_of(lap) == ApStatus::rejected);
  // And an APR nobody asked for is nothing.
  REQUIRE(t.b.agent.on_mad(t.b.now, t.req().route.reversed(), make_mad(1, AprMessage{ids.a, ids.b, 0, ApStatus::ok})));
  t.b.expect_silence();
}

TEST_CASE("CM: what is no CM message", "[cm]") {
  Pair t;
  t.ask(t.req());
  const auto good = t.a.take_one<ReqMessage>();
  const auto give = [&](std::size_t at, std::uint8_t value, std::size_t length = mad::kMadSize) {
    auto m = good;
    m.data[at] = value;
    return t.b.agent.on_mad(t.b.now, m.route.reversed(), Bytes(m.data).first(length));
  };
  CHECK_FALSE(give(1, 0x04));   // another class: for somebody else
  CHECK_FALSE(give(0, 1, 23));  // no whole header
  CHECK(give(0, 2));            // base version
  CHECK(give(3, 1));            // method
  CHECK(give(17, 0x0F));        // attributes before and behind the messages
  CHECK(give(17, 0x1B));
  CHECK(give(16, 1));
  CHECK(give(0, 1, 255));  // cut off
  CHECK(t.b.agent.counters().malformed == 7);
  t.b.expect_silence();
  CHECK(t.b.agent.size() == 0);
}

TEST_CASE("CM: strangers cannot make the agent grow", "[cm]") {
  AgentOptions o;
  o.max_ids = 10;
  o.max_output = 5;
  Pair t(o);
  std::vector<mad::OutMad> reqs;
  for (std::uint32_t i = 0; i < 20; ++i) {
    End stranger(static_cast<std::uint8_t>(10 + i));
    CommId id;
    REQUIRE(stranger.agent.connect(0, t.req(), &id) == Result::ok);
    reqs.push_back(stranger.take_one<ReqMessage>());
  }
  for (const auto& m : reqs) t.b.give(m);
  CHECK(t.b.agent.size() == 10);
  CHECK(t.b.agent.counters().no_room == 10);
  CommId id;
  CHECK(t.b.agent.connect(t.b.now, t.req(), &id) == Result::no_room);
  std::vector<CommId> asked;
  while (const auto e = t.b.poll()) asked.push_back(e->id);
  REQUIRE(asked.size() == 10);

  // Those that are only remembered give way to new ones.
  for (const CommId i : asked) {
    REQUIRE(t.b.agent.reject(t.b.now, i, RejReason::no_qp) == Result::ok);
    t.b.agent.destroy(t.b.now, i);
  }
  t.b.take();
  CHECK(t.b.agent.size() == 10);
  for (std::size_t i = 10; i < 20; ++i) t.b.give(reqs[i]);
  CHECK(t.b.agent.size() == 10);
  unsigned again = 0;
  while (t.b.poll()) ++again;
  CHECK(again == 10);

  // Answers to strangers that nobody takes are not kept without end.
  for (int i = 0; i < 50; ++i) {
    const auto unknown = make_mad(1, DreqMessage{1, 2, 3});
    REQUIRE(t.b.agent.on_mad(t.b.now, t.req().route.reversed(), unknown));
  }
  CHECK(t.b.take().size() == 5);
  CHECK(t.b.agent.counters().output_dropped == 45);
}

TEST_CASE("CM: a peer cannot make the agent wait for hours", "[cm]") {
  Pair t;
  t.ask(t.req());
  auto req = t.a.take_one<ReqMessage>();
  req.data[24 + 47] = 31 << 3;  // it answers within 2.4 hours
  req.data[24 + 95] = 31 << 3;  // and a packet lives as long
  t.b.give(req);
  const CommId ib = t.b.expect(EventKind::req_received).id;
  REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::ok);
  CHECK(t.b.agent.next_timeout() <= t.b.now + 2 * time_of_code(25));
}

}  // namespace softrnic::cm
