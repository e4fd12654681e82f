// Every message in every state of a connection: the new state, the event, the answer. What a table does not list
// changes nothing and says nothing.
#include <algorithm>
#include <vector>

#include "tests/unit/cm/cm_pair.h"

namespace softrnic::cm {
namespace {

enum class In { req, mra_req, mra_rep, rej_req, rej_rep, rej_other, rep, rtu, dreq, drep, lap };
constexpr In kAll[] = {In::req, In::mra_req, In::mra_rep, In::rej_req, In::rej_rep, In::rej_other,
                       In::rep, In::rtu,     In::dreq,    In::drep,    In::lap};

struct Row {
  State state;
  In in;
  State next;
  std::optional<EventKind> event;
  std::optional<MessageType> answer;
};

// One side of a connection, and its peer made up by hand.
class Side {
 public:
  Side() { REQUIRE(me_.agent.listen(kService, 0, &listener_) == Result::ok); }

  void give(In in) { REQUIRE(me_.agent.on_mad(me_.now, route(), message(in))); }
  State state() const { return me_.agent.state(id_); }
  End& me() { return me_; }

  void reach_active(State s) {
    ReqParams p = Pair().req(kMyQpn);
    p.route = route();
    REQUIRE(me_.agent.connect(me_.now, p, &id_) == Result::ok);
    switch (s) {
      case State::idle:
        REQUIRE(me_.agent.reject(me_.now, id_, RejReason::timeout) == Result::ok);
        break;
      case State::mra_req_rcvd:
        give(In::mra_req);
        break;
      case State::req_sent:
        break;
      default:
        give(In::rep);
        if (s == State::mra_rep_sent) REQUIRE(me_.agent.mra(me_.now, id_, 20) == Result::ok);
        if (s != State::rep_rcvd && s != State::mra_rep_sent) {
          REQUIRE(me_.agent.ready(me_.now, id_) == Result::ok);
          leave(s);
        }
    }
    settle(s);
  }

  void reach_passive(State s) {
    give(In::req);
    id_ = me_.expect(EventKind::req_received).id;
    switch (s) {
      case State::req_rcvd:
        break;
      case State::mra_req_sent:
        REQUIRE(me_.agent.mra(me_.now, id_, 20) == Result::ok);
        break;
      case State::idle:
        REQUIRE(me_.agent.reject(me_.now, id_, RejReason::no_qp) == Result::ok);
        break;
      default:
        REQUIRE(me_.agent.accept(me_.now, id_, Pair::rep(kMyQpn)) == Result::ok);
        if (s == State::mra_rep_rcvd) give(In::mra_rep);
        if (s != State::rep_sent && s != State::mra_rep_rcvd) {
          give(In::rtu);
          leave(s);
        }
    }
    settle(s);
  }

 private:
  static constexpr CommId kPeerId = 0x51515151;
  static constexpr std::uint32_t kMyQpn = 0x1001, kPeerQpn = 0x2002;
  static constexpr std::uint64_t kPeerGuid = 0x99, kReqTid = 0x77;

  static mad::MadRoute route() { return Pair().req().route; }

  void leave(State s) {
    if (s == State::dreq_sent) REQUIRE(me_.agent.disconnect(me_.now, id_) == Result::ok);
    if (s == State::dreq_rcvd || s == State::timewait) give(In::dreq);
    if (s == State::timewait) REQUIRE(me_.agent.confirm_disconnect(me_.now, id_) == Result::ok);
  }
  void settle(State s) {
    REQUIRE(state() == s);
    while (me_.poll()) {
    }
    me_.take();
  }

