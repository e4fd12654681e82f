// Service ID resolution.
#include <vector>

#include "tests/unit/cm/cm_pair.h"

namespace softrnic::cm {
namespace {

SidrReqParams params(const Pair& t) {
  SidrReqParams p;
  p.service_id = kService;
  p.timeout = 4 * kMs;
  p.max_cm_retries = 3;
  p.route = t.req().route;
  return p;
}

CommId resolve(Pair& t, const SidrReqParams& p) {
  CommId id = kNoId;
  REQUIRE(t.a.agent.sidr_request(t.a.now, p, &id) == Result::ok);
  return id;
}

}  // namespace

TEST_CASE("IBA tables 119, 120: a service ID becomes a QP and its Q_Key", "[cm]") {
  Pair t;
  SidrReqParams p = params(t);
  p.private_data = bytes_of("who");
  const CommId ia = resolve(t, p);
  CHECK(t.a.agent.state(ia) == State::sidr_req_sent);
  const auto req = t.a.take_one<SidrReqMessage>();
  t.b.give(req);
  const Event asked = t.b.expect(EventKind::sidr_req_received);
  CHECK(asked.listener == t.listener);
  CHECK(asked.service_id == kService);
  CHECK(asked.pkey == 0xFFFF);
  CHECK(asked.route.remote_gid == t.a.gid);
  CHECK(asked.private_data_length == 216);
  CHECK(text_of(asked) == "who");
  SidrRepParams r;
  r.qpn = 0x3003;
  r.qkey = 0x01234567;
  const std::uint8_t info[] = {1, 2};
  r.info = info;
  r.private_data = bytes_of("me");
  REQUIRE(t.b.agent.sidr_reply(t.b.now, asked.id, r) == Result::ok);
  CHECK(t.b.agent.sidr_reply(t.b.now, asked.id, r) == Result::bad_state);
  const auto rep = t.b.take_one<SidrRepMessage>();
  CHECK(tid_of(rep) == tid_of(req));
  t.a.give(rep);
  const Event e = t.a.expect(EventKind::sidr_rep_received);
  CHECK(e.id == ia);
  CHECK(e.state == State::idle);
  CHECK(e.sidr_status == SidrStatus::ok);
  CHECK(e.remote_qpn == 0x3003);
  CHECK(e.remote_qkey == 0x01234567);
  CHECK(e.ari_length == 2);
  CHECK(e.private_data_length == 136);
  CHECK(text_of(e) == "me");
  CHECK(t.a.agent.next_timeout() == kNever);
  t.a.give(rep);  // a duplicate
  t.a.expect_silence();

  // A duplicate of the request gets the same answer, and is no second request.
  t.b.agent.destroy(t.b.now, asked.id);
  t.b.give(req);
  CHECK(t.b.take_one<SidrRepMessage>().data == rep.data);
  t.b.expect_silence();
  t.a.agent.destroy(t.a.now, ia);
  t.advance(20'000 * kMs);
  CHECK(t.a.agent.size() == 0);
  CHECK(t.b.agent.size() == 0);
}

TEST_CASE("IBA table 120: refusals", "[cm]") {
  Pair t;
  SidrReqParams p = params(t);
  p.service_id = kService + 1;
  resolve(t, p);
  t.pump();
  CHECK(t.a.expect(EventKind::sidr_rep_received).sidr_status == SidrStatus::unsupported);
  CHECK(t.b.agent.size() == 0);
  resolve(t, params(t));
  t.pump();
  t.b.agent.destroy(t.b.now, t.b.expect(EventKind::sidr_req_received).id);
  t.pump();
  CHECK(t.a.expect(EventKind::sidr_rep_received).sidr_status == SidrStatus::rejected);
  // And one that nobody polled goes with its listener.
  resolve(t, params(t));
  t.pump();
  t.b.agent.destroy(t.b.now, t.listener);
  t.pump();
  CHECK(t.a.expect(EventKind::sidr_rep_received).sidr_status == SidrStatus::rejected);
}

TEST_CASE("IBA table 119: a request without an answer is repeated, then given up", "[cm]") {
  Pair t;
  const CommId id = resolve(t, params(t));
  const auto first = t.a.take_one<SidrReqMessage>();
  for (int i = 0; i < 3; ++i) {
    CHECK(t.a.agent.next_timeout() == t.a.now + 4 * kMs);
    t.a.now += 4 * kMs;
    t.a.agent.on_timeout(t.a.now);
    CHECK(t.a.take_one<SidrReqMessage>().data == first.data);
  }
  t.a.now += 4 * kMs;
  t.a.agent.on_timeout(t.a.now);
  t.a.expect(EventKind::sidr_req_error);
  CHECK(t.a.agent.state(id) == State::idle);
  t.a.expect_silence();
}

TEST_CASE("IBA table 119: a request that is pending is not reported twice", "[cm]") {
  Pair t;
  const CommId ia = resolve(t, params(t));
  const auto req = t.a.take_one<SidrReqMessage>();
  t.b.give(req);
  t.b.give(req);
  const CommId ib = t.b.expect(EventKind::sidr_req_received).id;
  t.b.expect_silence();
  // Too busy: it may come again.
  REQUIRE(t.b.agent.drop(ib) == Result::ok);
  t.b.give(req);
  t.b.expect(EventKind::sidr_req_received);
  // The asking side gives up: nothing is left of it.
  t.a.agent.destroy(t.a.now, ia);
  CHECK(t.a.agent.size() == 0);
  t.a.expect_silence();
}

TEST_CASE("CM: the same request ID of another transaction or another port is another request", "[cm]") {
  Pair t;
  resolve(t, params(t));
  auto req = t.a.take_one<SidrReqMessage>();
  t.b.give(req);
  const CommId first = t.b.expect(EventKind::sidr_req_received).id;
  auto other = req;
  other.route.local_gid.raw[15] = 9;
  t.b.give(other);
  t.b.expect(EventKind::sidr_req_received);
  REQUIRE(t.b.agent.sidr_reply(t.b.now, first, {}) == Result::ok);
  req.data[15] ^= 0x40;
  t.b.give(req);
  t.b.expect(EventKind::sidr_req_received);
}

TEST_CASE("CM: limits of a resolution", "[cm]") {
  Pair t;
  std::vector<std::uint8_t> much(300);
  SidrReqParams p = params(t);
  CommId id;
  p.private_data = Bytes(much).first(217);
  CHECK(t.a.agent.sidr_request(t.a.now, p, &id) == Result::bad_argument);
  p.private_data = Bytes(much).first(216);
  p.max_cm_retries = 16;
  CHECK(t.a.agent.sidr_request(t.a.now, p, &id) == Result::bad_argument);
  p.max_cm_retries = 15;
  CHECK(t.a.agent.sidr_request(t.a.now, p, &id) == Result::ok);
  t.pump();
  const CommId ib = t.b.expect(EventKind::sidr_req_received).id;
  SidrRepParams r;
  r.private_data = Bytes(much).first(137);
  CHECK(t.b.agent.sidr_reply(t.b.now, ib, r) == Result::bad_argument);
  r.private_data = Bytes(much).first(136);
  r.info = Bytes(much).first(73);
  CHECK(t.b.agent.sidr_reply(t.b.now, ib, r) == Result::bad_argument);
  r.info = Bytes(much).first(72);
  CHECK(t.b.agent.sidr_reply(t.b.now, ib, r) == Result::ok);
}

}  // namespace softrnic::cm
