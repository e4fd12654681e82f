// A connection manager with a device of its own, in virtual time: what it sends arrives, unless the test says
// otherwise.
#pragma once

#include <arpa/inet.h>
#include <rdma/rdma_user_cm.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "engine/cm/abi.h"
#include "engine/cm/service.h"
#include "engine/control/server/host_devices.h"
#include "engine/nic/raw_io.h"

namespace softrnic::rdmacm {

inline constexpr std::uint8_t kQptRc = 2, kQptUd = 4;  // enum ibv_qp_type
inline constexpr std::uint64_t kHolder = 1;

class World final : public Host {
 public:
  World() : service(*this, 1) {
    control::HostView view;
    view.primary_netdev = "lo";
    view.identity = "test";
    view.addresses.push_back({{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 7}}, "lo", 1, false});
    view.addresses.push_back({{{0x20, 1, 0xD, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7}}, "lo", 1, false});
    view.addresses.push_back({{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}, "lo", 1, true});
    config = control::host_devices(view);
  }

  Nanos now() override { return time; }
  GidTable gids() override { return {config.devices, config.gids}; }
  void send(std::vector<std::uint8_t> frame) override {
    ++sent;
    if (!lossy) link.push_back(std::move(frame));
  }
  bool find_route(const Gid& destination, const Gid&, std::function<void(const FoundRoute&)> answer) override {
    if (!on_network) return false;
    route_asked = destination;
    route_answer = std::move(answer);
    return true;
  }

  // Delivers what is under way, and what follows from it.
  void run() {
    while (!link.empty()) {
      const std::vector<std::uint8_t> frame = std::move(link.front());
      link.pop_front();
      service.on_frame(frame);
    }
  }
  // Lets time pass, timers going off on the way.
  void wait(Nanos span) {
    const Nanos end = time + span;
    while (service.next_timeout() <= end) {
      time = std::max(time, service.next_timeout());
      service.on_timeout();
      run();
    }
    time = end;
  }

  control::DeviceConfig config;
  Nanos time = 1'000'000'000;
  std::deque<std::vector<std::uint8_t>> link;
  bool lossy = false, on_network = false;
  int sent = 0;
  Gid route_asked{};
  std::function<void(const FoundRoute&)> route_answer;
  Service service;
};

// A program with one event channel.
class Program {
 public:
  explicit Program(World& w, std::uint64_t holder = kHolder) : world(w), holder_(holder) {
    REQUIRE(world.service.open(holder, &channel) == 0);
  }

  template <class In>
  int call(std::uint32_t number, const In& in, std::vector<std::uint8_t>* out = nullptr, std::uint16_t room = 1024,
           Bytes option = {}, Channel* other = nullptr) {
    Command c;
    c.channel = channel;
    c.number = number;
    c.in = bytes_of(in);
    c.out_size = room;
    c.option = option;
    c.other = other;
    std::vector<std::uint8_t> discarded;
    const int error = world.service.command(c, out != nullptr ? out : &discarded);
    world.run();
    return error;
  }

  std::uint32_t create(std::uint16_t ps = RDMA_PS_TCP, std::uint64_t uid = 77) {
    rdma_ucm_create_id in{};
    in.uid = uid;
    in.ps = ps;
    in.qp_type = kQptRc;
    return create_as(in);
  }
  std::uint32_t create_as(const rdma_ucm_create_id& in) {
    std::vector<std::uint8_t> out;
    REQUIRE(call(RDMA_USER_CM_CMD_CREATE_ID, in, &out) == 0);
    return response<rdma_ucm_create_id_resp>(out).id;
  }
  int destroy(std::uint32_t id, std::uint32_t* events = nullptr) {
    rdma_ucm_destroy_id in{};
    in.id = id;
    std::vector<std::uint8_t> out;
    const int error = call(RDMA_USER_CM_CMD_DESTROY_ID, in, &out);
    if (error == 0 && events != nullptr) *events = response<rdma_ucm_destroy_id_resp>(out).events_reported;
    return error;
  }
  int bind(std::uint32_t id, const char* ip, std::uint16_t port) {
    rdma_ucm_bind in{};
    in.id = id;
    in.addr_size = fill(ip, port, &in.addr);
    return call(RDMA_USER_CM_CMD_BIND, in);
  }
  int listen(std::uint32_t id, std::uint32_t backlog = 0) {
    return call(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{id, backlog});
  }
  int resolve(std::uint32_t id, const char* to, std::uint16_t port, const char* from = nullptr) {
    rdma_ucm_resolve_addr in{};
    in.id = id;
    in.timeout_ms = 2000;
    in.dst_size = fill(to, port, &in.dst_addr);
    if (from != nullptr) in.src_size = fill(from, 0, &in.src_addr);
    return call(RDMA_USER_CM_CMD_RESOLVE_ADDR, in);
  }
  int resolve_route(std::uint32_t id) { return call(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{id, 2000}); }
  int connect(std::uint32_t id, const std::string& data = "", std::uint32_t qpn = 0x5001) {
    rdma_ucm_connect in{};
    in.id = id;
    in.conn_param = param(data, qpn);
    return call(RDMA_USER_CM_CMD_CONNECT, in);
  }
  int accept(std::uint32_t id, std::uint64_t uid = 99, const std::string& data = "", std::uint32_t qpn = 0x6001) {
    rdma_ucm_accept in{};
    in.id = id;
    in.uid = uid;
    in.conn_param = param(data, qpn);
    return call(RDMA_USER_CM_CMD_ACCEPT, in);
  }
  // What librdmacm does at a CONNECT_RESPONSE.
  int confirm(std::uint32_t id) {
    rdma_ucm_accept in{};
    in.id = id;
    return call(RDMA_USER_CM_CMD_ACCEPT, in);
  }
  int reject(std::uint32_t id, const std::string& data = "") {
    rdma_ucm_reject in{};
    in.id = id;
    in.private_data_len = static_cast<std::uint8_t>(data.size());
    std::memcpy(in.private_data, data.data(), data.size());
    return call(RDMA_USER_CM_CMD_REJECT, in);
  }
  int disconnect(std::uint32_t id) { return call(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{id}); }
  int qp_attr(std::uint32_t id, std::uint32_t state, ib_uverbs_qp_attr* attr) {
    rdma_ucm_init_qp_attr in{};
    in.id = id;
    in.qp_state = state;
    std::vector<std::uint8_t> out;
    const int error = call(RDMA_USER_CM_CMD_INIT_QP_ATTR, in, &out);
    if (error == 0) *attr = response<ib_uverbs_qp_attr>(out);
    return error;
  }
  int query(std::uint32_t id, std::uint32_t option, std::vector<std::uint8_t>* out, std::uint16_t room = 1024) {
    rdma_ucm_query in{};
    in.id = id;
    in.option = option;
    return call(RDMA_USER_CM_CMD_QUERY, in, out, room);
  }
  int set_option(std::uint32_t id, std::uint32_t level, std::uint32_t name, Bytes value) {
    rdma_ucm_set_option in{};
    in.id = id;
    in.level = level;
    in.optname = name;
    in.optlen = static_cast<std::uint32_t>(value.size());
    return call(RDMA_USER_CM_CMD_SET_OPTION, in, nullptr, 0, value);
  }

