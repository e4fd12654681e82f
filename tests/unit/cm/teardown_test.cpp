// Ending connections: DREQ and DREP, time-wait, stale connections, IDs that are given back.
#include <vector>

#include "tests/unit/cm/cm_pair.h"

namespace softrnic::cm {

TEST_CASE("IBA 12.9.6, 12.9.7: DREQ and DREP end a connection, time-wait follows", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  REQUIRE(t.b.agent.disconnect(t.b.now, ids.b, bytes_of("bye")) == Result::ok);
  CHECK(t.b.agent.state(ids.b) == State::dreq_sent);
  const auto dreq = t.b.take_one<DreqMessage>();
  CHECK(read_as<DreqMessage>(dreq).remote_qpn == 0x1001);
  t.a.give(dreq);
  Event e = t.a.expect(EventKind::dreq_received);
  CHECK(e.state == State::dreq_rcvd);
  CHECK(e.private_data_length == 220);
  CHECK(text_of(e) == "bye");
  t.a.give(dreq);  // the consumer takes its time
  t.a.expect_silence();
  REQUIRE(t.a.agent.confirm_disconnect(t.a.now, ids.a, bytes_of("farewell")) == Result::ok);
  const auto drep = t.a.take_one<DrepMessage>();
  CHECK(tid_of(drep) == tid_of(dreq));
  t.b.give(drep);
  e = t.b.expect(EventKind::drep_received);
  CHECK(e.state == State::timewait);
  CHECK(text_of(e) == "farewell");

  const Nanos end_a = t.a.agent.next_timeout(), end_b = t.b.agent.next_timeout();
  CHECK(end_a >= t.a.now + time_of_code(6));
  CHECK(end_b >= t.b.now + time_of_code(6));
  CHECK(t.a.agent.connect(t.a.now, t.req(), &t.listener) == Result::ok);  // others do not care
  t.set_time(std::max(end_a, end_b));
  t.a.expect(EventKind::timewait_exit);
  t.b.expect(EventKind::timewait_exit);
  CHECK(t.a.agent.state(ids.a) == State::idle);
  t.a.agent.destroy(t.a.now, ids.a);
  t.b.agent.destroy(t.b.now, ids.b);
  CHECK(t.b.agent.size() == 0);
}

TEST_CASE("IBA 12.9.6, 12.9.7: both sides disconnect at once", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  REQUIRE(t.a.agent.disconnect(t.a.now, ids.a, bytes_of("A")) == Result::ok);
  REQUIRE(t.b.agent.disconnect(t.b.now, ids.b, bytes_of("B")) == Result::ok);
  t.pump();
  CHECK(text_of(t.a.expect(EventKind::drep_received)) == "B");
  CHECK(text_of(t.b.expect(EventKind::drep_received)) == "A");
  CHECK(t.a.agent.state(ids.a) == State::timewait);
  CHECK(t.b.agent.state(ids.b) == State::timewait);
  t.a.expect_silence();
  t.b.expect_silence();
}

TEST_CASE("IBA 12.9.6, 12.9.7: of two DREQs one is enough", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  REQUIRE(t.a.agent.disconnect(t.a.now, ids.a) == Result::ok);
  REQUIRE(t.b.agent.disconnect(t.b.now, ids.b) == Result::ok);
  t.a.take();  // lost
  t.a.give(t.b.take_one<DreqMessage>());
  t.a.expect(EventKind::drep_received);
  t.b.give(t.a.take_one<DrepMessage>());
  t.b.expect(EventKind::drep_received);
}

TEST_CASE("IBA 12.9.6: a DREQ is repeated until it is answered, or given up", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  REQUIRE(t.a.agent.disconnect(t.a.now, ids.a) == Result::ok);
  const auto dreq = t.a.take_one<DreqMessage>();
  for (int retry = 0; retry < 3; ++retry) {
    t.a.time_out();
    CHECK(t.a.take_one<DreqMessage>().data == dreq.data);
  }
  t.a.time_out();
  CHECK(t.a.expect(EventKind::dreq_error).state == State::timewait);
  t.a.time_out();
  t.a.expect(EventKind::timewait_exit);
}

TEST_CASE("IBA 12.9.7: a DREP that is lost is sent again for the next DREQ", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  REQUIRE(t.a.agent.disconnect(t.a.now, ids.a) == Result::ok);
  const auto dreq = t.a.take_one<DreqMessage>();
  t.b.give(dreq);
  t.b.expect(EventKind::dreq_received);
  REQUIRE(t.b.agent.confirm_disconnect(t.b.now, ids.b, bytes_of("ok")) == Result::ok);
  const auto lost = t.b.take_one<DrepMessage>();
  t.b.give(dreq);
  const auto again = t.b.take_one<DrepMessage>();
  CHECK(again.data == lost.data);
  SECTION("also when the connection is forgotten") {
    t.b.agent.destroy(t.b.now, ids.b);
    t.b.time_out();
    CHECK(t.b.agent.size() == 0);
    t.b.give(dreq);
    const auto unknown = t.b.take_one<DrepMessage>();
    CHECK(tid_of(unknown) == tid_of(dreq));
    t.a.give(unknown);
  }
  SECTION("while it is in time-wait") { t.a.give(again); }
  t.a.expect(EventKind::drep_received);
}

TEST_CASE("IBA 12.9.7: a DREQ for another QP is ignored", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  REQUIRE(t.a.agent.disconnect(t.a.now, ids.a) == Result::ok);
  auto dreq = t.a.take_one<DreqMessage>();
  dreq.data[24 + 10] ^= 1;
  t.b.give(dreq);
  t.b.expect_silence();
  CHECK(t.b.agent.state(ids.b) == State::established);
}

TEST_CASE("IBA 12.9.7: a DREQ may overtake the RTU", "[cm]") {
  Pair t;
  const auto [ia, ib] = t.replied();
  REQUIRE(t.a.agent.ready(t.a.now, ia) == Result::ok);
  REQUIRE(t.a.agent.disconnect(t.a.now, ia) == Result::ok);
  const auto both = t.a.take();
  REQUIRE(both.size() == 2);
  t.b.give(both[1]);
  t.b.expect(EventKind::dreq_received);
  t.b.give(both[0]);
  t.b.expect_silence();
  CHECK(t.b.agent.state(ib) == State::dreq_rcvd);
}

TEST_CASE("CM: an ID that is given back ends its connection on both sides", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  t.a.agent.destroy(t.a.now, ids.a);
  CHECK(t.a.agent.disconnect(t.a.now, ids.a) == Result::bad_state);
  t.a.take();  // the first DREQ is lost
  t.set_time(t.a.agent.next_timeout());
  t.pump();
  t.b.expect(EventKind::dreq_received);
  t.b.agent.destroy(t.b.now, ids.b);  // answers it
  t.pump();
  t.advance(1000 * kMs);
  t.a.expect_silence();
  t.b.expect_silence();
  CHECK(t.a.agent.size() == 0);
  CHECK(t.b.agent.size() == 0);
}

TEST_CASE("CM: an ID may be given back in every state, and the peer hears of it", "[cm]") {
  Pair t;
  const int steps = GENERATE(0, 1, 2, 3);
  const bool active = GENERATE(true, false);
  INFO("given back after step " << steps << " by the " << (active ? "active" : "passive") << " side");
  const CommId ia = t.ask(t.req());
  CommId ib = kNoId;
  const auto give_back = [&] {
    if (active) {
      t.a.agent.destroy(t.a.now, ia);
    } else {
      t.b.agent.destroy(t.b.now, ib);
    }
  };
  t.pump();
  ib = t.b.poll()->id;
  if (steps >= 1) REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep()) == Result::ok);
  if (steps >= 2) t.pump();
  if (steps >= 3) REQUIRE(t.a.agent.ready(t.a.now, ia) == Result::ok);
  give_back();
  for (int i = 0; i < 100; ++i) {
    t.pump();
    t.advance(10 * kMs);
  }
  End& peer = active ? t.b : t.a;
  const CommId id = active ? ib : ia;
  bool over = false;
  while (const auto e = peer.poll()) {
    over = over || e->kind == EventKind::rej_received || e->kind == EventKind::dreq_received;
    if (e->kind == EventKind::dreq_received) REQUIRE(peer.agent.confirm_disconnect(peer.now, id) == Result::ok);
  }
  CHECK(over);
  peer.agent.destroy(peer.now, id);
  for (int i = 0; i < 100; ++i) {
    t.pump();
    t.advance(10 * kMs);
  }
  CHECK(t.a.agent.size() == 0);
  CHECK(t.b.agent.size() == 0);
}

