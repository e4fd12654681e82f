// Queries of devices, ports, GIDs and P_Keys.
#include <time.h>

#include <algorithm>

#include "verbs_shim/ibverbs/objects.h"

// The port attributes of before port_cap_flags2: what the symbol ibv_query_port fills.
struct _compat_ibv_port_attr {
  char bytes[offsetof(ibv_port_attr, port_cap_flags2)];
};

namespace softrnic::shim {
namespace {

constexpr __be16 kDefaultPkey = 0xFFFF;  // the only entry of the P_Key table (full member)
constexpr int kPhysStateLinkUp = 5;      // IBA 14.2.5.6, PortPhysicalState
constexpr std::uint8_t kWidth4x = 2;
constexpr std::uint8_t kSpeedEdr = 32;  // 25 Gb/s a lane
constexpr std::uint8_t kAckDelay = 15;  // 4.096 us * 2^15 = 134 ms: a process may have to wake first

unsigned int capability_flags(const control::DeviceRecord& r) {
  unsigned int flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID |
                       IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE;
  if (r.max_mw != 0) flags |= IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
  return flags;
}

void fill_device_attr(const control::DeviceRecord& r, ibv_device_attr* a) {
  memcpy(a->fw_ver, r.fw_ver, std::min(sizeof a->fw_ver - 1, sizeof r.fw_ver));
  a->node_guid = r.node_guid;
  a->sys_image_guid = r.sys_image_guid;
  a->max_mr_size = r.max_mr_size;
  a->page_size_cap = 0xFFFFF000;
  a->vendor_id = r.vendor_id;
  a->vendor_part_id = r.vendor_part_id;
  a->hw_ver = r.hw_ver;
  a->max_qp = static_cast<int>(r.max_qp);
  a->max_qp_wr = static_cast<int>(r.max_qp_wr);
  a->device_cap_flags = capability_flags(r);
  a->max_sge = static_cast<int>(r.max_sge);
  a->max_sge_rd = static_cast<int>(r.max_sge_rd);
  a->max_cq = static_cast<int>(r.max_cq);
  a->max_cqe = static_cast<int>(r.max_cqe);
  a->max_mr = static_cast<int>(r.max_mr);
  a->max_pd = static_cast<int>(r.max_pd);
  a->max_qp_rd_atom = static_cast<int>(r.max_qp_rd_atom);
  a->max_res_rd_atom = static_cast<int>(
      std::min<std::uint64_t>(std::uint64_t{r.max_qp_rd_atom} * r.max_qp, std::numeric_limits<int>::max()));
  a->max_qp_init_rd_atom = static_cast<int>(r.max_qp_init_rd_atom);
  a->atomic_cap = r.node_type == IBV_NODE_RNIC ? IBV_ATOMIC_NONE : IBV_ATOMIC_GLOB;
  a->max_mw = static_cast<int>(r.max_mw);
  a->max_mcast_grp = static_cast<int>(r.max_mcast_grp);
  a->max_mcast_qp_attach = static_cast<int>(r.max_mcast_qp_attach);
  a->max_total_mcast_qp_attach = static_cast<int>(
      std::min<std::uint64_t>(std::uint64_t{r.max_mcast_grp} * r.max_mcast_qp_attach, std::numeric_limits<int>::max()));
  a->max_ah = static_cast<int>(r.max_ah);
  a->max_srq = static_cast<int>(r.max_srq);
  a->max_srq_wr = static_cast<int>(r.max_srq_wr);
  a->max_srq_sge = static_cast<int>(r.max_srq_sge);
  a->max_pkeys = 1;
  a->local_ca_ack_delay = kAckDelay;
  a->phys_port_cnt = 1;
}

// Index beyond the table: EINVAL. An empty place in it: ENODATA.
int gid_entry(ibv_context* context, std::uint32_t port_num, std::uint32_t index, ibv_gid_entry* entry) {
  if (port_num != 1) return EINVAL;
  Context& c = to_shim(context);
  usable(c);  // in a child of fork() the table comes with the new attachment
  control::GidRecord g;
  int rc = c.nic->gid(index, &g);
  if (rc != 0) return rc;
  if (g.gid == Gid{}) return ENODATA;
  *entry = {};
  memcpy(entry->gid.raw, g.gid.raw, sizeof entry->gid.raw);
  entry->gid_index = index;
  entry->port_num = port_num;
  if (c.nic->device().link_layer == IBV_LINK_LAYER_INFINIBAND) {
    entry->gid_type = IBV_GID_TYPE_IB;
  } else {
    entry->gid_type = g.type == 1 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
  }
  entry->ndev_ifindex = g.ndev_ifindex;
  return 0;
}

std::uint64_t clock_ns(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1000000000u + static_cast<std::uint64_t>(t.tv_nsec);
}

}  // namespace

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                    size_t attr_size) {
  if (input && input->comp_mask) return status(EINVAL);
  ibv_device_attr_ex a{};
  fill_device_attr(to_shim(context).nic->device(), &a.orig_attr);
  a.completion_timestamp_mask = std::numeric_limits<std::uint64_t>::max();
  a.hca_core_clock = 1000000;  // kHz: timestamps are in nanoseconds
  a.device_cap_flags_ex = a.orig_attr.device_cap_flags;
  a.phys_port_cnt_ex = 1;
  memset(attr, 0, attr_size);
  memcpy(attr, &a, std::min(attr_size, sizeof a));
  return 0;
}

