// Clients of the control server, for the tests of its requests.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>

#include "tests/support/host_fixture.h"

namespace softrnic::test {

using control::Connection;
using control::Message;
using control::MsgType;

template <class T>
T body_as(const Message& m) {
  T out{};
  REQUIRE(m.body.size() == sizeof(T));
  std::memcpy(&out, m.body.data(), sizeof(T));
  return out;
}

// A connection that has said hello.
struct Client {
  explicit Client(const std::string& path) {
    REQUIRE(connection.connect(path) == 0);
    REQUIRE(control::hello(connection, &info) == 0);
  }
  ~Client() {
    for (Message& m : notices) m.close_fds();
    reply.close_fds();
  }

  int call(MsgType type) { return call_bytes(type, nullptr, 0); }
  template <class T>
  int call(MsgType type, const T& body) {
    return call_bytes(type, &body, sizeof(body));
  }
  int call_bytes(MsgType type, const void* body, std::uint32_t length) {
    reply.close_fds();
    return connection.call(type, body, length, &reply, &notices);
  }
  // The next notice, waiting for it.
  Message next_notice() {
    if (notices.empty()) {
      Message m;
      REQUIRE(connection.receive(&m) == 0);
      return m;
    }
    Message m = notices.front();
    notices.erase(notices.begin());
    return m;
  }
  bool is_closed() {
    Message m;
    int error = 0;
    while ((error = connection.receive(&m)) == 0) m.close_fds();
    return error == EPIPE;
  }

  Connection connection;
  control::HelloInfo info;
  Message reply;
  std::vector<Message> notices;
};

// A client with a VF.
struct VfClient : Client {
  explicit VfClient(const std::string& path) : Client(path) {
    REQUIRE(call(MsgType::attach, control::AttachRequest{}) == 0);
    attached = body_as<control::AttachReply>(reply);
    REQUIRE(reply.num_fds == 7);
  }
  std::uint16_t id() const { return attached.vf_id; }
  control::PeerReply connect_to(std::uint32_t block) {
    control::ConnectPeerRequest request{};
    request.block = block;
    REQUIRE(call(MsgType::connect_peer, request) == 0);
    return body_as<control::PeerReply>(reply);
  }
  // The next notice, which must be one of a change of route; and the answer that the change is done.
  control::RouteNotice next_route() {
    const Message m = next_notice();
    REQUIRE(m.header.type == static_cast<std::uint16_t>(MsgType::route));
    return body_as<control::RouteNotice>(m);
  }
  void follow(const control::RouteNotice& n) {
    control::RouteDone done{};
    done.epoch = n.epoch;
    REQUIRE(connection.send(MsgType::route_done, 0, &done, sizeof(done)) == 0);
  }

  control::AttachReply attached;
};

}  // namespace softrnic::test
