// Multicast groups. A program attaches its QP itself, by verbs, which is when packets of the group come; here it learns
// the group's GID, and what to send with.
#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>

#include "engine/cm/abi.h"
#include "engine/cm/service.h"

namespace softrnic::rdmacm {
namespace {

constexpr int kNotSupported = 524;  // ENOTSUPP of the kernel, which is no errno value of POSIX
constexpr std::uint32_t kMulticastQpn = 0xFFFFFF;
constexpr std::size_t kMaxGroups = 65536;

}  // namespace

int Service::join_ip_mcast(const Command& c, Out* out) {
  const auto command = read_command<rdma_ucm_join_ip_mcast>(c.in);
  const auto address = Address::read(bytes_of(command.addr));
  if (!address) return EINVAL;
  return join(c, command.id, command.uid, *address, RDMA_MC_JOIN_FLAG_FULLMEMBER, out);
}

int Service::join_mcast(const Command& c, Out* out) {
  const auto command = read_command<rdma_ucm_join_mcast>(c.in);
  const auto address = Address::read(bytes_of(command.addr));
  if (!address || command.addr_size != Address::size_of(address->family)) return EINVAL;
  return join(c, command.id, command.uid, *address, command.join_flags, out);
}

int Service::join(const Command& c, std::uint32_t handle, std::uint64_t uid, const Address& address,
                  std::uint16_t flags, Out* out) {
  if (c.out_size < sizeof(rdma_ucm_create_id_resp)) return ENOSPC;
  if (flags != RDMA_MC_JOIN_FLAG_FULLMEMBER && flags != RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER) return EINVAL;
  Id* id = nullptr;
  if (const int error = find_id(c, handle, &id)) return error;
  if (id->state != IdState::addr_bound && id->state != IdState::addr_resolved) return EINVAL;
  if (id->device == kNoDevice || id->qp_type != IBV_QPT_UD || address.is_zero()) return EINVAL;
  // RoCE v2 over IPv6, as the kernel has it (cma_iboe_join_multicast).
  if (address.family != AF_INET) return kNotSupported;
  if (memberships_.size() >= kMaxGroups) return ENOMEM;
  if (const int error = set_qkey(*id, 0)) return error;

  auto membership = std::make_unique<Membership>();
  Membership& m = *membership;
  while (memberships_.contains(m.handle)) ++m.handle;
  m.uid = uid;
  m.address = address;
  m.mgid = address.ip;  // IPv4-mapped
  m.id = id;
  memberships_[m.handle] = &m;
  id->groups.push_back(std::move(membership));

  cm::Path to_group = path(*id);
  to_group.remote_gid = m.mgid;
  ChannelEvent e;
  e.membership = &m;
  e.response.uid = m.uid;
  e.response.id = m.handle;
  e.response.event = kMulticastJoin;
  e.response.param.ud.qp_num = kMulticastQpn;
  e.response.param.ud.qkey = id->qkey;
  e.response.param.ud.ah_attr = address_vector(to_group, id->route.sgid_index);
  post(*id, e);
  respond(rdma_ucm_create_id_resp{m.handle}, out);
  return 0;
}

int Service::leave_mcast(const Command& c, Out* out) {
  if (c.out_size < sizeof(rdma_ucm_destroy_id_resp)) return ENOSPC;
  const auto it = memberships_.find(read_command<rdma_ucm_destroy_id>(c.in).id);
  if (it == memberships_.end()) return ENOENT;
  Membership& m = *it->second;
  if (m.id->channel != c.channel) return EINVAL;
  c.channel->remove(m);
  respond(rdma_ucm_destroy_id_resp{m.events_reported}, out);
  memberships_.erase(it);
  std::erase_if(m.id->groups, [&](const auto& group) { return group.get() == &m; });
  return 0;
}

}  // namespace softrnic::rdmacm
