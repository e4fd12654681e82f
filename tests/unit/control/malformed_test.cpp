// Messages that break the protocol end their connection and disturb nobody else.
#include <fcntl.h>
#include <sys/socket.h>

#include <random>

#include "tests/unit/control/client_fixture.h"

using namespace softrnic;
using namespace softrnic::test;
using namespace softrnic::control;

namespace {

struct Raw {
  std::uint16_t type = 0;
  std::uint16_t reserved = 0;
  std::uint32_t seq = 1;
  std::int32_t status = 0;
  std::int64_t length = -1;  // -1: as long as the body
  std::vector<std::uint8_t> body = {};
  int fds = 0;
  bool greeted = true;
};

void send_raw(int socket, const void* bytes, std::size_t size, int fds) {
  iovec iov{const_cast<void*>(bytes), size};
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 32)]{};
  if (fds > 0) {
    msg.msg_control = control;
    msg.msg_controllen = CMSG_SPACE(sizeof(int) * static_cast<std::size_t>(fds));
    cmsghdr* c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * static_cast<std::size_t>(fds));
    for (int i = 0; i < fds; ++i) std::memcpy(CMSG_DATA(c) + i * static_cast<int>(sizeof(int)), &socket, sizeof(int));
  }
  ::sendmsg(socket, &msg, MSG_NOSIGNAL);
}

std::vector<std::uint8_t> packet(const Raw& raw) {
  MsgHeader h{};
  h.type = raw.type;
  h.reserved = raw.reserved;
  h.seq = raw.seq;
  h.status = raw.status;
  h.length = raw.length < 0 ? static_cast<std::uint32_t>(raw.body.size()) : static_cast<std::uint32_t>(raw.length);
  std::vector<std::uint8_t> bytes(sizeof(h) + raw.body.size());
  std::memcpy(bytes.data(), &h, sizeof(h));
  if (!raw.body.empty()) std::memcpy(bytes.data() + sizeof(h), raw.body.data(), raw.body.size());
  return bytes;
}

std::vector<std::uint8_t> u32(std::uint32_t v) {
  std::vector<std::uint8_t> b(4);
  std::memcpy(b.data(), &v, 4);
  return b;
}

template <class... T>
std::uint16_t type(MsgType t) {
  return static_cast<std::uint16_t>(t);
}

const std::vector<std::pair<const char*, Raw>>& table() {
  static const std::vector<std::pair<const char*, Raw>> rows = {
      {"unknown type", {.type = 999}},
      {"type 0", {.type = 0}},
      {"a notice of the server", {.type = type(MsgType::peer_gone), .body = {1, 0}}},
      {"reserved bits", {.type = type(MsgType::get_block), .reserved = 1}},
      {"a status in a request", {.type = type(MsgType::get_block), .status = 5}},
      {"a request with seq 0", {.type = type(MsgType::get_block), .seq = 0}},
      {"length too large", {.type = type(MsgType::get_block), .length = 100}},
      {"length too small", {.type = type(MsgType::get_block), .length = 0, .body = {1, 2, 3, 4}}},
      {"length all ones", {.type = type(MsgType::get_block), .length = 0xFFFFFFFF}},
      {"second hello", {.type = type(MsgType::hello), .body = std::vector<std::uint8_t>(sizeof(HelloRequest))}},
      {"request before hello", {.type = type(MsgType::attach), .body = u32(0), .greeted = false}},
      {"empty hello", {.type = type(MsgType::hello), .greeted = false}},
      {"short hello", {.type = type(MsgType::hello), .body = u32(kProtocolVersion), .greeted = false}},
      {"attach with unknown flags", {.type = type(MsgType::attach), .body = u32(1)}},
      {"attach without body", {.type = type(MsgType::attach)}},
      {"get_block without a VF", {.type = type(MsgType::get_block)}},
      {"return_block without a VF", {.type = type(MsgType::return_block), .body = u32(3)}},
      {"connect_peer without a VF", {.type = type(MsgType::connect_peer), .body = u32(3)}},
      {"mcast without a VF", {.type = type(MsgType::mcast), .body = std::vector<std::uint8_t>(sizeof(McastRequest))}},
      {"route_done without a VF", {.type = type(MsgType::route_done), .seq = 0, .body = u32(0)}},
      {"route_done with a seq", {.type = type(MsgType::route_done), .seq = 4, .body = u32(0)}},
      {"descriptors that nobody asked for", {.type = type(MsgType::attach), .body = u32(0), .fds = 1}},
      {"more descriptors than are allowed", {.type = type(MsgType::attach), .body = u32(0), .fds = 20}},
      {"capture without a descriptor",
       {.type = type(MsgType::capture), .body = std::vector<std::uint8_t>(sizeof(CaptureRequest))}},
      {"capture with unknown flags",
       {.type = type(MsgType::capture), .body = std::vector<std::uint8_t>(sizeof(CaptureRequest), 0xFF), .fds = 1}},
      {"status with a body", {.type = type(MsgType::status), .body = {1}}},
      {"hold with a body", {.type = type(MsgType::hold), .body = {1}}},
      {"shutdown with a body", {.type = type(MsgType::shutdown), .body = {1}}},
  };
  return rows;
}

}  // namespace