int query_port(ibv_context* context, uint8_t port_num, ibv_port_attr* attr, size_t attr_size) {
  if (port_num != 1) return status(EINVAL);
  Context& c = to_shim(context);
  const control::DeviceRecord& r = c.nic->device();
  const bool up = usable(c);
  ibv_port_attr a{};
  a.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  a.max_mtu = IBV_MTU_4096;
  a.active_mtu = static_cast<ibv_mtu>(mtu_code(r.active_mtu));
  a.gid_tbl_len = static_cast<int>(c.nic->num_gids());
  a.port_cap_flags = IBV_PORT_CM_SUP;
  a.max_msg_sz = r.max_msg_sz;
  a.pkey_tbl_len = 1;
  a.max_vl_num = 1;
  a.active_width = kWidth4x;
  a.active_speed = kSpeedEdr;
  a.phys_state = up ? kPhysStateLinkUp : 3;
  a.link_layer = r.link_layer;
  if (r.link_layer == IBV_LINK_LAYER_ETHERNET) {
    a.port_cap_flags |= IBV_PORT_IP_BASED_GIDS;
    a.flags = IBV_QPF_GRH_REQUIRED;
  }
  memset(attr, 0, attr_size);
  memcpy(attr, &a, std::min(attr_size, sizeof a));
  return 0;
}

int query_rt_values(ibv_context*, ibv_values_ex* values) {
  std::uint32_t asked = values->comp_mask;
  values->comp_mask = 0;
  if (asked & IBV_VALUES_MASK_RAW_CLOCK) {
    clock_gettime(CLOCK_MONOTONIC, &values->raw_clock);  // the clock of completion timestamps
    values->comp_mask |= IBV_VALUES_MASK_RAW_CLOCK;
  }
  return 0;
}

std::uint64_t wallclock_ns(std::uint64_t monotonic_ns) {
  return monotonic_ns + (clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC));
}

}  // namespace softrnic::shim

using namespace softrnic;
using namespace softrnic::shim;

SOFTRNIC_ABI int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  memset(attr, 0, sizeof *attr);
  fill_device_attr(to_shim(context).nic->device(), attr);
  return 0;
}

SOFTRNIC_ABI int ibv_query_port(ibv_context* context, uint8_t port_num, _compat_ibv_port_attr* attr) {
  return query_port(context, port_num, reinterpret_cast<ibv_port_attr*>(attr), sizeof *attr);
}

SOFTRNIC_ABI int ibv_query_gid(ibv_context* context, uint8_t port_num, int index, ibv_gid* gid) {
  ibv_gid_entry entry{};
  int rc = index < 0 ? EINVAL : gid_entry(context, port_num, static_cast<std::uint32_t>(index), &entry);
  if (rc != 0 && rc != ENODATA) {
    errno = rc;
    return -1;
  }
  *gid = entry.gid;
  return 0;
}

SOFTRNIC_ABI int _ibv_query_gid_ex(ibv_context* context, uint32_t port_num, uint32_t gid_index, ibv_gid_entry* entry,
                                   uint32_t flags, size_t entry_size) {
  if (flags != 0) return status(EOPNOTSUPP);
  ibv_gid_entry e{};
  int rc = gid_entry(context, port_num, gid_index, &e);
  if (rc != 0) return status(rc);
  memset(entry, 0, entry_size);
  memcpy(entry, &e, std::min(entry_size, sizeof e));
  return 0;
}

// The number of entries written, or a negative errno value.
SOFTRNIC_ABI ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t max_entries,
                                          uint32_t flags, size_t entry_size) {
  if (flags != 0) return -EOPNOTSUPP;
  const std::uint32_t table = to_shim(context).nic->num_gids();
  char* out = reinterpret_cast<char*>(entries);
  size_t n = 0;
  for (std::uint32_t i = 0; i < table; ++i) {
    ibv_gid_entry e{};
    if (gid_entry(context, 1, i, &e) != 0) continue;
    if (n == max_entries) return -EINVAL;
    memset(out + n * entry_size, 0, entry_size);
    memcpy(out + n * entry_size, &e, std::min(entry_size, sizeof e));
    ++n;
  }
  return static_cast<ssize_t>(n);
}

// Private, but used by perftest: 0 for RoCE v1 and InfiniBand, 1 for RoCE v2, as in sysfs.
SOFTRNIC_ABI int softrnic_query_gid_type(ibv_context* context, uint8_t port_num, unsigned int index,
                                         unsigned int* type) {
  ibv_gid_entry entry{};
  int rc = gid_entry(context, port_num, index, &entry);
  if (rc != 0 && rc != ENODATA) {
    errno = rc;
    return -1;
  }
  *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}
asm(".symver softrnic_query_gid_type, ibv_query_gid_type@@IBVERBS_PRIVATE_34");
asm(".symver softrnic_query_gid_type, ibv_query_gid_type@IBVERBS_PRIVATE_57");
asm(".symver softrnic_query_gid_type, ibv_query_gid_type@IBVERBS_PRIVATE_59");
asm(".symver softrnic_query_gid_type, ibv_query_gid_type@IBVERBS_PRIVATE_64");
asm(".symver softrnic_query_gid_type, ibv_query_gid_type@IBVERBS_PRIVATE_65");

SOFTRNIC_ABI int ibv_query_pkey(ibv_context*, uint8_t port_num, int index, __be16* pkey) {
  if (port_num != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *pkey = kDefaultPkey;
  return 0;
}

SOFTRNIC_ABI int ibv_get_pkey_index(ibv_context*, uint8_t port_num, __be16 pkey) {
  if (port_num == 1 && pkey == kDefaultPkey) return 0;
  errno = EINVAL;
  return -1;
}

// Effective speed in units of 100 Mb/s: four lanes of 25 Gb/s.
SOFTRNIC_ABI int ibv_query_port_speed(ibv_context*, uint32_t port_num, uint64_t* port_speed) {
  if (port_num != 1) return status(EINVAL);
  *port_speed = 1000;
  return 0;
}
