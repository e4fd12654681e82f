// Each command of the device on its own.
#include <poll.h>

#include <set>

#include "tests/unit/rdmacm/world.h"

namespace softrnic::rdmacm {
namespace {

TEST_CASE("unknown commands, IDs and port spaces get the kernel's errors", "[rdmacm]") {
  World world;
  Program p(world, 1), other(world, 2);
  CHECK(p.call(23, rdma_ucm_listen{}) == EINVAL);
  CHECK(p.call(RDMA_USER_CM_CMD_GET_OPTION, rdma_ucm_listen{}) == ENOSYS);
  CHECK(p.destroy(5) == ENOENT);
  const std::uint32_t id = p.create();
  CHECK(other.destroy(id) == EINVAL);  // another channel's
  rdma_ucm_create_id in{};
  in.ps = 7;
  CHECK(p.call(RDMA_USER_CM_CMD_CREATE_ID, in) == EINVAL);
  in.ps = RDMA_PS_TCP;
  CHECK(p.call(RDMA_USER_CM_CMD_CREATE_ID, in, nullptr, 3) == ENOSPC);
  CHECK(p.call(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}) == EAGAIN);
  CHECK(p.call(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}, nullptr, 100) == ENOSPC);
  rdma_ucm_connect connect{};
  connect.id = id;
  CHECK(p.call(RDMA_USER_CM_CMD_CONNECT, connect) == EINVAL);  // parameters are not valid
}

TEST_CASE("handles are small and used again", "[rdmacm]") {
  World world;
  Program p(world);
  CHECK(p.create() == 0);
  CHECK(p.create() == 1);
  CHECK(p.create() == 2);
  CHECK(p.destroy(1) == 0);
  CHECK(p.create() == 1);
  CHECK(p.create() == 3);
}

TEST_CASE("bind takes addresses of this host and no others", "[rdmacm]") {
  World world;
  Program p(world);
  CHECK(p.bind(p.create(), "10.0.0.7", 7000) == 0);
  CHECK(p.bind(p.create(), "10.0.0.9", 7000) == EADDRNOTAVAIL);
  CHECK(p.bind(p.create(), "2001:db8::7", 7000) == 0);
  CHECK(p.bind(p.create(), "::1", 7000) == 0);
  CHECK(p.bind(p.create(), "fe80::1", 7000) == EINVAL);  // of which interface?
  rdma_ucm_bind in{};
  in.id = p.create();
  in.addr_size = 16;
  CHECK(p.call(RDMA_USER_CM_CMD_BIND, in) == EINVAL);  // no family
  in.addr_size = Program::fill("10.0.0.7", 7000, &in.addr) - 1;
  CHECK(p.call(RDMA_USER_CM_CMD_BIND, in) == EINVAL);
}

TEST_CASE("ports belong to one ID at a time", "[rdmacm]") {
  World world;
  Program p(world);
  const std::uint32_t first = p.create();
  REQUIRE(p.bind(first, "10.0.0.7", 7000) == 0);
  CHECK(p.bind(p.create(), "10.0.0.7", 7000) == EADDRINUSE);
  CHECK(p.bind(p.create(), "0.0.0.0", 7000) == EADDRNOTAVAIL);
  CHECK(p.bind(p.create(), "127.0.0.1", 7000) == 0);
  CHECK(p.bind(p.create(RDMA_PS_UDP), "10.0.0.7", 7000) == 0);
  CHECK(p.bind(p.create(), "10.0.0.7", 80) == EACCES);
  REQUIRE(p.destroy(first) == 0);
  CHECK(p.bind(p.create(), "10.0.0.7", 7000) == 0);
}

TEST_CASE("ports are shared by those who agree to it, until one listens", "[rdmacm]") {
  World world;
  Program p(world);
  const int yes = 1;
  std::uint32_t ids[2];
  for (std::uint32_t& id : ids) {
    id = p.create();
    REQUIRE(p.set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, bytes_of(yes)) == 0);
    REQUIRE(p.bind(id, "10.0.0.7", 7000) == 0);
  }
  CHECK(p.listen(ids[0]) == EADDRINUSE);
  REQUIRE(p.destroy(ids[1]) == 0);
  CHECK(p.listen(ids[0]) == 0);
}

