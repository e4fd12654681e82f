// The commands of the device, but for queries and multicast groups: what ucma.c does before it calls cma.c.
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>

#include "engine/cm/abi.h"
#include "engine/cm/service.h"

namespace softrnic::rdmacm {
namespace {

constexpr std::uint32_t kMaxBacklog = 1024;  // net.rdma_ucm.max_backlog

}  // namespace

// By number.
const Service::Handler Service::kHandlers[] = {
    &Service::create_id,     &Service::destroy_id,     &Service::bind_ip,    &Service::resolve_ip,
    &Service::resolve_route, &Service::query_route,    &Service::connect,    &Service::listen,
    &Service::accept,        &Service::reject,         &Service::disconnect, &Service::init_qp_attr,
    &Service::get_event,     nullptr /* GET_OPTION */, &Service::set_option, &Service::notify,
    &Service::join_ip_mcast, &Service::leave_mcast,    &Service::migrate_id, &Service::query,
    &Service::bind,          &Service::resolve_addr,   &Service::join_mcast};

int Service::create_id(const Command& c, Out* out) {
  if (c.out_size < sizeof(rdma_ucm_create_id_resp)) return ENOSPC;
  const auto command = read_command<rdma_ucm_create_id>(c.in);
  std::uint8_t qp_type = 0;
  switch (command.ps) {
    case RDMA_PS_TCP:
      qp_type = IBV_QPT_RC;
      break;
    case RDMA_PS_UDP:
    case RDMA_PS_IPOIB:
      qp_type = IBV_QPT_UD;
      break;
    case RDMA_PS_IB:
      qp_type = command.qp_type;
      break;
    default:
      return EINVAL;
  }
  Id* id = make_id(*c.channel, command.ps, qp_type);
  if (id == nullptr) return ENOMEM;
  id->uid = command.uid;
  id->may_use_any_port = c.privileged;
  c.channel->ids.insert(id);
  respond(rdma_ucm_create_id_resp{id->handle}, out);
  return 0;
}

int Service::destroy_id(const Command& c, Out* out) {
  if (c.out_size < sizeof(rdma_ucm_destroy_id_resp)) return ENOSPC;
  Id* id = nullptr;
  if (const int error = find_id(c, read_command<rdma_ucm_destroy_id>(c.in).id, &id)) return error;
  const rdma_ucm_destroy_id_resp response{id->events_reported};
  remove_id(*id);
  respond(response, out);
  return 0;
}

int Service::bind_ip(const Command& c, Out*) {
  const auto command = read_command<rdma_ucm_bind_ip>(c.in);
  const auto address = Address::read(bytes_of(command.addr));
  if (!address || address->family == kAfIb) return EINVAL;
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  return bind_address(*id, *address);
}

int Service::bind(const Command& c, Out*) {
  const auto command = read_command<rdma_ucm_bind>(c.in);
  const auto address = Address::read(bytes_of(command.addr));
  if (command.reserved != 0 || !address || command.addr_size != Address::size_of(address->family)) return EINVAL;
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  return bind_address(*id, *address);
}

int Service::resolve_ip(const Command& c, Out*) {
  const auto command = read_command<rdma_ucm_resolve_ip>(c.in);
  const auto source = Address::read(bytes_of(command.src_addr));
  const auto destination = Address::read(bytes_of(command.dst_addr));
  if (!destination || destination->family == kAfIb || (command.src_addr.sin6_family != 0 && !source)) return EINVAL;
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  return resolve_address(*id, source.value_or(Address{}), *destination);
}

int Service::resolve_addr(const Command& c, Out*) {
  const auto command = read_command<rdma_ucm_resolve_addr>(c.in);
  const auto source = Address::read(bytes_of(command.src_addr));
  const auto destination = Address::read(bytes_of(command.dst_addr));
  if (command.reserved != 0 || !destination || command.dst_size != Address::size_of(destination->family)) return EINVAL;
  if (command.src_size != 0 && (!source || command.src_size != Address::size_of(source->family))) return EINVAL;
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  return resolve_address(*id, command.src_size != 0 ? *source : Address{}, *destination);
}

int Service::resolve_route(const Command& c, Out*) {
  Id* id = nullptr;
  if (const int error = find_id(c, read_command<rdma_ucm_resolve_route>(c.in).id, &id)) return error;
  if (id->state != IdState::addr_resolved) return EINVAL;
  id->state = IdState::route_resolved;
  id->has_path = true;
  post(*id, kRouteResolved);
  return 0;
}

int Service::connect(const Command& c, Out*) {
  // Programs from before ECE have a shorter struct.
  if (c.in.size() < offsetof(rdma_ucm_connect, ece)) return EINVAL;
  const auto command = read_command<rdma_ucm_connect>(c.in);
  if (command.conn_param.valid == 0) return EINVAL;
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  return start_connection(*id, command.conn_param, command.ece);
}

int Service::listen(const Command& c, Out*) {
  const auto command = read_command<rdma_ucm_listen>(c.in);
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  const bool given = command.backlog > 0 && command.backlog < kMaxBacklog;
  return start_listening(*id, given ? command.backlog : kMaxBacklog);
}

int Service::accept(const Command& c, Out*) {
  if (c.in.size() < offsetof(rdma_ucm_accept, ece)) return EINVAL;
  const auto command = read_command<rdma_ucm_accept>(c.in);
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  if (id->state != IdState::connect || id->comm == cm::kNoId) return EINVAL;
  id->ece = {command.ece.vendor_id, command.ece.attr_mod};
  // From here on its events are reported.
  const std::uint64_t uid = id->uid;
  if (command.conn_param.valid != 0) id->uid = command.uid;
  const int error = answer_request(*id, command.conn_param);
  if (error != 0) {
    id->uid = uid;
    refuse(*id, cm::RejReason::consumer_defined, {});
  }
  return error;
}

int Service::reject(const Command& c, Out*) {
  auto command = read_command<rdma_ucm_reject>(c.in);
  // 0: a program from before reasons could be given.
  if (command.reason == 0) command.reason = static_cast<std::uint8_t>(cm::RejReason::consumer_defined);
  const auto reason = static_cast<cm::RejReason>(command.reason);
  if (reason != cm::RejReason::consumer_defined && reason != cm::RejReason::vendor_option_not_supported) return EINVAL;
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  return refuse(*id, reason, {command.private_data, command.private_data_len});
}

int Service::disconnect(const Command& c, Out*) {
  Id* id = nullptr;
  if (const int error = find_id(c, read_command<rdma_ucm_disconnect>(c.in).id, &id)) return error;
  if (id->comm == cm::kNoId) return EINVAL;
  // Either side's part of it; in a state where there is nothing to end, that is no error.
  cm::Agent& a = agent(*id);
  if (a.disconnect(host_.now(), id->comm) != cm::Result::ok) a.confirm_disconnect(host_.now(), id->comm);
  return 0;
}

int Service::get_event(const Command& c, Out* out) {
  constexpr std::size_t kOldest = offsetof(rdma_ucm_event_resp, reserved);
  if (c.out_size < kOldest) return ENOSPC;
  ChannelEvent event;
  if (!c.channel->take(&event)) return EAGAIN;
  if (event.connection != nullptr) {
    event.connection->channel = c.channel;
    c.channel->ids.insert(event.connection);
    event.response.id = event.connection->handle;
    event.id->backlog++;
  }
  event.id->events_reported++;
  if (event.membership != nullptr) event.membership->events_reported++;
  respond(event.response, out, c.out_size);
  return 0;
}

int Service::set_option(const Command& c, Out*) {
  const auto command = read_command<rdma_ucm_set_option>(c.in);
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  if (command.optlen != c.option.size()) return EINVAL;
  if (command.level == RDMA_OPTION_ID) return set_id_option(*id, command.optname, c.option);
  if (command.level == RDMA_OPTION_IB && command.optname == RDMA_OPTION_IB_PATH) return set_path(*id, c.option);
  return ENOSYS;
}

int Service::set_id_option(Id& id, std::uint32_t name, Bytes value) {
  const bool byte = name == RDMA_OPTION_ID_TOS || name == RDMA_OPTION_ID_ACK_TIMEOUT;
  if (name > RDMA_OPTION_ID_ACK_TIMEOUT) return ENOSYS;
  if (value.size() != (byte ? sizeof(std::uint8_t) : sizeof(int))) return EINVAL;
  int number = 0;
  std::memcpy(&number, value.data(), value.size());
  switch (name) {
    case RDMA_OPTION_ID_TOS:
      id.tos = static_cast<std::uint8_t>(number);
      return 0;
    case RDMA_OPTION_ID_REUSEADDR:
      if (number == 0 && id.state != IdState::idle) return EINVAL;
      id.reuse_address = number != 0;
      return 0;
    case RDMA_OPTION_ID_AFONLY:
      if (id.state != IdState::idle && id.state != IdState::addr_bound) return EINVAL;
      id.family_only = number != 0;
      id.family_only_set = true;
      return 0;
    default:
      if (id.qp_type != IBV_QPT_RC && id.qp_type != IBV_QPT_XRC_SEND) return EINVAL;
      id.ack_timeout = static_cast<std::uint8_t>(number);
      id.ack_timeout_set = true;
      return 0;
  }
}

int Service::notify(const Command& c, Out*) {
  const auto command = read_command<rdma_ucm_notify>(c.in);
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  if (id->comm == cm::kNoId || command.event != IBV_EVENT_COMM_EST) return EINVAL;
  return error_of(agent(*id).establish(host_.now(), id->comm));
}

int Service::migrate_id(const Command& c, Out* out) {
  const auto command = read_command<rdma_ucm_migrate_id>(c.in);
  if (c.other == nullptr) return ENOENT;
  Command in_old = c;
  in_old.channel = c.other;
  Id* id = nullptr;
  if (const int error = find_id(in_old, command.id, &id)) return error;
  if (c.other != c.channel) {
    for (const ChannelEvent& event : c.other->remove(*id)) c.channel->push(event);
    c.other->ids.erase(id);
    c.channel->ids.insert(id);
    id->channel = c.channel;
  }
  respond(rdma_ucm_migrate_resp{id->events_reported}, out);
  return 0;
}

}  // namespace softrnic::rdmacm
