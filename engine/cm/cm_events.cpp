// What happens to connections: the agents' events as events of rdma_cm.
#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/cm/abi.h"
#include "engine/cm/service.h"
#include "protocols/cm/rdma_cm.h"

namespace softrnic::rdmacm {
namespace {

using cm::EventKind;

void set_private_data(Bytes data, std::uint8_t* out, std::uint8_t* length) {
  const std::size_t n = std::min<std::size_t>(data.size(), RDMA_MAX_PRIVATE_DATA);
  std::memcpy(out, data.data(), n);
  *length = static_cast<std::uint8_t>(n);
}

void set_connection_data(const cm::Event& event, std::size_t offset, rdma_ucm_conn_param* p) {
  set_private_data(event.data().subspan(offset), p->private_data, &p->private_data_len);
  p->responder_resources = event.responder_resources;
  p->initiator_depth = event.initiator_depth;
  p->flow_control = event.flow_control ? 1 : 0;
  p->retry_count = event.retry_count;
  p->rnr_retry_count = event.rnr_retry_count;
  p->srq = event.srq ? 1 : 0;
  p->qp_num = event.remote_qpn;
}

bool is_datagram(const cm::Event& event) { return event.kind == EventKind::sidr_req_received; }

bool wants(const Id& listener, const cm::Event& event) {
  if (is_datagram(event)) return listener.qp_type == IBV_QPT_UD;
  switch (event.transport) {
    case cm::Transport::uc:
      return listener.qp_type == IBV_QPT_UC;
    case cm::Transport::xrc:
      return listener.qp_type == IBV_QPT_XRC_RECV;
    default:
      return listener.qp_type == IBV_QPT_RC;
  }
}

// cma_match_private_data(): is the request for the address that the listener is bound to?
bool is_for(const Id& listener, const cm::IpHeader& header) {
  const bool v6 = header.ip_version == 6;
  if (listener.src.is_zero() && !listener.family_only) return true;
  if (listener.src.family != (v6 ? AF_INET6 : AF_INET)) return false;
  return listener.src.is_zero() || listener.src.ip == header.dst;
}

std::optional<cm::IpHeader> header_of(const cm::Event& event) { return cm::IpHeader::read(event.data()); }

}  // namespace

void Service::on_event(std::uint32_t device, const cm::Event& event) {
  if (event.kind == EventKind::req_received || event.kind == EventKind::sidr_req_received)
    return on_request(device, event);
  const auto it = by_comm_.find(context_of(device, event.id));
  if (it != by_comm_.end()) on_own_event(*it->second, event);
}

Id* Service::listener_for(std::uint32_t device, const cm::Event& event) {
  const auto it = listeners_.find({device, event.service_id});
  if (it == listeners_.end()) return nullptr;
  const auto header = header_of(event);
  const auto match = std::ranges::find_if(
      it->second.ids, [&](const Id* id) { return id->src.family == kAfIb || (header && is_for(*id, *header)); });
  return match != it->second.ids.end() && wants(**match, event) ? *match : nullptr;
}

void Service::on_request(std::uint32_t device, const cm::Event& event) {
  cm::Agent& a = agent(device);
  Id* listener = listener_for(device, event);
  if (listener == nullptr) {
    // cma_req_handler() fails: the request is refused as by a consumer.
    if (!is_datagram(event)) a.reject(host_.now(), event.id, cm::RejReason::consumer_defined);
    a.destroy(host_.now(), event.id);
    return;
  }
  Id* id = listener->backlog > 0 ? make_id(*listener->channel, listener->port_space, listener->qp_type) : nullptr;
  if (id == nullptr) {
    // No word to the peer: it will ask again.
    if (!is_datagram(event)) a.drop(event.id);
    a.destroy(host_.now(), event.id);
    return;
  }
  id->state = IdState::connect;
  id->may_use_any_port = listener->may_use_any_port;
  const bool addresses = listener->src.family != kAfIb;
  id->src.family = id->dst.family = listener->src.family;
  if (const auto header = header_of(event); addresses && header) {
    id->src.family = id->dst.family = header->ip_version == 6 ? AF_INET6 : AF_INET;
    id->src.ip = header->dst;
    id->src.port = cm::port_of(event.service_id);
    id->dst.ip = header->src;
    id->dst.port = header->src_port;
  } else if (!addresses) {
    id->src.sid = event.service_id;
    id->src.sid_mask = ~std::uint64_t{0};
    id->src.ip = event.route.local_gid;
    id->dst.ip = event.route.remote_gid;
  }
  id->device = static_cast<int>(device);
  id->route = {device, gid_index_of(event.route.context), event.route.local_gid, event.route.remote_gid,
               std::max<std::uint8_t>(event.route.hop_limit, 1)};
  id->has_path = true;
  id->path_mtu = event.path_mtu;
  id->tos = event.route.traffic_class;
  set_comm(*id, event.id);

  ChannelEvent e;
  e.connection = id;
  e.response.event = kConnectRequest;
  e.response.ece = {event.ece.vendor_id, event.ece.attr_mod};
  const std::size_t offset = addresses ? cm::IpHeader::kSize : 0;
  if (is_datagram(event)) {
    rdma_ucm_ud_param& ud = e.response.param.ud;
    set_private_data(event.data().subspan(offset), ud.private_data, &ud.private_data_len);
  } else {
    set_connection_data(event, offset, &e.response.param.conn);
    // Programs may take their time: when the peer asks again, it is told so.
    a.mra(host_.now(), event.id, cm::kMraServiceTimeout, {}, true);
  }
  listener->backlog--;
  post(*listener, e);
}

void Service::on_own_event(Id& id, const cm::Event& event) {
  const bool at_end = event.kind == EventKind::timewait_exit;
  if (id.state != (at_end ? IdState::disconnect : IdState::connect)) return;
  ChannelEvent e;
  rdma_ucm_conn_param& conn = e.response.param.conn;
  int status = 0;
  switch (event.kind) {
    case EventKind::req_error:
    case EventKind::rep_error:
    case EventKind::sidr_req_error:
      e.response.event = kUnreachable;
      status = -ETIMEDOUT;
      break;
    case EventKind::rep_received:
      agent(id).mra(host_.now(), id.comm, cm::kMraServiceTimeout, {}, true);
      set_connection_data(event, 0, &conn);
      e.response.ece = {event.ece.vendor_id, event.ece.attr_mod};
      e.response.event = kConnectResponse;
      break;
    case EventKind::rtu_received:
    case EventKind::user_established:
      e.response.event = kEstablished;
      break;
    case EventKind::dreq_error:
      status = -ETIMEDOUT;
      [[fallthrough]];
    case EventKind::dreq_received:
    case EventKind::drep_received:
      id.state = IdState::disconnect;
      e.response.event = kDisconnected;
      break;
    case EventKind::timewait_exit:
      e.response.event = kTimewaitExit;
      break;
    case EventKind::rej_received:
      e.response.event = kRejected;
      status = static_cast<int>(event.reason);
      set_private_data(event.data(), conn.private_data, &conn.private_data_len);
      break;
    case EventKind::sidr_rep_received:
      status = set_service(id, event, &e);
      break;
    default:
      return;  // mra_received: nothing that a program must know
  }
  e.response.status = static_cast<std::uint32_t>(status);
  post(id, e);
}

// A datagram QP answered. The status of the event.
int Service::set_service(Id& id, const cm::Event& event, ChannelEvent* e) {
  rdma_ucm_ud_param& ud = e->response.param.ud;
  set_private_data(event.data(), ud.private_data, &ud.private_data_len);
  if (event.sidr_status != cm::SidrStatus::ok) {
    e->response.event = kUnreachable;
    return static_cast<int>(event.sidr_status);
  }
  if (const int error = set_qkey(id, event.remote_qkey)) {
    e->response.event = kAddrError;
    return -error;
  }
  e->response.event = kEstablished;
  e->response.ece = {event.ece.vendor_id, event.ece.attr_mod};
  ud.qp_num = event.remote_qpn;
  ud.qkey = event.remote_qkey;
  ud.ah_attr = address_vector(path(id), id.route.sgid_index);
  return 0;
}

}  // namespace softrnic::rdmacm
