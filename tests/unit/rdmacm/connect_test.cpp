// Connections between programs of one NIC.
#include "tests/unit/rdmacm/world.h"

namespace softrnic::rdmacm {
namespace {

std::string text(const rdma_ucm_conn_param& p, std::size_t n) {
  return std::string(reinterpret_cast<const char*>(p.private_data), n);
}

TEST_CASE("a connection is set up with the kernel's events in the kernel's order", "[rdmacm]") {
  World world;
  Program server(world, 1), client(world, 2);
  const std::uint32_t listener = server.create(RDMA_PS_TCP, 50);
  REQUIRE(server.bind(listener, "0.0.0.0", 7000) == 0);
  REQUIRE(server.listen(listener) == 0);
  const std::uint32_t active = client.routed("10.0.0.7", 7000);
  REQUIRE(client.connect(active, "hello") == 0);

  const rdma_ucm_event_resp request = server.expect(kConnectRequest);
  CHECK(request.uid == 50);  // the listener's
  CHECK(request.id != listener);
  CHECK(request.param.conn.private_data_len == 56);  // what is left behind the addresses
  CHECK(text(request.param.conn, 5) == "hello");
  CHECK(request.param.conn.qp_num == 0x5001);
  CHECK(request.param.conn.responder_resources == 3);  // the peer's initiator depth
  CHECK(request.param.conn.initiator_depth == 4);
  CHECK(request.param.conn.retry_count == 7);
  CHECK(request.param.conn.rnr_retry_count == 6);

  REQUIRE(server.accept(request.id, 51, "welcome") == 0);
  const rdma_ucm_event_resp response = client.expect(kConnectResponse);
  CHECK(response.uid == 77);
  CHECK(response.id == active);
  CHECK(response.param.conn.private_data_len == 196);
  CHECK(text(response.param.conn, 7) == "welcome");
  CHECK(response.param.conn.qp_num == 0x6001);
  CHECK(server.silent());
  REQUIRE(client.confirm(active) == 0);
  const rdma_ucm_event_resp established = server.expect(kEstablished);
  CHECK(established.uid == 51);
  CHECK(established.id == request.id);
  CHECK(client.silent());

  REQUIRE(client.disconnect(active) == 0);
  server.expect(kDisconnected);
  CHECK(client.silent());  // as long as the peer has not agreed
  REQUIRE(server.disconnect(request.id) == 0);
  client.expect(kDisconnected);
  world.wait(60'000'000'000);
  client.expect(kTimewaitExit);
  server.expect(kTimewaitExit);
}

TEST_CASE("the attributes for the QPs of both sides fit together", "[rdmacm]") {
  World world;
  Connected c(world);
  ib_uverbs_qp_attr a{}, p{};
  REQUIRE(c.client.qp_attr(c.active, 2, &a) == 0);
  REQUIRE(c.server.qp_attr(c.passive, 2, &p) == 0);
  CHECK(a.dest_qp_num == 0x6001);
  CHECK(p.dest_qp_num == 0x5001);
  CHECK(a.path_mtu == 5);
  CHECK(p.path_mtu == 5);
  CHECK(a.ah_attr.is_global == 1);
  CHECK(a.ah_attr.grh.dgid[15] == 7);
  CHECK(a.ah_attr.grh.sgid_index == 3);  // RoCE v2 over IPv4
  CHECK(p.ah_attr.grh.sgid_index == 3);
  const std::uint32_t client_rq = a.rq_psn, server_rq = p.rq_psn;
  REQUIRE(c.client.qp_attr(c.active, 3, &a) == 0);
  REQUIRE(c.server.qp_attr(c.passive, 3, &p) == 0);
  CHECK(a.sq_psn == server_rq);
  CHECK(p.sq_psn == client_rq);
  CHECK(a.retry_cnt == 7);
  CHECK(a.rnr_retry == 6);
  CHECK(c.client.qp_attr(c.active, 6, &a) == EINVAL);
}

TEST_CASE("before it is connected an ID knows how to bring its QP to INIT", "[rdmacm]") {
  World world;
  Program client(world);
  const std::uint32_t id = client.routed("10.0.0.7", 7000);
  ib_uverbs_qp_attr a{};
  REQUIRE(client.qp_attr(id, 1, &a) == 0);
  CHECK(a.qp_attr_mask == (1u << 0 | 1u << 3 | 1u << 4 | 1u << 5));  // state, access flags, pkey index, port
  CHECK(a.port_num == 1);
  const std::uint32_t datagram = client.routed("10.0.0.7", 7000, RDMA_PS_UDP);
  REQUIRE(client.qp_attr(datagram, 1, &a) == 0);
  CHECK(a.qp_attr_mask == (1u << 0 | 1u << 4 | 1u << 5 | 1u << 6));  // the Q_Key instead of access flags
  CHECK(a.qkey == 0x01234567);
  CHECK(client.qp_attr(client.create(), 1, &a) == EINVAL);  // it has no device
}

TEST_CASE("where nobody listens the request is refused with the kernel's status", "[rdmacm]") {
  World world;
  Program server(world, 1), client(world, 2);
  SECTION("no listener of the port: invalid service ID") {
    const std::uint32_t id = client.routed("10.0.0.7", 7001);
    REQUIRE(client.connect(id) == 0);
    client.expect(kRejected, 8);
  }
  SECTION("a listener at another address: consumer defined") {
    const std::uint32_t listener = server.create();
    REQUIRE(server.bind(listener, "127.0.0.1", 7001) == 0);
    REQUIRE(server.listen(listener) == 0);
    const std::uint32_t id = client.routed("10.0.0.7", 7001);
    REQUIRE(client.connect(id) == 0);
    client.expect(kRejected, 28);
    CHECK(server.silent());
  }
  SECTION("a listener that is gone") {
    const std::uint32_t listener = server.create();
    REQUIRE(server.bind(listener, "0.0.0.0", 7001) == 0);
    REQUIRE(server.listen(listener) == 0);
    REQUIRE(server.destroy(listener) == 0);
    const std::uint32_t id = client.routed("10.0.0.7", 7001);
    REQUIRE(client.connect(id) == 0);
    client.expect(kRejected, 8);
  }
  SECTION("another port space") {
    const std::uint32_t listener = server.create(RDMA_PS_UDP);
    REQUIRE(server.bind(listener, "0.0.0.0", 7001) == 0);
    REQUIRE(server.listen(listener) == 0);
    const std::uint32_t id = client.routed("10.0.0.7", 7001);
    REQUIRE(client.connect(id) == 0);
    client.expect(kRejected, 8);
  }
}

TEST_CASE("a request is refused with private data", "[rdmacm]") {
  World world;
  Program server(world, 1), client(world, 2);
  const std::uint32_t listener = server.create();
  REQUIRE(server.bind(listener, "0.0.0.0", 7000) == 0);
  REQUIRE(server.listen(listener) == 0);
  const std::uint32_t active = client.routed("127.0.0.1", 7000);
  REQUIRE(client.connect(active) == 0);
  const std::uint32_t passive = server.expect(kConnectRequest).id;
  REQUIRE(server.reject(passive, "not today") == 0);
  const rdma_ucm_event_resp e = client.expect(kRejected, 28);
  CHECK(e.param.conn.private_data_len == 148);
  CHECK(text(e.param.conn, 9) == "not today");
  CHECK(server.accept(passive) == EINVAL);
  CHECK(server.destroy(passive) == 0);
}

TEST_CASE("private data that do not fit are refused at once", "[rdmacm]") {
  World world;
  Program client(world);
  const std::uint32_t id = client.routed("127.0.0.1", 7000);
  CHECK(client.connect(id, std::string(57, 'x')) == EINVAL);
  CHECK(client.connect(id, std::string(56, 'x')) == 0);
  client.expect(kRejected, 8);
  const std::uint32_t datagram = client.routed("127.0.0.1", 7000, RDMA_PS_UDP);
  CHECK(client.connect(datagram, std::string(181, 'x')) == EINVAL);
  CHECK(client.connect(datagram, std::string(180, 'x')) == 0);
}

TEST_CASE("more requests than the backlog wait at their peers", "[rdmacm]") {
  World world;
  Program server(world, 1), client(world, 2);
  const std::uint32_t listener = server.create();
  REQUIRE(server.bind(listener, "0.0.0.0", 7000) == 0);
  REQUIRE(server.listen(listener, 1) == 0);
  const std::uint32_t first = client.routed("127.0.0.1", 7000), second = client.routed("127.0.0.1", 7000);
  REQUIRE(client.connect(first) == 0);
  REQUIRE(client.connect(second) == 0);
  server.expect(kConnectRequest);
  CHECK(server.silent());
  CHECK(client.silent());
  world.wait(30'000'000'000);  // asks again
  server.expect(kConnectRequest);
  CHECK(client.silent());
}

TEST_CASE("a peer that does not answer is unreachable after the kernel's time", "[rdmacm]") {
  World world;
  Program client(world);
  const std::uint32_t id = client.routed("10.0.0.7", 7000);
  world.lossy = true;
  REQUIRE(client.connect(id) == 0);
  world.wait(30'000'000'000);
  CHECK(client.silent());
  world.wait(200'000'000'000);
  client.expect(kUnreachable, -ETIMEDOUT);
  CHECK(world.sent >= 16);  // once, and again fifteen times
}

TEST_CASE("the end of a program disconnects its peers at once", "[rdmacm]") {
  World world;
  Connected c(world);
  world.service.forget(2);
  world.run();
  const rdma_ucm_event_resp e = c.server.expect(kDisconnected);
  CHECK(e.id == c.passive);
  CHECK(world.service.channels() == 1);
}

TEST_CASE("the end of a listener refuses the requests that wait there", "[rdmacm]") {
  World world;
  Program server(world, 1), client(world, 2);
  const std::uint32_t listener = server.create();
  REQUIRE(server.bind(listener, "0.0.0.0", 7000) == 0);
  REQUIRE(server.listen(listener) == 0);
  const std::uint32_t active = client.routed("127.0.0.1", 7000);
  REQUIRE(client.connect(active) == 0);
  REQUIRE(server.destroy(listener) == 0);
  CHECK(server.silent());  // the event went, and its count
  rdma_ucm_event_resp e{};
  REQUIRE(client.event(&e) == 0);
  CHECK(e.event == kRejected);
  CHECK(world.service.ids() == 1);
}

TEST_CASE("datagram QPs are found by service ID resolution", "[rdmacm]") {
  World world;
  Program server(world, 1), client(world, 2);
  const std::uint32_t listener = server.create(RDMA_PS_UDP, 50);
  REQUIRE(server.bind(listener, "0.0.0.0", 7000) == 0);
  REQUIRE(server.listen(listener) == 0);
  const std::uint32_t active = client.routed("10.0.0.7", 7000, RDMA_PS_UDP);
  REQUIRE(client.connect(active, "who?") == 0);
  const rdma_ucm_event_resp request = server.expect(kConnectRequest);
  CHECK(request.param.ud.private_data_len == 180);
  CHECK(std::memcmp(request.param.ud.private_data, "who?", 4) == 0);
  SECTION("accepted") {
    REQUIRE(server.accept(request.id, 51, "me") == 0);
    const rdma_ucm_event_resp e = client.expect(kEstablished);
    CHECK(e.param.ud.qp_num == 0x6001);
    CHECK(e.param.ud.qkey == 0x01234567);
    CHECK(e.param.ud.private_data_len == 136);
    CHECK(e.param.ud.ah_attr.is_global == 1);
    CHECK(e.param.ud.ah_attr.port_num == 1);
    CHECK(e.param.ud.ah_attr.grh.dgid[15] == 7);
    CHECK(e.param.ud.ah_attr.grh.sgid_index == 3);
  }
  SECTION("rejected") {
    REQUIRE(server.reject(request.id) == 0);
    client.expect(kUnreachable, 2);
  }
}

TEST_CASE("commands that come too early or too late are EINVAL", "[rdmacm]") {
  World world;
  Connected c(world);
  const std::uint32_t id = c.client.create();
  CHECK(c.client.resolve_route(id) == EINVAL);
  CHECK(c.client.connect(id) == EINVAL);
  CHECK(c.client.accept(id) == EINVAL);
  CHECK(c.client.reject(id) == EINVAL);
  CHECK(c.client.disconnect(id) == EINVAL);
  CHECK(c.client.connect(c.active) == EINVAL);
  CHECK(c.client.resolve(c.active, "10.0.0.7", 1) == EINVAL);
  CHECK(c.server.listen(c.passive) == EINVAL);
  CHECK(c.server.bind(c.listener, "0.0.0.0", 7005) == EINVAL);
  CHECK(c.server.call(RDMA_USER_CM_CMD_NOTIFY, rdma_ucm_notify{c.passive, 4}) == EISCONN);
  CHECK(c.server.call(RDMA_USER_CM_CMD_NOTIFY, rdma_ucm_notify{c.passive, 5}) == EINVAL);
}

TEST_CASE("many connections leave nothing behind", "[rdmacm]") {
  World world;
  Program server(world, 1), client(world, 2);
  const std::uint32_t listener = server.create();
  REQUIRE(server.bind(listener, "0.0.0.0", 7000) == 0);
  REQUIRE(server.listen(listener) == 0);
  for (int i = 0; i < 500; ++i) {
    const std::uint32_t active = client.routed("127.0.0.1", 7000);
    REQUIRE(client.connect(active) == 0);
    const std::uint32_t passive = server.expect(kConnectRequest).id;
    REQUIRE(server.accept(passive) == 0);
    client.expect(kConnectResponse);
    REQUIRE(client.confirm(active) == 0);
    server.expect(kEstablished);
    REQUIRE(client.disconnect(active) == 0);
    server.expect(kDisconnected);
    REQUIRE(server.disconnect(passive) == 0);
    client.expect(kDisconnected);
    REQUIRE(client.destroy(active) == 0);
    REQUIRE(server.destroy(passive) == 0);
  }
  CHECK(world.service.ids() == 1);
  world.wait(300'000'000'000);
  CHECK(world.service.connections() == 0);
  CHECK(server.silent());
  CHECK(client.silent());
}

}  // namespace
}  // namespace softrnic::rdmacm