TEST_CASE("Malformed messages close the connection and disturb nobody else", "[control][malformed]") {
  HostFixture host;
  VfClient other(host.socket_path());
  for (const auto& [name, raw] : table()) {
    INFO(name);
    Connection c;
    REQUIRE(c.connect(host.socket_path()) == 0);
    HelloInfo info;
    if (raw.greeted) REQUIRE(hello(c, &info) == 0);
    const auto bytes = packet(raw);
    send_raw(c.fd(), bytes.data(), bytes.size(), raw.fds);
    Message m;
    CHECK(c.receive(&m) == EPIPE);
    CHECK(other.call(MsgType::get_block) == 0);
  }
}

TEST_CASE("Packets that hold no header, or too much, close the connection", "[control][malformed]") {
  HostFixture host;
  for (const std::size_t size : {std::size_t{1}, std::size_t{15}, std::size_t{70000}, std::size_t{150000}}) {
    INFO(size);
    Client c(host.socket_path());
    const std::vector<std::uint8_t> bytes(size, 0);
    send_raw(c.connection.fd(), bytes.data(), bytes.size(), 0);
    CHECK(c.is_closed());
  }
  Client ok(host.socket_path());
}

TEST_CASE("Blocks out of range close the connection", "[control][malformed]") {
  HostFixture host;
  for (const MsgType t : {MsgType::connect_peer, MsgType::return_block}) {
    VfClient c(host.socket_path());
    const auto bytes = packet({.type = type(t), .body = u32(dp::kQpnBlocks)});
    send_raw(c.connection.fd(), bytes.data(), bytes.size(), 0);
    CHECK(c.is_closed());
  }
}

TEST_CASE("route_done for an epoch that never was closes the connection", "[control][malformed]") {
  HostFixture host;
  VfClient c(host.socket_path());
  RouteDone done{};
  done.epoch = 12345;
  REQUIRE(c.connection.send(MsgType::route_done, 0, &done, sizeof(done)) == 0);
  CHECK(c.is_closed());
}

TEST_CASE("Random packets never disturb another client", "[control][malformed]") {
  HostFixture host;
  VfClient other(host.socket_path());
  std::mt19937 random(12345);
  auto below = [&](unsigned n) { return static_cast<unsigned>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    Connection c;
    REQUIRE(c.connect(host.socket_path()) == 0);
    HelloInfo info;
    if (below(4) != 0) REQUIRE(hello(c, &info) == 0);
    for (int i = 0; i < 4; ++i) {
      Raw raw;
      static constexpr std::uint16_t types[] = {1, 2, 3, 4, 5, 6, 20, 21, 23, 40, 41, 42, 43, 60, 61, 65535};
      raw.type = types[below(std::size(types))];
      raw.seq = below(8) == 0 ? 0 : static_cast<std::uint32_t>(i + 1);
      raw.body.resize(below(3) == 0 ? below(4000) : below(64));
      for (auto& b : raw.body) b = static_cast<std::uint8_t>(below(3) == 0 ? random() : 0);
      auto bytes = packet(raw);
      if (below(4) == 0) bytes[below(static_cast<unsigned>(bytes.size()))] ^= static_cast<std::uint8_t>(1u << below(8));
      send_raw(c.fd(), bytes.data(), bytes.size(), static_cast<int>(below(3)));
    }
  }
  CHECK(other.call(MsgType::get_block) == 0);
  Client fresh(host.socket_path());
}
