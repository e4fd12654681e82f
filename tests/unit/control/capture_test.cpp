// Captures over the control socket: the barrier for all VFs, and the end.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tests/unit/control/client_fixture.h"

using namespace softrnic;
using namespace softrnic::test;
using namespace softrnic::control;

namespace {

struct CaptureUser : Client {
  explicit CaptureUser(const std::string& socket) : Client(socket) {}
  // Sends the request; the reply comes when every VF has followed.
  void request(const std::string& file) {
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    const CaptureRequest body{};
    REQUIRE(connection.send(MsgType::capture, 77, &body, sizeof(body), &fd, 1) == 0);
    ::close(fd);
  }
  Message receive() {
    Message m;
    REQUIRE(connection.receive(&m) == 0);
    return m;
  }
  void stop() { ::shutdown(connection.fd(), SHUT_WR); }
};

bool is(const Message& m, MsgType type) { return m.header.type == static_cast<std::uint16_t>(type); }

constexpr auto kViaSwitch = static_cast<std::uint32_t>(RouteMode::via_switch);
constexpr auto kDirect = static_cast<std::uint32_t>(RouteMode::direct);

}  // namespace

TEST_CASE("Rule 5: a capture begins when every VF goes through the switch, and ends with the direct routes again",
          "[control][capture]") {
  HostFixture host;
  VfClient a(host.socket_path()), b(host.socket_path());
  CaptureUser user(host.socket_path());
  const std::string file = host.dir() + "/c.pcapng";
  user.request(file);
  const auto at_a = a.next_route(), at_b = b.next_route();
  CHECK(at_a.mode == kViaSwitch);
  CHECK(at_a.epoch == at_b.epoch);
  a.follow(at_a);
  Message early;
  CHECK(user.connection.receive(&early, true) == EAGAIN);
  CHECK(std::filesystem::file_size(file) == 0);  // its head is the sign that it runs

  VfClient late(host.socket_path());
  CHECK(late.attached.route_mode == kViaSwitch);
  CHECK(late.attached.route_epoch == at_a.epoch);

  b.follow(at_b);
  const Message started = user.receive();
  CHECK(is(started, MsgType::capture));
  CHECK(started.header.seq == 77);
  CHECK(started.header.status == 0);

  user.stop();
  const Message ended = user.receive();
  REQUIRE(is(ended, MsgType::capture_end));
  CHECK(body_as<CaptureEnd>(ended).error == 0);
  CHECK(body_as<CaptureEnd>(ended).lost == 0);
  CHECK(user.is_closed());
  CHECK(std::filesystem::file_size(file) > 0);
  const auto back = a.next_route();
  CHECK(back.mode == kDirect);
  CHECK(back.epoch != at_a.epoch);
  CHECK(late.next_route().mode == kDirect);
}

TEST_CASE("Rule 5: a VF that dies during a change of route is not waited for", "[control][capture]") {
  HostFixture host;
  auto dying = std::make_unique<VfClient>(host.socket_path());
  VfClient a(host.socket_path());
  CaptureUser user(host.socket_path());
  user.request("/dev/null");
  a.follow(a.next_route());
  dying->next_route();
  dying.reset();
  CHECK(is(user.receive(), MsgType::capture));
}

TEST_CASE("Rule 5: a VF that does not follow a change of route is detached", "[control][capture]") {
  NicHostOptions options;
  options.route_timeout = std::chrono::milliseconds(50);
  HostFixture host(std::move(options));
  VfClient a(host.socket_path()), stopped(host.socket_path());
  CaptureUser user(host.socket_path());
  user.request("/dev/null");
  a.follow(a.next_route());
  CHECK(is(user.receive(), MsgType::capture));
  CHECK(stopped.is_closed());
  CHECK(a.call(MsgType::get_block) == 0);
}

TEST_CASE("Rule 5: who waits for a stopped VF is not detached with it", "[control][capture]") {
  NicHostOptions options;
  options.route_timeout = std::chrono::milliseconds(200);
  HostFixture host(std::move(options));
  VfClient stopped(host.socket_path()), a(host.socket_path());
  a.connect_to(stopped.attached.first_block);
  CaptureUser user(host.socket_path());
  user.request("/dev/null");
  const RouteNotice notice = a.next_route();
  // Its mark towards the stopped VF is only off its mind when that one is gone.
  REQUIRE(is(a.next_notice(), MsgType::peer_gone));
  a.follow(notice);
  CHECK(is(user.receive(), MsgType::capture));
  CHECK(a.call(MsgType::get_block) == 0);
  CHECK(stopped.is_closed());
}

