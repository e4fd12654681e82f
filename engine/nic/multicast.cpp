// Multicast groups of datagram queue pairs (IBA 10.5).
#include <algorithm>
#include <cerrno>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {

int QueuePair::attach_mcast(const Gid& mgid, std::uint16_t) {
  Impl& q = *impl_;
  Vf::Impl& v = q.vf;
  if (const int rc = v.usable(); rc != 0) return rc;
  if (q.type != ib::QpType::ud || !is_multicast_gid(mgid)) return EINVAL;
  const control::DeviceRecord& dev = q.pd->context->device();
  std::lock_guard g(v.control);
  v.lock_progress();
  const auto group = v.groups.find(mgid);
  const std::size_t members = group == v.groups.end() ? 0 : group->second.size();
  const bool member = members != 0 && std::ranges::find(group->second, &q) != group->second.end();
  const std::size_t num_groups = v.groups.size();
  v.unlock_progress();
  if (member) return 0;
  if (members >= dev.max_mcast_qp_attach || (members == 0 && num_groups >= dev.max_mcast_grp)) return ENOMEM;
  if (const int rc = v.fabric->mcast(mgid, true); rc != 0) return rc;
  v.lock_progress();
  v.groups[mgid].push_back(&q);
  v.unlock_progress();
  ++q.mcast_groups;
  return 0;
}

int QueuePair::detach_mcast(const Gid& mgid, std::uint16_t) {
  Impl& q = *impl_;
  Vf::Impl& v = q.vf;
  if (const int rc = v.usable(); rc != 0) return rc;
  std::lock_guard g(v.control);
  v.lock_progress();
  const auto group = v.groups.find(mgid);
  const bool member = group != v.groups.end() && std::erase(group->second, &q) != 0;
  if (member && group->second.empty()) v.groups.erase(group);
  v.unlock_progress();
  if (!member) return EINVAL;
  --q.mcast_groups;
  return v.fabric->mcast(mgid, false);
}

}  // namespace softrnic::nic
