// Addresses, routes and listeners: how an ID comes to its device.
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/cm/abi.h"
#include "engine/cm/service.h"
#include "protocols/common/bytes.h"
#include "protocols/roce/framing.h"

namespace softrnic::rdmacm {
namespace {

constexpr std::uint8_t kRoceV2 = 1;  // what rdma_cm uses unless configured otherwise

}  // namespace

void Service::use_source(Id& id, const control::GidRecord& record) {
  id.device = static_cast<int>(record.device);
  id.route.device = record.device;
  id.route.sgid_index = record.index;
  id.route.sgid = record.gid;
  id.path_mtu = mtu_code(host_.gids().devices[record.device].active_mtu);
}

int Service::bind_address(Id& id, const Address& address) {
  if (address.family != AF_INET && address.family != AF_INET6 && address.family != kAfIb) return EAFNOSUPPORT;
  if (id.state != IdState::idle) return EINVAL;
  if (address.family == AF_INET6 && address.is_link_local() && address.scope_id == 0) return EINVAL;
  const control::GidRecord* record = nullptr;
  if (!address.is_zero()) {
    record = host_.gids().find(address.ip, kRoceV2);
    // On a network, the loopback addresses are no entries of the table; they bind to no device.
    if (record == nullptr && !address.is_loopback()) return EADDRNOTAVAIL;
  }
  id.src = address;
  if (!id.family_only_set) id.family_only = address.family == AF_INET;
  if (const int error = ports_.bind(id)) {
    id.src = {};
    return error;
  }
  if (record != nullptr) use_source(id, *record);
  id.dst.family = address.family;
  id.state = IdState::addr_bound;
  return 0;
}

// The answer may come now or later; either way by an event, unless it is known at once that there is no way.
int Service::resolve_address(Id& id, const Address& source, const Address& destination) {
  if (id.state == IdState::idle) {
    Address from = source;
    if (from.family == 0) {
      from.family = destination.family;
      from.scope_id = destination.scope_id;
      from.pkey = destination.pkey;
      if (from.family == AF_INET) from.ip.raw[10] = from.ip.raw[11] = 0xFF;
      if (from.family == kAfIb) {
        from.sid = destination.sid & ~std::uint64_t{0xFFFF};
        from.sid_mask = ~std::uint64_t{0xFFFF};
      }
    }
    if (const int error = bind_address(id, from)) return error;
  }
  if (id.src.family != destination.family || id.state != IdState::addr_bound) return EINVAL;
  id.dst = destination;
  if (id.dst.is_zero()) {  // as with sockets: this host
    id.dst.ip = {};
    id.dst.ip.raw[15] = 1;
    if (id.dst.family == AF_INET) id.dst.ip = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 127, 0, 0, 1}};
  }
  if (const control::GidRecord* own = host_.gids().find(id.dst.ip, kRoceV2)) return resolve_own(id, *own);
  if (is_multicast(id.dst)) return resolve_anywhere(id, id.dst.ip) ? 0 : ENODEV;
  if (id.dst.is_loopback()) return resolve_anywhere(id, {}) ? 0 : ENODEV;
  return ask_for_route(id);
}

// A destination of this NIC: reached from its own address unless the ID has another.
int Service::resolve_own(Id& id, const control::GidRecord& record) {
  if (id.device == kNoDevice) {
    if (id.src.is_zero()) id.src.ip = id.dst.ip;
    const control::GidRecord* source = host_.gids().find(id.src.ip, kRoceV2);
    use_source(id, source != nullptr ? *source : record);
  }
  id.route.dgid = record.gid;
  id.state = IdState::addr_resolved;
  post(id, kAddrResolved);
  return 0;
}

// Destinations that are on no particular network: multicast groups, and the loopback addresses, for which a NIC on a
// network has no entries (cma_bind_loopback). The first address serves that is of the destination's family, or any.
bool Service::resolve_anywhere(Id& id, const Gid& destination) {
  const GidTable table = host_.gids();
  const control::GidRecord* best = nullptr;
  for (const control::GidRecord& g : table.gids) {
    if (g.type != kRoceV2 || g.gid == Gid{} || (id.device != kNoDevice && static_cast<int>(g.device) != id.device))
      continue;
    const bool fits = roce::is_ipv4_mapped(g.gid) == roce::is_ipv4_mapped(id.dst.ip);
    if (best == nullptr || (fits && roce::is_ipv4_mapped(best->gid) != roce::is_ipv4_mapped(id.dst.ip))) best = &g;
  }
  if (best == nullptr) return false;
  if (id.device == kNoDevice) {
    use_source(id, *best);
    if (id.src.is_zero()) id.src.ip = id.dst.is_loopback() ? id.dst.ip : best->gid;
  }
  id.route.dgid = destination == Gid{} ? id.route.sgid : destination;
  id.state = IdState::addr_resolved;
  post(id, kAddrResolved);
  return true;
}