TEST_CASE("IBA 12.9.7: a QP number of an established connection is a stale connection", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  // The peer lost its memory, and connects the same QP.
  End reborn(1, {});
  for (int i = 0; i < 5; ++i) {  // with other communication IDs than before
    CommId id;
    REQUIRE(reborn.agent.connect(t.a.now, t.req(0x7000), &id) == Result::ok);
    reborn.agent.destroy(t.a.now, id);
  }
  reborn.take();
  CommId id;
  REQUIRE(reborn.agent.connect(t.a.now, t.req(), &id) == Result::ok);
  t.b.give(reborn.take_one<ReqMessage>());
  const auto answers = t.b.take();
  REQUIRE(answers.size() == 2);
  CHECK(read_as<DreqMessage>(answers[0]).local_comm_id == ids.b);
  CHECK(read_as<RejMessage>(answers[1]).reason == RejReason::stale_connection);
  for (const auto& m : answers) reborn.give(m);
  CHECK(reborn.expect(EventKind::rej_received).reason == RejReason::stale_connection);
  CHECK(reborn.agent.state(id) == State::timewait);
  // The old connection ends, since the peer does not know it.
  t.b.give(reborn.take_one<DrepMessage>());
  CHECK(t.b.expect(EventKind::drep_received).id == ids.b);
  // And the QP can be connected.
  REQUIRE(reborn.agent.connect(t.a.now, t.req(), &id) == Result::ok);
  t.b.give(reborn.take_one<ReqMessage>());
  t.b.expect(EventKind::req_received);
}

