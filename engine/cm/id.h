// An rdma_cm_id: an end of a connection, a listener, or a user of multicast groups.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cm/address.h"
#include "engine/cm/channel.h"
#include "protocols/cm/types.h"

namespace softrnic::rdmacm {

// States of rdma_cm (enum rdma_cm_state of the kernel). Resolutions that nobody has to wait for go right to their end.
enum class IdState : std::uint8_t {
  idle,
  addr_bound,
  addr_query,
  addr_resolved,
  route_resolved,
  connect,  // connecting, connected
  disconnect,
  listen,
};

// A multicast group that an ID joined.
struct Membership {
  std::uint32_t handle = 0;
  std::uint64_t uid = 0;
  std::uint32_t events_reported = 0;
  Address address;
  Gid mgid{};
  Id* id = nullptr;
};

// Where packets of an ID go, once its addresses are resolved.
struct Route {
  std::uint32_t device = 0;
  std::uint32_t sgid_index = 0;
  Gid sgid{};
  Gid dgid{};
  std::uint8_t hop_limit = 64;
};

inline constexpr int kNoDevice = -1;

struct Id {
  std::uint32_t handle = 0;
  Channel* channel = nullptr;
  std::uint64_t uid = 0;  // the program's; 0: a connection that was not accepted yet
  std::uint16_t port_space = 0;
  std::uint8_t qp_type = 0;  // enum ibv_qp_type
  IdState state = IdState::idle;
  std::uint32_t events_reported = 0;

  Address src, dst;
  int device = kNoDevice;
  bool has_port = false;          // is in the table of ports
  bool may_use_any_port = false;  // privileged: also those below 1024
  bool reuse_address = false;
  bool family_only = false, family_only_set = false;
  std::uint8_t tos = 0;
  bool ack_timeout_set = false;
  std::uint8_t ack_timeout = 0;

  Route route;
  bool has_path = false;         // the path record is there
  std::uint8_t path_mtu = 0;     // code
  std::uint32_t flow_label = 0;  // as the peer's REQ or IB_PATH gives it
  std::uint8_t sl = 0;

  cm::CommId comm = cm::kNoId;  // at the device's agent
  std::uint32_t seq_num = 0;    // first PSN to receive
  std::uint32_t qpn = 0;
  bool srq = false;
  std::uint32_t qkey = 0;
  cm::Ece ece;

  std::uint32_t backlog = 0;              // listener: connection requests that may still wait
  std::vector<std::uint32_t> listens_on;  // listener: devices
  std::vector<std::unique_ptr<Membership>> groups;
};

}  // namespace softrnic::rdmacm