TEST_CASE("without a port, an ID gets one that is free", "[rdmacm]") {
  World world;
  Program p(world);
  std::set<std::uint16_t> ports;
  for (int i = 0; i < 50; ++i) {
    const std::uint32_t id = p.create();
    REQUIRE(p.bind(id, "0.0.0.0", 0) == 0);
    std::vector<std::uint8_t> out;
    REQUIRE(p.query(id, RDMA_USER_CM_QUERY_ADDR, &out) == 0);
    const auto r = Program::response<rdma_ucm_query_addr_resp>(out);
    sockaddr_in a{};
    std::memcpy(&a, &r.src_addr, sizeof(a));
    ports.insert(ntohs(a.sin_port));
  }
  CHECK(ports.size() == 50);
  CHECK(*ports.begin() >= 1024);
}

TEST_CASE("addresses of this host resolve, loopback among them", "[rdmacm]") {
  World world;
  Program p(world);
  for (const char* ip : {"10.0.0.7", "127.0.0.1", "0.0.0.0", "::1", "2001:db8::7", "::"}) {
    INFO(ip);
    const std::uint32_t id = p.routed(ip, 7000);
    std::vector<std::uint8_t> out;
    REQUIRE(p.query(id, RDMA_USER_CM_QUERY_ADDR, &out) == 0);
    const auto r = Program::response<rdma_ucm_query_addr_resp>(out);
    CHECK(r.node_guid == world.config.devices[0].node_guid);
    CHECK(r.port_num == 1);
    CHECK(r.ibdev_index == 0);
    CHECK(r.pkey == 0xFFFF);
    CHECK(r.src_size == r.dst_size);
  }
}

TEST_CASE("where there is no network, other addresses are unreachable", "[rdmacm]") {
  World world;
  Program p(world);
  const std::uint32_t id = p.create();
  CHECK(p.resolve(id, "192.0.2.1", 7000) == ENETUNREACH);
  CHECK(p.silent());
  CHECK(p.resolve(id, "10.0.0.7", 7000) == 0);  // it may try again
  CHECK(p.resolve(p.create(), "2001:db8::7", 1, "10.0.0.7") == EINVAL);
}

TEST_CASE("on a network, the ports know the way", "[rdmacm]") {
  World world;
  world.on_network = true;
  Program p(world);
  const std::uint32_t id = p.create();
  REQUIRE(p.resolve(id, "192.0.2.1", 7000) == 0);
  CHECK(p.silent());
  CHECK(p.resolve_route(id) == EINVAL);
  SECTION("a route") {
    Gid source{};
    source.raw[10] = source.raw[11] = 0xFF;
    source.raw[12] = 10;
    source.raw[15] = 7;
    world.route_answer({0, source, 64});
    p.expect(kAddrResolved);
    CHECK(p.resolve_route(id) == 0);
    p.expect(kRouteResolved);
  }
  SECTION("none") {
    world.route_answer({EHOSTUNREACH, {}, 0});
    p.expect(kAddrError, -EHOSTUNREACH);
  }
  SECTION("the ID is gone meanwhile") {
    REQUIRE(p.destroy(id) == 0);
    world.route_answer({EHOSTUNREACH, {}, 0});
    CHECK(p.silent());
  }
}

TEST_CASE("the old commands with IPv6-sized addresses work", "[rdmacm]") {
  World world;
  Program p(world);
  rdma_ucm_bind_ip bind{};
  bind.id = p.create();
  Program::fill("10.0.0.7", 7000, &bind.addr);
  CHECK(p.call(RDMA_USER_CM_CMD_BIND_IP, bind) == 0);
  rdma_ucm_resolve_ip resolve{};
  resolve.id = p.create();
  Program::fill("10.0.0.7", 7000, &resolve.dst_addr);
  CHECK(p.call(RDMA_USER_CM_CMD_RESOLVE_IP, resolve) == 0);
  p.expect(kAddrResolved);
  std::vector<std::uint8_t> out;
  rdma_ucm_query query{};
  query.id = resolve.id;
  REQUIRE(p.resolve_route(resolve.id) == 0);
  REQUIRE(p.call(RDMA_USER_CM_CMD_QUERY_ROUTE, query, &out) == 0);
  const auto r = Program::response<rdma_ucm_query_route_resp>(out);
  CHECK(r.num_paths == 1);
  CHECK(r.ib_route[0].dgid[15] == 7);
  CHECK(r.ib_route[0].mtu == 5);
  CHECK(r.ib_route[0].pkey == 0xFFFF);
  CHECK(r.ib_route[0].packet_life_time == 16);
}