  Mad message(In in) const {
    switch (in) {
      case In::req: {
        ReqMessage m;
        m.local_comm_id = kPeerId;
        m.service_id = kService;
        m.local_ca_guid = kPeerGuid;
        m.local_qpn = kPeerQpn;
        m.local_cm_response_timeout = m.remote_cm_response_timeout = 10;
        m.max_cm_retries = 3;
        m.path_mtu = 3;
        return make_mad(kReqTid, m);
      }
      case In::mra_req:
        return make_mad(kReqTid, MraMessage{kPeerId, id_, MessageRef::req, 20});
      case In::mra_rep:
        return make_mad(kReqTid, MraMessage{kPeerId, id_, MessageRef::rep, 20});
      case In::rej_req:
        return make_mad(kReqTid, RejMessage{kNoId, id_, MessageRef::req, 0, RejReason::consumer_defined});
      case In::rej_rep:
        return make_mad(kReqTid, RejMessage{kPeerId, id_, MessageRef::rep, 0, RejReason::consumer_defined});
      case In::rej_other:
        return make_mad(kReqTid, RejMessage{kPeerId, id_, MessageRef::other, 0, RejReason::consumer_defined});
      case In::rep: {
        RepMessage m;
        m.local_comm_id = kPeerId;
        m.remote_comm_id = id_;
        m.local_qpn = kPeerQpn;
        m.local_ca_guid = kPeerGuid;
        return make_mad(kReqTid, m);
      }
      case In::rtu:
        return make_mad(kReqTid, RtuMessage{kPeerId, id_});
      case In::dreq:
        return make_mad(kReqTid + 1, DreqMessage{kPeerId, id_, kMyQpn});
      case In::drep:
        return make_mad(kReqTid + 1, DrepMessage{kPeerId, id_});
      default:
        return make_mad(kReqTid + 2, LapMessage{kPeerId, id_, kMyQpn, 20, {}});
    }
  }