TEST_CASE("IBA 12.9.6: a REP with a QP number of an established connection is stale, too", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  const CommId ia = t.ask(t.req(0x1002));
  t.pump();
  const CommId ib = t.b.expect(EventKind::req_received).id;
  REQUIRE(t.b.agent.accept(t.b.now, ib, Pair::rep(0x2002)) == Result::ok);  // the QP of the first
  t.pump();
  const Event e = t.a.expect(EventKind::rej_received);
  CHECK(e.id == ia);
  CHECK(e.reason == RejReason::stale_connection);
  CHECK(t.b.expect(EventKind::dreq_received).id == ids.b);
  CHECK(t.b.expect(EventKind::rej_received).id == ib);
}

TEST_CASE("IBA 12.9.7: a QP number is not stale once its connection is being ended", "[cm]") {
  Pair t;
  const auto ids = t.establish();
  const int stage = GENERATE(0, 1, 2, 3);
  INFO("stage " << stage);
  if (stage == 0) {  // the peer's consumer has not answered
    REQUIRE(t.a.agent.disconnect(t.a.now, ids.a) == Result::ok);
    t.pump();
  } else if (stage == 1) {  // the DREQ of the passive side is on its way
    REQUIRE(t.b.agent.disconnect(t.b.now, ids.b) == Result::ok);
    t.b.take();
  } else if (stage >= 2) {  // time-wait on the passive side
    REQUIRE(t.a.agent.disconnect(t.a.now, ids.a) == Result::ok);
    t.pump();
    REQUIRE(t.b.agent.disconnect(t.b.now, ids.b) == Result::ok);
    t.pump();
    if (stage == 3) t.b.agent.destroy(t.b.now, ids.b);
  }
  while (t.b.poll()) {
  }
  t.ask(t.req());  // the same QP number
  t.pump();
  const Event e = t.b.expect(EventKind::req_received);
  CHECK(e.remote_qpn == 0x1001);
}