  // The next event, taking its count as librdmacm's read does. EAGAIN when there is none.
  int event(rdma_ucm_event_resp* e) {
    if (!raw_eventfd_take_one_nonblocking(channel->fd())) return EAGAIN;
    std::vector<std::uint8_t> out;
    const int error = call(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}, &out);
    if (error == 0) *e = response<rdma_ucm_event_resp>(out);
    return error;
  }
  rdma_ucm_event_resp expect(EventType type, int status = 0) {
    rdma_ucm_event_resp e{};
    REQUIRE(event(&e) == 0);
    CHECK(e.event == type);
    CHECK(static_cast<int>(e.status) == status);
    return e;
  }
  bool silent() { return !raw_eventfd_take_one_nonblocking(channel->fd()) && channel->size() == 0; }

  // An ID on the way to `ip`:`port`, with its address and route resolved.
  std::uint32_t routed(const char* ip, std::uint16_t port, std::uint16_t ps = RDMA_PS_TCP, std::uint64_t uid = 77) {
    const std::uint32_t id = create(ps, uid);
    REQUIRE(resolve(id, ip, port) == 0);
    expect(kAddrResolved);
    REQUIRE(resolve_route(id) == 0);
    expect(kRouteResolved);
    return id;
  }

  template <class T>
  static T response(const std::vector<std::uint8_t>& out) {
    REQUIRE(out.size() == sizeof(T));
    T t{};
    std::memcpy(static_cast<void*>(&t), out.data(), sizeof(T));
    return t;
  }
  static rdma_ucm_conn_param param(const std::string& data, std::uint32_t qpn) {
    rdma_ucm_conn_param p{};
    p.qp_num = qpn;
    p.private_data_len = static_cast<std::uint8_t>(data.size());
    std::memcpy(p.private_data, data.data(), data.size());
    p.responder_resources = 4;
    p.initiator_depth = 3;
    p.retry_count = 7;
    p.rnr_retry_count = 6;
    p.valid = 1;
    return p;
  }
  static std::uint16_t fill(const char* ip, std::uint16_t port, void* out) {
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    if (::inet_pton(AF_INET, ip, &v4.sin_addr) == 1) {
      v4.sin_family = AF_INET;
      v4.sin_port = htons(port);
      std::memcpy(out, &v4, sizeof(v4));
      return sizeof(v4);
    }
    REQUIRE(::inet_pton(AF_INET6, ip, &v6.sin6_addr) == 1);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(out, &v6, sizeof(v6));
    return sizeof(v6);
  }

  World& world;
  Channel* channel = nullptr;

 private:
  std::uint64_t holder_;
};

// A listener and a client that are connected.
struct Connected {
  explicit Connected(World& w) : server(w, 1), client(w, 2) {
    listener = server.create(RDMA_PS_TCP, 50);
    REQUIRE(server.bind(listener, "0.0.0.0", 7000) == 0);
    REQUIRE(server.listen(listener) == 0);
    active = client.routed("10.0.0.7", 7000);
    REQUIRE(client.connect(active, "hello") == 0);
    passive = server.expect(kConnectRequest).id;
    REQUIRE(server.accept(passive, 51, "welcome") == 0);
    client.expect(kConnectResponse);
    REQUIRE(client.confirm(active) == 0);
    server.expect(kEstablished);
  }
  Program server, client;
  std::uint32_t listener = 0, active = 0, passive = 0;
};

}  // namespace softrnic::rdmacm
