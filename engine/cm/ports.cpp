#include "engine/cm/ports.h"

#include <rdma/rdma_user_cm.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

namespace softrnic::rdmacm {
namespace {

// Service IDs of AF_IB that stand for port spaces (IBA annex A11; rdma/ib.h).
constexpr std::uint64_t kSpaceMask = 0xFFFF'FFFF'FFFF'0000;
constexpr std::uint64_t sid_of_space(std::uint16_t space) { return std::uint64_t{space} << 16; }

}  // namespace

void PortTable::read_system() {
  unsigned low = 0, high = 0, first = 0;
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  if (range >> low >> high && low > 0 && low <= high && high <= 65535)
    set_range(static_cast<std::uint16_t>(low), static_cast<std::uint16_t>(high));
  std::ifstream start("/proc/sys/net/ipv4/ip_unprivileged_port_start");
  if (start >> first && first <= 65535) first_unprivileged_ = static_cast<std::uint16_t>(first);
}

// Of AF_IB the service ID says which port space; where its mask leaves that open, the ID's own.
int PortTable::select_space(Id& id, std::uint16_t* space) const {
  if (id.src.family != kAfIb) {
    *space = id.port_space;
    return 0;
  }
  const std::uint64_t mask = id.src.sid_mask & kSpaceMask;
  const std::uint64_t sid = id.src.sid & mask;
  *space = 0;
  for (const std::uint16_t candidate : {RDMA_PS_IB, RDMA_PS_TCP, RDMA_PS_UDP}) {
    if (*space != 0 || (id.port_space != RDMA_PS_IB && id.port_space != candidate)) continue;
    if (sid == (sid_of_space(candidate) & mask)) *space = candidate;
  }
  if (*space == 0) return EPROTONOSUPPORT;
  id.src.sid = sid_of_space(*space) | id.src.port;
  id.src.sid_mask |= kSpaceMask;
  return 0;
}

int PortTable::bind(Id& id) {
  std::uint16_t space = 0;
  if (const int error = select_space(id, &space)) return error;
  if (id.src.port == 0) return bind_any(id, space);
  if (id.src.port < first_unprivileged_ && !id.may_use_any_port) return EACCES;
  if (const int error = check(owners(space, id.src.port), id, id.reuse_address)) return error;
  add(id, space, id.src.port);
  return 0;
}

int PortTable::bind_any(Id& id, std::uint16_t space) {
  const unsigned count = static_cast<unsigned>(high_ - low_) + 1;
  unsigned offset = random_() % count;
  for (unsigned i = 0; i < count; ++i, offset = (offset + 1) % count) {
    const auto port = static_cast<std::uint16_t>(low_ + offset);
    // Not the one that was just used: its peer may still have packets under way.
    if (port == last_used_) continue;
    if (!is_unique(owners(space, port), id)) continue;
    last_used_ = port;
    add(id, space, port);
    return 0;
  }
  return EADDRNOTAVAIL;
}

bool PortTable::is_unique(const std::vector<Id*>& owners, const Id& id) {
  return std::ranges::all_of(owners, [&](const Id* other) {
    if (other->dst.port != 0 && id.dst.port != other->dst.port) return true;
    if (!id.src.is_zero() && !other->src.is_zero() && !id.src.same_ip(other->src)) return true;
    return !other->dst.is_zero() && !id.dst.same_ip(other->dst);
  });
}

int PortTable::check(const std::vector<Id*>& owners, const Id& id, bool reuse) {
  for (const Id* other : owners) {
    if (other == &id) continue;
    if (other->state != IdState::listen && reuse && other->reuse_address) continue;
    if (id.family_only && other->family_only && id.src.family != other->src.family) continue;
    if (id.src.is_zero() || other->src.is_zero()) return EADDRNOTAVAIL;
    if (id.src.same_ip(other->src)) return EADDRINUSE;
  }
  return 0;
}

int PortTable::check_listen(const Id& id) const {
  const auto it = of_id_.find(&id);
  return it != of_id_.end() ? check(ports_.at(it->second), id, false) : 0;
}

void PortTable::add(Id& id, std::uint16_t space, std::uint16_t port) {
  const Key key{space, port};
  ports_[key].push_back(&id);
  of_id_[&id] = key;
  id.has_port = true;
  id.src.set_port(port);
}

void PortTable::release(Id& id) {
  const auto it = of_id_.find(&id);
  if (it == of_id_.end()) return;
  auto& owners = ports_[it->second];
  std::erase(owners, &id);
  if (owners.empty()) ports_.erase(it->second);
  of_id_.erase(it);
  id.has_port = false;
}

const std::vector<Id*>& PortTable::owners(std::uint16_t space, std::uint16_t port) const {
  static const std::vector<Id*> nobody;
  const auto it = ports_.find({space, port});
  return it != ports_.end() ? it->second : nobody;
}

}  // namespace softrnic::rdmacm
