// Reading the structs of commands and writing those of responses.
#pragma once

#include <rdma/rdma_user_cm.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/cm/address.h"
#include "protocols/cm/types.h"
#include "protocols/common/types.h"

namespace softrnic::rdmacm {

// What happened to an ID: enum rdma_cm_event_type of librdmacm, whose header does not go together with the kernel's.
enum EventType : std::uint32_t {
  kAddrResolved,
  kAddrError,
  kRouteResolved,
  kRouteError,
  kConnectRequest,
  kConnectResponse,
  kConnectError,
  kUnreachable,
  kRejected,
  kEstablished,
  kDisconnected,
  kDeviceRemoval,
  kMulticastJoin,
  kMulticastError,
  kAddrChange,
  kTimewaitExit,
};

// A command's struct. What an older program does not give is zero.
template <class T>
T read_command(Bytes in) {
  T command{};
  std::memcpy(static_cast<void*>(&command), in.data(), std::min(in.size(), sizeof(T)));
  return command;
}

template <class T>
void respond(const T& response, std::vector<std::uint8_t>* out, std::size_t size = sizeof(T)) {
  const auto* p = reinterpret_cast<const std::uint8_t*>(&response);
  out->assign(p, p + std::min(size, sizeof(T)));
}

template <class T>
Bytes bytes_of(const T& object) {
  return {reinterpret_cast<const std::uint8_t*>(&object), sizeof(T)};
}

// What a QP or an address handle sends with on a path. (queries.cpp)
ib_uverbs_ah_attr address_vector(const cm::Path& path, std::uint32_t sgid_index);

// What the kernel's calls of the CM give instead. (connections.cpp)
int error_of(cm::Result result);

inline Bytes private_data_of(const rdma_ucm_conn_param& p) { return {p.private_data, p.private_data_len}; }

}  // namespace softrnic::rdmacm
