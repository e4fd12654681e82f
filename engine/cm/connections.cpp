// Connections: what a program asks of the CM agent of its device.
#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <cerrno>

#include "engine/cm/abi.h"
#include "engine/cm/service.h"
#include "protocols/cm/rdma_cm.h"

namespace softrnic::rdmacm {
namespace {

constexpr std::uint32_t kDefaultQkey = 0x01234567;  // RDMA_UDP_QKEY
constexpr std::uint8_t kMaxRetries = 7;             // three bits

cm::Transport transport_of(std::uint8_t qp_type) {
  switch (qp_type) {
    case IBV_QPT_UC:
      return cm::Transport::uc;
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      return cm::Transport::xrc;
    default:
      return cm::Transport::rc;
  }
}

// The private data of a request: the addresses, then what the program gives. AF_IB has no addresses.
std::vector<std::uint8_t> with_header(const Id& id, Bytes data) {
  std::vector<std::uint8_t> out;
  if (id.src.family != kAfIb) {
    cm::IpHeader header;
    header.ip_version = id.src.family == AF_INET6 ? 6 : 4;
    header.src_port = id.src.port;
    header.src = id.src.ip;
    header.dst = id.dst.ip;
    out.resize(cm::IpHeader::kSize);
    header.write(out.data());
  }
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

}  // namespace

int error_of(cm::Result result) {
  switch (result) {
    case cm::Result::ok:
      return 0;
    case cm::Result::no_room:
      return ENOMEM;
    case cm::Result::in_use:
      return EADDRINUSE;
    case cm::Result::connected:
      return EISCONN;
    default:
      return EINVAL;
  }
}

void Service::set_comm(Id& id, cm::CommId comm) {
  id.comm = comm;
  by_comm_[context_of(static_cast<std::uint32_t>(id.device), comm)] = &id;
}

// Gives the communication ID back; the peer is told what it must know.
void Service::drop_comm(Id& id) {
  if (id.comm == cm::kNoId) return;
  by_comm_.erase(context_of(static_cast<std::uint32_t>(id.device), id.comm));
  agent(id).destroy(host_.now(), id.comm);
  id.comm = cm::kNoId;
}

mad::MadRoute Service::mad_route(const Id& id) const {
  mad::MadRoute route;
  route.local_gid = id.route.sgid;
  route.remote_gid = id.route.dgid;
  route.traffic_class = id.tos;
  route.hop_limit = id.route.hop_limit;
  route.flow_label = id.flow_label;
  route.sl = id.sl;
  route.context = context_of(id.route.device, id.route.sgid_index);
  return route;
}

cm::Path Service::path(const Id& id) const {
  cm::Path p;
  p.local_gid = id.route.sgid;
  p.remote_gid = id.route.dgid;
  p.flow_label = id.flow_label;
  p.traffic_class = id.tos;
  p.hop_limit = id.route.hop_limit;
  p.sl = id.sl;
  p.rate = IBV_RATE_100_GBPS;
  p.packet_life_time = cm::kRocePacketLifeTime;
  return p;
}

int Service::start_connection(Id& id, const rdma_ucm_conn_param& param, const rdma_ucm_ece& ece) {
  if (id.state != IdState::route_resolved) return EINVAL;
  id.qpn = param.qp_num;
  id.srq = param.srq != 0;
  id.ece = {ece.vendor_id, ece.attr_mod};
  const std::vector<std::uint8_t> data = with_header(id, private_data_of(param));
  const int error = id.qp_type == IBV_QPT_UD ? request_service(id, data) : request_connection(id, param, data);
  if (error == 0) id.state = IdState::connect;
  return error;
}

int Service::request_connection(Id& id, const rdma_ucm_conn_param& param, Bytes private_data) {
  cm::ReqParams req;
  req.service_id = service_id(id, id.dst);
  req.transport = transport_of(id.qp_type);
  req.qpn = id.qpn & 0xFFFFFF;
  req.starting_psn = id.seq_num;
  req.responder_resources = param.responder_resources;
  req.initiator_depth = param.initiator_depth;
  req.remote_cm_response_timeout = req.local_cm_response_timeout = cm::kResponseTimeout;
  req.retry_count = std::min(kMaxRetries, param.retry_count);
  req.rnr_retry_count = std::min(kMaxRetries, param.rnr_retry_count);
  req.max_cm_retries = cm::kMaxCmRetries;
  req.flow_control = param.flow_control != 0;
  req.srq = id.srq;
  req.path_mtu = id.path_mtu;
  req.path = path(id);
  req.route = mad_route(id);
  req.ece = id.ece;
  req.private_data = private_data;
  cm::CommId comm = cm::kNoId;
  const cm::Result result = agent(id.route.device).connect(host_.now(), req, &comm);
  if (result == cm::Result::ok) set_comm(id, comm);
  return error_of(result);
}

int Service::request_service(Id& id, Bytes private_data) {
  cm::SidrReqParams req;
  req.service_id = service_id(id, id.dst);
  req.timeout = cm::time_of_code(cm::kResponseTimeout);
  req.max_cm_retries = cm::kMaxCmRetries;
  req.route = mad_route(id);
  req.private_data = private_data;
  cm::CommId comm = cm::kNoId;
  const cm::Result result = agent(id.route.device).sidr_request(host_.now(), req, &comm);
  if (result == cm::Result::ok) set_comm(id, comm);
  return error_of(result);
}

// accept: of a connection request, of a request for a datagram QP, or of the peer's reply (which has no parameters).
int Service::answer_request(Id& id, const rdma_ucm_conn_param& param) {
  cm::Agent& a = agent(id);
  if (param.valid != 0) {
    id.qpn = param.qp_num;
    id.srq = param.srq != 0;
  }
  if (id.qp_type == IBV_QPT_UD) {
    // As in ucma: only AF_IB programs choose their Q_Key.
    const std::uint32_t qkey = id.src.family == kAfIb ? param.qkey : 0;
    return answer_service(id, cm::SidrStatus::ok, qkey, private_data_of(param));
  }
  if (param.valid == 0) return error_of(a.ready(host_.now(), id.comm));
  cm::RepParams rep;
  rep.qpn = id.qpn & 0xFFFFFF;
  rep.starting_psn = id.seq_num;
  rep.responder_resources = param.responder_resources;
  rep.initiator_depth = param.initiator_depth;
  rep.rnr_retry_count = std::min(kMaxRetries, param.rnr_retry_count);
  rep.flow_control = param.flow_control != 0;
  rep.srq = id.srq;
  rep.ece = id.ece;
  rep.private_data = private_data_of(param);
  return error_of(a.accept(host_.now(), id.comm, rep));
}

int Service::answer_service(Id& id, cm::SidrStatus status, std::uint32_t qkey, Bytes private_data) {
  cm::SidrRepParams rep;
  rep.status = status;
  if (status == cm::SidrStatus::ok) {
    if (const int error = set_qkey(id, qkey)) return error;
    rep.qpn = id.qpn & 0xFFFFFF;
    rep.qkey = id.qkey;
  }
  rep.ece = id.ece;
  rep.private_data = private_data;
  return error_of(agent(id).sidr_reply(host_.now(), id.comm, rep));
}

int Service::refuse(Id& id, cm::RejReason reason, Bytes private_data) {
  if (id.comm == cm::kNoId) return EINVAL;
  if (id.qp_type == IBV_QPT_UD) return answer_service(id, cm::SidrStatus::rejected, 0, private_data);
  cm::Agent& a = agent(id);
  return error_of(a.reject(host_.now(), id.comm, reason, {}, private_data));
}

// The Q_Key of a datagram ID, which stays what it was first (cma_set_qkey). 0: the default.
int Service::set_qkey(Id& id, std::uint32_t qkey) {
  if (id.qkey != 0) return qkey != 0 && qkey != id.qkey ? EINVAL : 0;
  if (qkey == 0 && id.port_space == RDMA_PS_IPOIB) return EADDRNOTAVAIL;  // the broadcast group's: there is none here
  id.qkey = qkey != 0 ? qkey : kDefaultQkey;
  return 0;
}

}  // namespace softrnic::rdmacm