int Service::ask_for_route(Id& id) {
  const std::uint64_t query = next_query_++;
  route_queries_[query] = &id;
  id.state = IdState::addr_query;
  const Gid source = id.device != kNoDevice ? id.route.sgid : Gid{};
  if (host_.find_route(id.dst.ip, source, [this, query](const FoundRoute& found) { on_route(query, found); })) return 0;
  route_queries_.erase(query);
  id.state = IdState::addr_bound;
  return ENETUNREACH;
}

void Service::on_route(std::uint64_t query, const FoundRoute& found) {
  const auto it = route_queries_.find(query);
  if (it == route_queries_.end()) return;  // the ID is no more
  Id& id = *it->second;
  route_queries_.erase(it);
  const control::GidRecord* source = found.error == 0 ? host_.gids().find(found.source, kRoceV2) : nullptr;
  if (source == nullptr) {
    id.state = IdState::addr_bound;
    post(id, kAddrError, -(found.error != 0 ? found.error : EADDRNOTAVAIL));
    return;
  }
  if (id.device == kNoDevice) use_source(id, *source);
  if (id.src.is_zero()) id.src.ip = source->gid;
  id.route.dgid = id.dst.ip;
  id.route.hop_limit = found.hop_limit;
  id.state = IdState::addr_resolved;
  post(id, kAddrResolved);
}

// RDMA_OPTION_IB_PATH: a path record of the program's own (IBA 15.2.5.16) instead of resolve_route.
int Service::set_path(Id& id, Bytes option) {
  constexpr std::uint32_t kWanted = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
  if (option.size() % sizeof(ib_path_rec_data) != 0) return EINVAL;
  ib_path_rec_data data{};
  for (std::size_t at = 0; data.flags != kWanted; at += sizeof(data)) {
    if (at >= option.size()) return EINVAL;
    std::memcpy(&data, option.data() + at, sizeof(data));
  }
  if (id.state != IdState::addr_resolved) return EINVAL;
  const auto* record = reinterpret_cast<const std::uint8_t*>(data.path_rec);
  const std::uint32_t flow = load_be32(record + 44);
  id.flow_label = flow >> 8 & 0xFFFFF;
  id.route.hop_limit = static_cast<std::uint8_t>(flow);
  id.tos = record[48];
  id.sl = record[53] & 0xF;
  if (const std::uint8_t mtu = record[54] & 0x3F; mtu >= 1 && mtu <= id.path_mtu) id.path_mtu = mtu;
  id.has_path = true;
  id.state = IdState::route_resolved;
  post(id, kRouteResolved);
  return 0;
}

// IBA annex A11.
std::uint64_t Service::service_id(const Id& id, const Address& address) const {
  return address.family == kAfIb ? address.sid : std::uint64_t{id.port_space} << 16 | address.port;
}

int Service::start_listening(Id& id, std::uint32_t backlog) {
  if (id.state == IdState::idle) {
    Address any;
    any.family = AF_INET;
    any.ip.raw[10] = any.ip.raw[11] = 0xFF;
    if (const int error = bind_address(id, any)) return error;
  }
  if (id.state != IdState::addr_bound) return EINVAL;
  if (id.reuse_address) {
    if (const int error = ports_.check_listen(id)) return error;
  }
  id.state = IdState::listen;
  id.backlog = backlog;
  const std::uint64_t sid = service_id(id, id.src);
  const auto devices = static_cast<std::uint32_t>(host_.gids().devices.size());
  for (std::uint32_t device = 0; device < devices; ++device) {
    if (id.device != kNoDevice && static_cast<std::uint32_t>(id.device) != device) continue;
    Listener& listener = listeners_[{device, sid}];
    if (listener.ids.empty() && agent(device).listen(sid, ~std::uint64_t{0}, &listener.comm) != cm::Result::ok) {
      listeners_.erase({device, sid});
      stop_listening(id);
      id.state = IdState::addr_bound;
      return ENOMEM;
    }
    listener.ids.push_back(&id);
    id.listens_on.push_back(device);
  }
  return 0;
}

void Service::stop_listening(Id& id) {
  const std::uint64_t sid = service_id(id, id.src);
  for (const std::uint32_t device : id.listens_on) {
    const auto it = listeners_.find({device, sid});
    std::erase(it->second.ids, &id);
    if (!it->second.ids.empty()) continue;
    agent(device).destroy(host_.now(), it->second.comm);
    listeners_.erase(it);
  }
  id.listens_on.clear();
}

}  // namespace softrnic::rdmacm