  End me_{1};
  CommId listener_ = kNoId, id_ = kNoId;
};

void check_table(const std::vector<Row>& table, const std::vector<State>& states, void (Side::*reach)(State)) {
  for (const State state : states) {
    for (const In in : kAll) {
      if (in == In::req && reach == &Side::reach_active) continue;  // makes another connection
      Row want{state, in, state, std::nullopt, std::nullopt};
      if (in == In::lap) want.answer = MessageType::apr;  // always: refused
      for (const Row& row : table) {
        if (row.state == state && row.in == in) want = row;
      }
      INFO("state " << static_cast<int>(state) << ", message " << static_cast<int>(in));
      Side side;
      (side.*reach)(state);
      side.give(in);
      CHECK(side.state() == want.next);
      const auto event = side.me().poll();
      CHECK(event.has_value() == want.event.has_value());
      if (event && want.event) CHECK(event->kind == *want.event);
      CHECK_FALSE(side.me().poll().has_value());
      const auto sent = side.me().take();
      CHECK(sent.size() == (want.answer ? 1u : 0u));
      if (want.answer && !sent.empty()) CHECK(type_of(sent[0]) == *want.answer);
    }
  }
}

constexpr std::nullopt_t kNone = std::nullopt;

}  // namespace

TEST_CASE("IBA 12.9.6: every message in every state of the active side", "[cm]") {
  using S = State;
  using E = EventKind;
  using M = MessageType;
  const std::vector<Row> table = {
      {S::req_sent, In::mra_req, S::mra_req_rcvd, E::mra_received, kNone},
      {S::req_sent, In::rep, S::rep_rcvd, E::rep_received, kNone},
      {S::req_sent, In::rej_req, S::idle, E::rej_received, kNone},
      {S::req_sent, In::rej_other, S::idle, E::rej_received, kNone},
      {S::req_sent, In::dreq, S::req_sent, kNone, M::drep},
      {S::mra_req_rcvd, In::rep, S::rep_rcvd, E::rep_received, kNone},
      {S::mra_req_rcvd, In::rej_req, S::idle, E::rej_received, kNone},
      {S::mra_req_rcvd, In::rej_other, S::idle, E::rej_received, kNone},
      {S::mra_req_rcvd, In::dreq, S::mra_req_rcvd, kNone, M::drep},
      {S::rep_rcvd, In::rej_rep, S::timewait, E::rej_received, kNone},
      {S::rep_rcvd, In::rej_other, S::timewait, E::rej_received, kNone},
      {S::rep_rcvd, In::dreq, S::timewait, E::rej_received, M::drep},
      {S::mra_rep_sent, In::rep, S::mra_rep_sent, kNone, M::mra},
      {S::mra_rep_sent, In::rej_rep, S::timewait, E::rej_received, kNone},
      {S::mra_rep_sent, In::rej_other, S::timewait, E::rej_received, kNone},
      {S::mra_rep_sent, In::dreq, S::timewait, E::rej_received, M::drep},
      {S::established, In::rep, S::established, kNone, M::rtu},
      {S::established, In::rej_rep, S::timewait, E::rej_received, kNone},
      {S::established, In::rej_other, S::timewait, E::rej_received, kNone},
      {S::established, In::dreq, S::dreq_rcvd, E::dreq_received, kNone},
      {S::dreq_sent, In::drep, S::timewait, E::drep_received, kNone},
      {S::dreq_sent, In::dreq, S::timewait, E::drep_received, M::drep},
      {S::dreq_sent, In::rej_rep, S::timewait, E::drep_received, kNone},
      {S::dreq_sent, In::rej_other, S::timewait, E::drep_received, kNone},
      {S::timewait, In::dreq, S::timewait, kNone, M::drep},
      {S::timewait, In::rep, S::timewait, kNone, M::rej},
      {S::idle, In::rep, S::idle, kNone, M::rej},
      {S::idle, In::dreq, S::idle, kNone, M::drep},
  };
  check_table(table,
              {S::req_sent, S::mra_req_rcvd, S::rep_rcvd, S::mra_rep_sent, S::established, S::dreq_sent, S::dreq_rcvd,
               S::timewait, S::idle},
              &Side::reach_active);
}

TEST_CASE("IBA 12.9.7: every message in every state of the passive side", "[cm]") {
  using S = State;
  using E = EventKind;
  using M = MessageType;
  const std::vector<Row> table = {
      {S::req_rcvd, In::rej_rep, S::idle, E::rej_received, kNone},
      {S::req_rcvd, In::rej_other, S::idle, E::rej_received, kNone},
      {S::mra_req_sent, In::req, S::mra_req_sent, kNone, M::mra},
      {S::mra_req_sent, In::rej_rep, S::idle, E::rej_received, kNone},
      {S::mra_req_sent, In::rej_other, S::idle, E::rej_received, kNone},
      {S::rep_sent, In::req, S::rep_sent, kNone, M::rep},
      {S::rep_sent, In::mra_rep, S::mra_rep_rcvd, E::mra_received, kNone},
      {S::rep_sent, In::rtu, S::established, E::rtu_received, kNone},
      {S::rep_sent, In::rej_rep, S::timewait, E::rej_received, kNone},
      {S::rep_sent, In::rej_other, S::timewait, E::rej_received, kNone},
      {S::rep_sent, In::dreq, S::dreq_rcvd, E::dreq_received, kNone},
      {S::mra_rep_rcvd, In::rtu, S::established, E::rtu_received, kNone},
      {S::mra_rep_rcvd, In::rej_rep, S::timewait, E::rej_received, kNone},
      {S::mra_rep_rcvd, In::rej_other, S::timewait, E::rej_received, kNone},
      {S::mra_rep_rcvd, In::dreq, S::dreq_rcvd, E::dreq_received, kNone},
      {S::established, In::rej_rep, S::timewait, E::rej_received, kNone},
      {S::established, In::rej_other, S::timewait, E::rej_received, kNone},
      {S::established, In::dreq, S::dreq_rcvd, E::dreq_received, kNone},
      {S::dreq_sent, In::drep, S::timewait, E::drep_received, kNone},
      {S::dreq_sent, In::dreq, S::timewait, E::drep_received, M::drep},
      {S::dreq_sent, In::rej_rep, S::timewait, E::drep_received, kNone},
      {S::dreq_sent, In::rej_other, S::timewait, E::drep_received, kNone},
      {S::timewait, In::dreq, S::timewait, kNone, M::drep},
      {S::timewait, In::rep, S::timewait, kNone, M::rej},
      {S::idle, In::req, S::idle, kNone, M::rej},
  };
  check_table(table,
              {S::req_rcvd, S::mra_req_sent, S::rep_sent, S::mra_rep_rcvd, S::established, S::dreq_sent, S::dreq_rcvd,
               S::timewait, S::idle},
              &Side::reach_passive);
}

}  // namespace softrnic::cm
