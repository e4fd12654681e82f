// What a program asks about an ID: addresses, path records, attributes for its QP.
#include <infiniband/verbs.h>

#include <cerrno>

#include "engine/cm/abi.h"
#include "engine/cm/service.h"
#include "protocols/cm/rdma_cm.h"
#include "protocols/common/bytes.h"

namespace softrnic::rdmacm {
namespace {

constexpr std::uint16_t kDefaultPkey = 0xFFFF;
constexpr std::uint8_t kExactly = 2;  // selector of a path record's field (IBA 15.2.5.16)

ib_user_path_rec user_path(const cm::Path& p, std::uint8_t mtu) {
  ib_user_path_rec r{};
  std::memcpy(r.dgid, p.remote_gid.raw, sizeof(r.dgid));
  std::memcpy(r.sgid, p.local_gid.raw, sizeof(r.sgid));
  r.flow_label = __builtin_bswap32(p.flow_label);
  r.reversible = 1;
  r.mtu = mtu;
  r.pkey = kDefaultPkey;
  r.hop_limit = p.hop_limit;
  r.traffic_class = p.traffic_class;
  r.sl = p.sl;
  r.mtu_selector = r.rate_selector = r.packet_life_time_selector = kExactly;
  r.rate = p.rate;
  r.packet_life_time = p.packet_life_time;
  return r;
}

// A PathRecord as it is on the wire (IBA table 194): 64 bytes.
void packed_path(const cm::Path& p, std::uint8_t mtu, std::uint64_t service_id, std::uint8_t out[64]) {
  std::memset(out, 0, 64);
  store_be64(out, service_id);
  std::memcpy(out + 8, p.remote_gid.raw, 16);
  std::memcpy(out + 24, p.local_gid.raw, 16);
  store_be32(out + 44, p.flow_label << 8 | p.hop_limit);
  out[48] = p.traffic_class;
  out[49] = 0x80;  // reversible
  store_be16(out + 50, kDefaultPkey);
  store_be16(out + 52, p.sl);
  out[54] = static_cast<std::uint8_t>(kExactly << 6 | mtu);
  out[55] = static_cast<std::uint8_t>(kExactly << 6 | p.rate);
  out[56] = static_cast<std::uint8_t>(kExactly << 6 | p.packet_life_time);
}

ib_uverbs_qp_attr to_user(const cm::QpSetup& s, std::uint32_t sgid_index) {
  ib_uverbs_qp_attr a{};
  a.qp_attr_mask = s.mask;
  if (s.remote_write) a.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE;
  if (s.remote_read) a.qp_access_flags |= IBV_ACCESS_REMOTE_READ;
  if (s.remote_atomic) a.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
  a.path_mtu = s.path_mtu;
  a.dest_qp_num = s.dest_qpn;
  a.rq_psn = s.rq_psn;
  a.sq_psn = s.sq_psn;
  a.max_dest_rd_atomic = s.max_dest_rd_atomic;
  a.max_rd_atomic = s.max_rd_atomic;
  a.min_rnr_timer = s.min_rnr_timer;
  a.timeout = s.timeout;
  a.retry_cnt = s.retry_cnt;
  a.rnr_retry = s.rnr_retry;
  if ((s.mask & cm::QpSetup::kAv) != 0) a.ah_attr = address_vector(s.path, sgid_index);
  return a;
}

}  // namespace

ib_uverbs_ah_attr address_vector(const cm::Path& path, std::uint32_t sgid_index) {
  ib_uverbs_ah_attr ah{};
  std::memcpy(ah.grh.dgid, path.remote_gid.raw, sizeof(ah.grh.dgid));
  ah.grh.flow_label = path.flow_label;
  ah.grh.sgid_index = static_cast<std::uint8_t>(sgid_index);
  ah.grh.hop_limit = path.hop_limit;
  ah.grh.traffic_class = path.traffic_class;
  ah.sl = path.sl;
  ah.static_rate = path.rate;
  ah.is_global = 1;
  ah.port_num = 1;
  return ah;
}

int Service::query_route(const Command& c, Out* out) {
  // Older programs do not know the device's index.
  if (c.out_size < offsetof(rdma_ucm_query_route_resp, ibdev_index)) return ENOSPC;
  Id* id = nullptr;
  if (const int error = find_id(c, read_command<rdma_ucm_query>(c.in).id, &id)) return error;
  rdma_ucm_query_route_resp r{};
  if (id->src.family != kAfIb) id->src.write(reinterpret_cast<std::uint8_t*>(&r.src_addr));
  std::uint8_t dst[48] = {};
  id->dst.write(dst);
  if (id->dst.family != kAfIb) std::memcpy(&r.dst_addr, dst, sizeof(r.dst_addr));
  if (id->device != kNoDevice) {
    r.node_guid = host_.gids().devices[static_cast<std::size_t>(id->device)].node_guid;
    r.port_num = 1;
    r.ibdev_index = static_cast<std::uint32_t>(id->device);
    r.num_paths = id->has_path ? 1 : 0;
    if (id->has_path) {
      r.ib_route[0] = user_path(path(*id), id->path_mtu);
    } else {
      std::memcpy(r.ib_route[0].sgid, id->route.sgid.raw, 16);
      std::memcpy(r.ib_route[0].dgid, id->route.dgid.raw, 16);
      r.ib_route[0].pkey = kDefaultPkey;
    }
  }
  respond(r, out, c.out_size);
  return 0;
}

int Service::query(const Command& c, Out* out) {
  const auto command = read_command<rdma_ucm_query>(c.in);
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  switch (command.option) {
    case RDMA_USER_CM_QUERY_ADDR:
      return query_addr(*id, c, out);
    case RDMA_USER_CM_QUERY_PATH:
      return query_path(*id, c, out);
    case RDMA_USER_CM_QUERY_GID:
      return query_gid(*id, c, out);
    default:
      return ENOSYS;
  }
}

namespace {

void set_device(const Id& id, const GidTable& table, rdma_ucm_query_addr_resp* r) {
  if (id.device == kNoDevice) return;
  r->node_guid = table.devices[static_cast<std::size_t>(id.device)].node_guid;
  r->port_num = 1;
  r->pkey = kDefaultPkey;
  r->ibdev_index = static_cast<std::uint32_t>(id.device);
}

Address as_ib(const Address& a, const Gid& gid, std::uint16_t pkey, std::uint64_t sid) {
  if (a.family == kAfIb) return a;
  Address ib;
  ib.family = kAfIb;
  ib.ip = gid;
  ib.pkey = pkey;
  ib.sid = sid;
  return ib;
}

}  // namespace

int Service::query_addr(const Id& id, const Command& c, Out* out) {
  if (c.out_size < offsetof(rdma_ucm_query_addr_resp, ibdev_index)) return ENOSPC;
  rdma_ucm_query_addr_resp r{};
  r.src_size = static_cast<std::uint16_t>(id.src.write(reinterpret_cast<std::uint8_t*>(&r.src_addr)));
  r.dst_size = static_cast<std::uint16_t>(id.dst.write(reinterpret_cast<std::uint8_t*>(&r.dst_addr)));
  set_device(id, host_.gids(), &r);
  respond(r, out, c.out_size);
  return 0;
}

int Service::query_gid(const Id& id, const Command& c, Out* out) {
  if (c.out_size < offsetof(rdma_ucm_query_addr_resp, ibdev_index)) return ENOSPC;
  rdma_ucm_query_addr_resp r{};
  set_device(id, host_.gids(), &r);
  const Address src = as_ib(id.src, id.route.sgid, r.pkey, service_id(id, id.src));
  const Address dst = as_ib(id.dst, id.route.dgid, r.pkey, service_id(id, id.dst));
  r.src_size = static_cast<std::uint16_t>(src.write(reinterpret_cast<std::uint8_t*>(&r.src_addr)));
  r.dst_size = static_cast<std::uint16_t>(dst.write(reinterpret_cast<std::uint8_t*>(&r.dst_addr)));
  respond(r, out, c.out_size);
  return 0;
}

int Service::query_path(const Id& id, const Command& c, Out* out) {
  rdma_ucm_query_path_resp head{};
  if (c.out_size < sizeof(head)) return ENOSPC;
  head.num_paths = id.has_path ? 1 : 0;
  respond(head, out);
  if (id.has_path && c.out_size >= sizeof(head) + sizeof(ib_path_rec_data)) {
    ib_path_rec_data data{};
    data.flags = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
    packed_path(path(id), id.path_mtu, service_id(id, id.dst), reinterpret_cast<std::uint8_t*>(data.path_rec));
    const Bytes bytes = bytes_of(data);
    out->insert(out->end(), bytes.begin(), bytes.end());
  }
  return 0;
}

int Service::init_qp_attr(const Command& c, Out* out) {
  if (c.out_size < sizeof(ib_uverbs_qp_attr)) return ENOSPC;
  const auto command = read_command<rdma_ucm_init_qp_attr>(c.in);
  if (command.qp_state > IBV_QPS_ERR) return EINVAL;
  Id* id = nullptr;
  if (const int error = find_id(c, command.id, &id)) return error;
  if (id->device == kNoDevice) return EINVAL;
  const bool datagram = id->qp_type == IBV_QPT_UD;
  ib_uverbs_qp_attr a{};
  if (id->comm == cm::kNoId || datagram) {
    // Before there is a connection, and for datagrams: what all QPs of the ID need.
    a.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    if (datagram) {
      if (const int error = set_qkey(*id, 0)) return error;
      a.qkey = id->qkey;
    }
  } else {
    cm::QpSetup setup;
    if (command.qp_state < IBV_QPS_INIT || command.qp_state > IBV_QPS_RTS) return EINVAL;
    const auto target = static_cast<cm::QpTarget>(command.qp_state);
    const cm::Agent& agent_of_id = agent(*id);
    if (agent_of_id.qp_setup(id->comm, target, &setup) != cm::Result::ok) return EINVAL;
    if (target == cm::QpTarget::rtr) setup.rq_psn = id->seq_num;
    if (target == cm::QpTarget::rts && id->ack_timeout_set) setup.timeout = id->ack_timeout;
    a = to_user(setup, id->route.sgid_index);
  }
  a.qp_state = command.qp_state;
  a.port_num = 1;
  respond(a, out);
  return 0;
}

}  // namespace softrnic::rdmacm