TEST_CASE("a path record is packed as on the wire, and can be given back", "[rdmacm]") {
  World world;
  Program p(world);
  const std::uint32_t id = p.routed("10.0.0.7", 7000);
  std::vector<std::uint8_t> out;
  REQUIRE(p.query(id, RDMA_USER_CM_QUERY_PATH, &out, 8 + 6 * 72) == 0);
  REQUIRE(out.size() == 8 + 72);
  ib_path_rec_data data{};
  std::memcpy(&data, out.data() + 8, sizeof(data));
  CHECK(out[0] == 1);
  CHECK(data.flags == (IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL));
  const auto* record = reinterpret_cast<const std::uint8_t*>(data.path_rec);
  CHECK(record[8 + 15] == 7);  // DGID
  CHECK(record[47] == 64);     // hop limit
  CHECK((record[50] << 8 | record[51]) == 0xFFFF);
  CHECK(record[54] == (2 << 6 | 5));  // MTU
  const std::uint32_t again = p.create();
  REQUIRE(p.resolve(again, "10.0.0.7", 7000) == 0);
  p.expect(kAddrResolved);
  CHECK(p.set_option(again, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, Bytes(out).subspan(8, 71)) == EINVAL);
  REQUIRE(p.set_option(again, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, Bytes(out).subspan(8)) == 0);
  p.expect(kRouteResolved);
  CHECK(p.connect(again) == 0);
}

TEST_CASE("an ID's GIDs and service IDs can be asked for", "[rdmacm]") {
  World world;
  Program p(world);
  const std::uint32_t id = p.routed("10.0.0.7", 7000);
  std::vector<std::uint8_t> out;
  REQUIRE(p.query(id, RDMA_USER_CM_QUERY_GID, &out) == 0);
  const auto r = Program::response<rdma_ucm_query_addr_resp>(out);
  const auto dst = Address::read(bytes_of(r.dst_addr));
  REQUIRE(dst);
  CHECK(r.dst_size == 48);
  CHECK(dst->family == kAfIb);
  CHECK(dst->ip.raw[15] == 7);
  CHECK(dst->sid == 0x0106'1B58);
  CHECK(p.query(id, 3, &out) == ENOSYS);
}

TEST_CASE("librdmacm's probe for AF_IB succeeds", "[rdmacm]") {
  World world;
  Program p(world);
  Address any;
  any.family = kAfIb;
  any.sid = 0x0106'0000;
  any.sid_mask = ~std::uint64_t{0xFFFF};
  rdma_ucm_bind in{};
  in.id = p.create(RDMA_PS_IB);
  in.addr_size = static_cast<std::uint16_t>(any.write(reinterpret_cast<std::uint8_t*>(&in.addr)));
  CHECK(p.call(RDMA_USER_CM_CMD_BIND, in) == 0);
  in.id = p.create(RDMA_PS_UDP);
  CHECK(p.call(RDMA_USER_CM_CMD_BIND, in) == EPROTONOSUPPORT);
}

TEST_CASE("options are checked", "[rdmacm]") {
  World world;
  Program p(world);
  const std::uint32_t id = p.create();
  const std::uint8_t byte = 16;
  const int number = 1;
  CHECK(p.set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, bytes_of(byte)) == 0);
  CHECK(p.set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, bytes_of(number)) == EINVAL);
  CHECK(p.set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, bytes_of(number)) == 0);
  CHECK(p.set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, bytes_of(byte)) == EINVAL);
  CHECK(p.set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, bytes_of(byte)) == 0);
  CHECK(p.set_option(id, RDMA_OPTION_ID, 4, bytes_of(byte)) == ENOSYS);
  CHECK(p.set_option(id, 2, 0, bytes_of(byte)) == ENOSYS);
  CHECK(p.set_option(p.create(RDMA_PS_UDP), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, bytes_of(byte)) == EINVAL);
}

TEST_CASE("IPv6 listeners take IPv4 requests unless they want only their own", "[rdmacm]") {
  for (const int only : {0, 1}) {
    World world;
    Program p(world);
    const std::uint32_t listener = p.create();
    REQUIRE(p.set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, bytes_of(only)) == 0);
    REQUIRE(p.bind(listener, "::", 7000) == 0);
    REQUIRE(p.listen(listener) == 0);
    const std::uint32_t active = p.routed("127.0.0.1", 7000);
    REQUIRE(p.connect(active) == 0);
    rdma_ucm_event_resp e{};
    REQUIRE(p.event(&e) == 0);
    CHECK(e.event == (only == 1 ? kRejected : kConnectRequest));
  }
}