TEST_CASE("CM: a QP that was asked for in vain can ask again at once", "[cm]") {
  Pair t;
  const CommId first = t.ask(t.req());
  t.pump();
  t.b.expect(EventKind::req_received);
  t.a.agent.destroy(t.a.now, first);
  t.a.take();  // nobody hears that it was taken back
  t.ask(t.req());
  t.pump();
  const Event e = t.b.expect(EventKind::req_received);
  REQUIRE(t.b.agent.accept(t.b.now, e.id, Pair::rep()) == Result::ok);
  t.pump();
  t.a.expect(EventKind::rep_received);
}

TEST_CASE("CM: 1,000 connections at a time, ten times over, with the same QPs", "[cm]") {
  Pair t;
  constexpr std::uint32_t kAtATime = 1000;
  for (int round = 0; round < 10; ++round) {
    std::vector<CommId> active(kAtATime), passive;
    for (std::uint32_t i = 0; i < kAtATime; ++i) active[i] = t.ask(t.req(0x1000 + i));
    t.pump();
    while (const auto e = t.b.poll()) {
      REQUIRE(e->kind == EventKind::req_received);
      passive.push_back(e->id);
      REQUIRE(t.b.agent.accept(t.b.now, e->id, Pair::rep(0x8000 + e->remote_qpn)) == Result::ok);
    }
    REQUIRE(passive.size() == kAtATime);
    t.pump();
    while (const auto e = t.a.poll()) REQUIRE(t.a.agent.ready(t.a.now, e->id) == Result::ok);
    t.pump();
    for (const CommId id : passive) t.b.agent.destroy(t.b.now, id);
    t.pump();
    for (const CommId id : active) {
      REQUIRE(t.a.agent.state(id) == State::dreq_rcvd);
      t.a.agent.destroy(t.a.now, id);
    }
    t.pump();
    CHECK(t.a.agent.size() == kAtATime);  // in time-wait
    t.advance(2 * kMs);
    CHECK(t.a.agent.size() == 0);
    CHECK(t.b.agent.size() == 0);
    CHECK(t.a.agent.next_timeout() == kNever);
  }
  t.a.expect_silence();
  t.b.expect_silence();
}

TEST_CASE("CM: both ends may be in one agent", "[cm]") {
  End host(1);
  CommId listener, ia;
  REQUIRE(host.agent.listen(kService, 0, &listener) == Result::ok);
  const auto loop = [&] {
    for (auto all = host.take(); !all.empty(); all = host.take()) {
      for (const auto& m : all) host.give(m);
    }
  };
  for (int round = 0; round < 3; ++round) {
    ReqParams p = Pair().req();
    p.path.remote_gid = p.route.remote_gid = p.path.local_gid = p.route.local_gid = host.gid;
    REQUIRE(host.agent.connect(host.now, p, &ia) == Result::ok);
    loop();
    const CommId ib = host.expect(EventKind::req_received).id;
    REQUIRE(host.agent.accept(host.now, ib, Pair::rep()) == Result::ok);
    loop();
    CHECK(host.expect(EventKind::rep_received).id == ia);
    REQUIRE(host.agent.ready(host.now, ia) == Result::ok);
    loop();
    CHECK(host.expect(EventKind::rtu_received).id == ib);
    REQUIRE(host.agent.disconnect(host.now, ib) == Result::ok);
    loop();
    CHECK(host.expect(EventKind::dreq_received).id == ia);
    REQUIRE(host.agent.confirm_disconnect(host.now, ia) == Result::ok);
    loop();
    CHECK(host.expect(EventKind::drep_received).id == ib);
    host.agent.destroy(host.now, ia);
    host.agent.destroy(host.now, ib);
  }
  host.now += 1000 * kMs;
  host.agent.on_timeout(host.now);
  CHECK(host.agent.size() == 0);
  host.expect_silence();
}

}  // namespace softrnic::cm
