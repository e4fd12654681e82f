// Faults, events and filters over the control socket.
#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "tests/unit/control/client_fixture.h"

using namespace softrnic;
using namespace softrnic::test;
using namespace softrnic::control;

namespace {

struct Operator : Client {
  explicit Operator(const std::string& socket) : Client(socket) {}

  std::string request_body(const std::string& rules, std::uint32_t flags = 0) {
    FaultAddRequest head{};
    head.flags = flags;
    return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + rules;
  }
  int add(const std::string& rules, std::uint32_t flags = 0) {
    const std::string body = request_body(rules, flags);
    return call_bytes(MsgType::fault_add, body.data(), static_cast<std::uint32_t>(body.size()));
  }
  void send_add(const std::string& rules, std::uint32_t flags = 0) {
    const std::string body = request_body(rules, flags);
    REQUIRE(connection.send(MsgType::fault_add, 77, body.data(), static_cast<std::uint32_t>(body.size())) == 0);
  }
  int del(std::uint32_t id) {
    FaultDelRequest request{};
    request.id = id;
    return call(MsgType::fault_del, request);
  }
  std::string text() const { return {reply.body.begin(), reply.body.end()}; }
  std::string list() {
    REQUIRE(call(MsgType::fault_list) == 0);
    return text();
  }
  std::string events_after(std::uint64_t after, std::uint64_t* last = nullptr) {
    EventsRequest request{};
    request.after = after;
    REQUIRE(call(MsgType::events, request) == 0);
    EventsReply head{};
    REQUIRE(reply.body.size() >= sizeof(head));
    std::memcpy(&head, reply.body.data(), sizeof(head));
    if (last != nullptr) *last = head.last;
    return text().substr(sizeof(head));
  }
};

constexpr auto kSwitch = static_cast<std::uint32_t>(RouteMode::via_switch);
constexpr auto kDirect = static_cast<std::uint32_t>(RouteMode::direct);

}  // namespace

TEST_CASE("Rule 5: a first fault brings every VF through the switch, the last one's end back", "[control][fault]") {
  HostFixture host;
  VfClient a(host.socket_path());
  Operator o(host.socket_path());
  o.send_add("drop if once\n# two\necn");
  const RouteNotice there = a.next_route();
  CHECK(there.mode == kSwitch);
  Message early;
  CHECK(o.connection.receive(&early, true) == EAGAIN);
  a.follow(there);
  Message m;
  REQUIRE(o.connection.receive(&m) == 0);
  CHECK(m.header.status == 0);
  CHECK(body_as<FaultAddReply>(m).first_id == 1);
  CHECK(body_as<FaultAddReply>(m).count == 2);
  CHECK(o.list() ==
        "[{\"applied\":0,\"id\":1,\"left\":1,\"matched\":0,\"rule\":\"drop if once\"},"
        "{\"applied\":0,\"id\":2,\"left\":null,\"matched\":0,\"rule\":\"ecn\"}]");

  CHECK(o.del(1) == 0);
  CHECK(o.del(1) == ENOENT);
  CHECK(a.call(MsgType::get_block) == 0);
  CHECK(a.notices.empty());
  CHECK(o.del(0) == 0);
  const RouteNotice back = a.next_route();
  CHECK(back.mode == kDirect);
  a.follow(back);
  CHECK(o.list() == "[]");
  CHECK(o.del(0) == 0);
}

TEST_CASE("A wrong rule is refused with the place, and none of the others is taken", "[control][fault]") {
  HostFixture host;
  Operator o(host.socket_path());
  CHECK(o.add("drop\necn if evry=1\n") == EINVAL);
  CHECK(o.text().starts_with("line 2, column 8: unknown condition 'evry'"));
  CHECK(o.list() == "[]");
  CHECK(o.add("") == EINVAL);
}

TEST_CASE("Faults of a connection end with it; a capture keeps the route", "[control][fault]") {
  HostFixture host;
  VfClient a(host.socket_path());
  Operator stays(host.socket_path());
  {
    Operator goes(host.socket_path());
    goes.send_add("drop", kFaultOfConnection);
    const RouteNotice n = a.next_route();
    a.follow(n);
    Message m;
    REQUIRE(goes.connection.receive(&m) == 0);
    CHECK(stays.list().find("drop") != std::string::npos);
  }
  CHECK(a.next_route().mode == kDirect);
  CHECK(stays.list() == "[]");
}

TEST_CASE("Malformed fault and event requests close the connection", "[control][fault]") {
  HostFixture host;
  const auto closes = [&](MsgType type, std::vector<std::uint8_t> body) {
    Client c(host.socket_path());
    REQUIRE(c.connection.send(type, 5, body.data(), static_cast<std::uint32_t>(body.size())) == 0);
    return c.is_closed();
  };
  CHECK(closes(MsgType::fault_add, {1, 0}));
  CHECK(closes(MsgType::fault_add, {2, 0, 0, 0, 'e', 'c', 'n'}));
  CHECK(closes(MsgType::fault_list, {1}));
  CHECK(closes(MsgType::fault_del, {}));
  CHECK(closes(MsgType::events, {1}));
  CHECK(closes(MsgType::events, {0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}));
}

TEST_CASE("Events tell of VFs and faults, and whoever waits gets the next one", "[control][events]") {
  HostFixture host;
  Operator o(host.socket_path());
  CHECK(o.events_after(0).empty());
  {
    VfClient a(host.socket_path());
    o.send_add("drop if qp=5");
    a.follow(a.next_route());
    Message m;
    REQUIRE(o.connection.receive(&m) == 0);
  }
  std::uint64_t last = 0;
  std::string all;
  while (all.find("vf-gone") == std::string::npos) all += o.events_after(last, &last);
  CHECK(all.find("\"event\":\"vf-attached\",\"vf\":1") != std::string::npos);
  CHECK(all.find("\"event\":\"fault-added\",\"fault\":1,\"rule\":\"drop if qp=5\"") != std::string::npos);

  Operator waiting(host.socket_path());
  EventsRequest request{};
  request.after = last;
  request.wait = 1;
  REQUIRE(waiting.connection.send(MsgType::events, 9, &request, sizeof(request)) == 0);
  Message m;
  CHECK(waiting.connection.receive(&m, true) == EAGAIN);
  REQUIRE(o.del(1) == 0);
  REQUIRE(waiting.connection.receive(&m) == 0);
  CHECK(m.header.seq == 9);
  const std::string text(m.body.begin() + sizeof(EventsReply), m.body.end());
  CHECK(text.find("\"event\":\"fault-removed\",\"fault\":1") != std::string::npos);
}

TEST_CASE("A capture filter that is wrong is refused with libpcap's words", "[control][capture]") {
  HostFixture host;
  Client c(host.socket_path());
  const auto capture = [&](const std::string& filter) {
    CaptureRequest head{};
    std::string body(reinterpret_cast<const char*>(&head), sizeof(head));
    body += filter;
    const int fd = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    const int error = c.connection.call(MsgType::capture, body.data(), static_cast<std::uint32_t>(body.size()),
                                        &c.reply, &c.notices, &fd, 1);
    ::close(fd);
    return error;
  };
  CHECK(capture("udp prot 4791") == EINVAL);
  CHECK(std::string(c.reply.body.begin(), c.reply.body.end()).find("syntax error") != std::string::npos);
  CHECK(capture("udp port 4791") == 0);
}