TEST_CASE("Two captures share the route, the second ends it", "[control][capture]") {
  HostFixture host;
  VfClient a(host.socket_path());
  CaptureUser first(host.socket_path()), second(host.socket_path());
  first.request("/dev/null");
  a.follow(a.next_route());
  CHECK(is(first.receive(), MsgType::capture));
  second.request("/dev/null");
  CHECK(is(second.receive(), MsgType::capture));
  first.stop();
  CHECK(is(first.receive(), MsgType::capture_end));
  CHECK(a.call(MsgType::get_block) == 0);
  CHECK(a.notices.empty());
  second.stop();
  CHECK(is(second.receive(), MsgType::capture_end));
  CHECK(a.next_route().mode == kDirect);
}

TEST_CASE("A capture whose process is gone ends", "[control][capture]") {
  HostFixture host;
  VfClient a(host.socket_path());
  {
    CaptureUser user(host.socket_path());
    user.request("/dev/null");
    a.follow(a.next_route());
    CHECK(is(user.receive(), MsgType::capture));
  }
  CHECK(a.next_route().mode == kDirect);
}

TEST_CASE("The end of a capture waits for a slow reader of its pipe", "[control][capture]") {
  HostFixture host;
  TempDir dir;
  int fds[2];
  REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
  CaptureUser user(host.socket_path());
  const CaptureRequest body{};
  REQUIRE(user.connection.send(MsgType::capture, 77, &body, sizeof(body), &fds[1], 1) == 0);
  ::close(fds[1]);
  CHECK(is(user.receive(), MsgType::capture));
  // More interface names than a pipe holds.
  std::size_t named = 0;
  for (; named < 1500; ++named) VfClient passing(host.socket_path());
  user.stop();
  Message early;
  CHECK(user.connection.receive(&early, true) == EAGAIN);
  std::size_t bytes = 0;
  char buffer[4096];
  ssize_t n = 0;
  while ((n = ::read(fds[0], buffer, sizeof(buffer))) > 0) bytes += static_cast<std::size_t>(n);
  ::close(fds[0]);
  CHECK(bytes > named * 30);
  const Message ended = user.receive();
  REQUIRE(is(ended, MsgType::capture_end));
  CHECK(body_as<CaptureEnd>(ended).error == 0);
}

TEST_CASE("A full file system ends the capture with ENOSPC, and the routes are direct again", "[control][capture]") {
  HostFixture host;
  VfClient a(host.socket_path());
  CaptureUser user(host.socket_path());
  user.request("/dev/full");
  a.follow(a.next_route());
  CHECK(is(user.receive(), MsgType::capture));
  const Message ended = user.receive();
  REQUIRE(is(ended, MsgType::capture_end));
  CHECK(body_as<CaptureEnd>(ended).error == ENOSPC);
  CHECK(user.is_closed());
  CHECK(a.next_route().mode == kDirect);
}

TEST_CASE("status tells devices and attached processes, and does not believe status pages", "[control][status]") {
  HostFixture host;
  VfClient a(host.socket_path());
  dp::Mapping page;
  REQUIRE(page.map(a.reply.fds[2], sizeof(dp::StatusPage)) == 0);
  auto& qps = page.as<dp::StatusPage>()->qp;
  qps[3].qpn = (a.attached.first_block << dp::kQpnBlockShift) + 5;
  qps[3].type = 2;
  qps[3].state = 3;
  qps[3].counters[0] = 4711;
  qps[9000].qpn = (a.attached.first_block << dp::kQpnBlockShift) + 6;
  qps[9000].type = 200;
  qps[9000].state = 99;
  qps[dp::kStatusQps - 1].qpn = 0xFFFFFFFF;  // not in a block of this VF
  Client c(host.socket_path());
  REQUIRE(c.call(MsgType::status) == 0);
  const std::string text(c.reply.body.begin(), c.reply.body.end());
  INFO(text);
  CHECK(text.find("\"roce0\"") != std::string::npos);
  CHECK(text.find("\"pid\":" + std::to_string(::getpid())) != std::string::npos);
  CHECK(text.find("\"RTS\"") != std::string::npos);
  CHECK(text.find("\"sent_pkts\":4711") != std::string::npos);
  CHECK(text.find("\"state 99\"") != std::string::npos);
  CHECK(text.find("4294967295") == std::string::npos);
}

TEST_CASE("A status that is longer than a message comes as a file", "[control][status]") {
  HostFixture host;
  VfClient a(host.socket_path());
  dp::Mapping page;
  REQUIRE(page.map(a.reply.fds[2], sizeof(dp::StatusPage)) == 0);
  for (std::uint32_t i = 0; i < 1000; ++i)
    page.as<dp::StatusPage>()->qp[i].qpn = (a.attached.first_block << dp::kQpnBlockShift) + i;
  Client c(host.socket_path());
  REQUIRE(c.call(MsgType::status) == 0);
  CHECK(c.reply.body.empty());
  REQUIRE(c.reply.num_fds == 1);
  char first = 0;
  CHECK(::pread(c.reply.fds[0], &first, 1, 0) == 1);
  CHECK(first == '{');
}
