// Two CM agents and the messages between them, delivered one at a time or all at once.
#pragma once

#include <catch2/catch.hpp>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "protocols/cm/cm.h"
#include "protocols/cm/messages.h"

namespace softrnic::cm {

inline constexpr std::uint64_t kService = 0x0106'1234;
inline constexpr Nanos kMs = 1'000'000;

inline Bytes bytes_of(std::string_view s) { return {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()}; }

inline MessageType type_of(const mad::OutMad& m) {
  return static_cast<MessageType>(mad::MadHeader::read(m.data.data()).attribute_id - kFirstAttribute);
}
inline std::uint64_t tid_of(const mad::OutMad& m) { return mad::MadHeader::read(m.data.data()).transaction_id; }
template <class M>
M read_as(const mad::OutMad& m) {
  REQUIRE(type_of(m) == M::kType);
  return M::read(m.data.data() + mad::MadHeader::kSize);
}
inline std::string_view text_of(const Event& e) {
  const char* p = reinterpret_cast<const char*>(e.private_data.data());
  return {p, std::min<std::size_t>(e.private_data_length, std::char_traits<char>::length(p))};
}

// One agent with the time and the messages it sent.
struct End {
  explicit End(std::uint8_t number, AgentOptions o = {})
      : gid{{0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number}},
        guid(0x0200'0000'0000'0000u + number),
        agent(with_identity(o, number)) {}

  static AgentOptions with_identity(AgentOptions o, std::uint8_t number) {
    o.ca_guid = 0x0200'0000'0000'0000u + number;
    o.seed = number * 77u;
    return o;
  }

  // The messages to send, taken from the agent.
  std::deque<mad::OutMad> take() {
    std::deque<mad::OutMad> all;
    mad::OutMad m;
    while (agent.poll_transmit(now, &m)) all.push_back(m);
    return all;
  }
  // Exactly one message, which is an M.
  template <class M>
  mad::OutMad take_one() {
    auto all = take();
    REQUIRE(all.size() == 1);
    CHECK(type_of(all[0]) == M::kType);
    return all[0];
  }
  // Lets the time come at which the agent does something by itself.
  void time_out() {
    now = agent.next_timeout();
    agent.on_timeout(now);
  }
  void give(const mad::OutMad& m) { CHECK(agent.on_mad(now, m.route.reversed(), m.data)); }

  std::optional<Event> poll() {
    Event e;
    if (!agent.poll_event(&e)) return std::nullopt;
    return e;
  }
  Event expect(EventKind kind) {
    const auto e = poll();
    REQUIRE(e.has_value());
    CHECK(e->kind == kind);
    return *e;
  }
  void expect_silence() {
    CHECK_FALSE(poll().has_value());
    CHECK(take().empty());
  }

  Gid gid;
  std::uint64_t guid;
  Nanos now = 1'000'000'000;
  Agent agent;
};

struct Pair {
  explicit Pair(AgentOptions options = {}) : a(1, options), b(2, options) {
    REQUIRE(b.agent.listen(kService, 0, &listener) == Result::ok);
  }

  // What `a` asks `b` for. Time-outs: 4.2 ms for the CM (code 10), 67 us a packet (code 4).
  ReqParams req(std::uint32_t qpn = 0x1001) const {
    ReqParams p;
    p.service_id = kService;
    p.qpn = qpn;
    p.starting_psn = 0xABCDE;
    p.responder_resources = 4;
    p.initiator_depth = 3;
    p.remote_cm_response_timeout = p.local_cm_response_timeout = 10;
    p.retry_count = 7;
    p.rnr_retry_count = 6;
    p.max_cm_retries = 3;
    p.path_mtu = 3;
    p.path.local_gid = p.route.local_gid = a.gid;
    p.path.remote_gid = p.route.remote_gid = b.gid;
    p.path.packet_life_time = 4;
    return p;
  }
  static RepParams rep(std::uint32_t qpn = 0x2002) {
    RepParams p;
    p.qpn = qpn;
    p.starting_psn = 0x54321;
    p.responder_resources = 2;
    p.initiator_depth = 1;
    p.rnr_retry_count = 5;
    return p;
  }

  // Delivers everything until nobody says anything.
  void pump() {
    for (int i = 0; i < 100; ++i) {
      const auto from_a = a.take(), from_b = b.take();
      if (from_a.empty() && from_b.empty()) return;
      for (const auto& m : from_a) b.give(m);
      for (const auto& m : from_b) a.give(m);
    }
    FAIL("the two never stop");
  }
  void set_time(Nanos t) {
    a.now = b.now = t;
    a.agent.on_timeout(t);
    b.agent.on_timeout(t);
  }
  void advance(Nanos t) { set_time(a.now + t); }

  // Up to an event at b.
  CommId ask(const ReqParams& p) {
    CommId id = kNoId;
    REQUIRE(a.agent.connect(a.now, p, &id) == Result::ok);
    return id;
  }
  struct Ids {
    CommId a, b;
  };
  // `b` has the request.
  Ids asked(std::uint32_t qpn = 0x1001) {
    Ids ids{};
    ids.a = ask(req(qpn));
    pump();
    ids.b = b.expect(EventKind::req_received).id;
    return ids;
  }
  // And has accepted it; its REP waits to be taken.
  Ids accepted(std::uint32_t qpn = 0x1001, std::uint32_t peer_qpn = 0x2002) {
    const Ids ids = asked(qpn);
    REQUIRE(b.agent.accept(b.now, ids.b, rep(peer_qpn)) == Result::ok);
    return ids;
  }
  // And `a` has the reply.
  Ids replied(std::uint32_t qpn = 0x1001, std::uint32_t peer_qpn = 0x2002) {
    const Ids ids = accepted(qpn, peer_qpn);
    pump();
    a.expect(EventKind::rep_received);
    return ids;
  }
  Ids establish(std::uint32_t qpn = 0x1001, std::uint32_t peer_qpn = 0x2002) {
    const Ids ids = replied(qpn, peer_qpn);
    REQUIRE(a.agent.ready(a.now, ids.a) == Result::ok);
    pump();
    b.expect(EventKind::rtu_received);
    return ids;
  }

  End a, b;
  CommId listener = kNoId;
};

}  // namespace softrnic::cm