TEST_CASE("the descriptor counts the events", "[rdmacm]") {
  World world;
  Program p(world);
  const auto readable = [&] {
    pollfd f{p.channel->fd(), POLLIN, 0};
    return ::poll(&f, 1, 0) == 1;
  };
  CHECK_FALSE(readable());
  const std::uint32_t id = p.create();
  REQUIRE(p.resolve(id, "10.0.0.7", 7000) == 0);
  CHECK(readable());
  std::uint32_t reported = 9;
  SECTION("taken") {
    p.expect(kAddrResolved);
    CHECK_FALSE(readable());
    REQUIRE(p.destroy(id, &reported) == 0);
    CHECK(reported == 1);
  }
  SECTION("gone with the ID") {
    REQUIRE(p.destroy(id, &reported) == 0);
    CHECK(reported == 0);
    CHECK_FALSE(readable());
  }
  SECTION("gone when the count was taken already") {
    REQUIRE(raw_eventfd_take_one_nonblocking(p.channel->fd()));
    REQUIRE(p.destroy(id) == 0);
    CHECK(p.call(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}) == EAGAIN);
    CHECK_FALSE(readable());
  }
}

TEST_CASE("an ID moves to another channel with its events", "[rdmacm]") {
  World world;
  Program from(world, 1), to(world, 1);
  const std::uint32_t id = from.create();
  REQUIRE(from.resolve(id, "10.0.0.7", 7000) == 0);
  from.expect(kAddrResolved);
  REQUIRE(from.resolve_route(id) == 0);
  rdma_ucm_migrate_id in{};
  in.id = id;
  CHECK(to.call(RDMA_USER_CM_CMD_MIGRATE_ID, in) == ENOENT);
  std::vector<std::uint8_t> out;
  REQUIRE(to.call(RDMA_USER_CM_CMD_MIGRATE_ID, in, &out, 1024, {}, from.channel) == 0);
  CHECK(Program::response<rdma_ucm_migrate_resp>(out).events_reported == 1);
  CHECK(from.silent());
  to.expect(kRouteResolved);
  CHECK(from.destroy(id) == EINVAL);
  CHECK(to.destroy(id) == 0);
}

TEST_CASE("groups are joined and left", "[rdmacm]") {
  World world;
  Program p(world);
  rdma_ucm_join_mcast in{};
  in.uid = 1234;
  in.id = p.create(RDMA_PS_UDP);
  in.addr_size = Program::fill("239.1.2.3", 0, &in.addr);
  CHECK(p.call(RDMA_USER_CM_CMD_JOIN_MCAST, in) == EINVAL);  // no address yet
  REQUIRE(p.bind(in.id, "10.0.0.7", 0) == 0);
  in.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
  CHECK(p.call(RDMA_USER_CM_CMD_JOIN_MCAST, in) == EINVAL);
  in.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER;
  std::vector<std::uint8_t> out;
  REQUIRE(p.call(RDMA_USER_CM_CMD_JOIN_MCAST, in, &out) == 0);
  const std::uint32_t membership = Program::response<rdma_ucm_create_id_resp>(out).id;
  const rdma_ucm_event_resp e = p.expect(kMulticastJoin);
  CHECK(e.uid == 1234);
  CHECK(e.id == membership);
  CHECK(e.param.ud.qp_num == 0xFFFFFF);
  CHECK(e.param.ud.qkey == 0x01234567);
  CHECK(e.param.ud.ah_attr.grh.dgid[10] == 0xFF);
  CHECK(e.param.ud.ah_attr.grh.dgid[12] == 239);
  rdma_ucm_destroy_id leave{};
  leave.id = membership;
  REQUIRE(p.call(RDMA_USER_CM_CMD_LEAVE_MCAST, leave, &out) == 0);
  CHECK(Program::response<rdma_ucm_destroy_id_resp>(out).events_reported == 1);
  CHECK(p.call(RDMA_USER_CM_CMD_LEAVE_MCAST, leave, &out) == ENOENT);
  in.addr_size = Program::fill("ff0e::1", 0, &in.addr);
  CHECK(p.call(RDMA_USER_CM_CMD_JOIN_MCAST, in) == 524);  // as the kernel on RoCE v2
}

TEST_CASE("a channel lives as long as somebody has it open", "[rdmacm]") {
  World world;
  Program p(world, 1);
  const std::uint64_t key = p.channel->key();
  p.create();
  REQUIRE(world.service.find(2, key) == p.channel);  // a child of fork()
  world.service.close(1, key);
  CHECK(world.service.ids() == 1);
  world.service.forget(2);
  CHECK(world.service.ids() == 0);
  CHECK(world.service.channels() == 0);
  CHECK(world.service.find(1, key) == nullptr);
}

}  // namespace
}  // namespace softrnic::rdmacm
