// REQ and REP: what makes a connection, their duplicates, and stale connections.
#include <algorithm>

#include "protocols/cm/agent_impl.h"

namespace softrnic::cm {

namespace {

Path received_path(const ReqPath& p) {
  Path out;
  out.local_gid = p.remote_gid;
  out.remote_gid = p.local_gid;
  out.local_lid = p.remote_lid;
  out.remote_lid = p.local_lid;
  out.flow_label = p.flow_label;
  out.traffic_class = p.traffic_class;
  out.hop_limit = p.hop_limit;
  out.sl = p.sl;
  out.rate = p.packet_rate;
  out.packet_life_time = static_cast<std::uint8_t>(p.local_ack_timeout - (p.local_ack_timeout > 0 ? 1 : 0));
  out.subnet_local = p.subnet_local;
  return out;
}

}  // namespace

// A QP number of the peer that belongs to an established connection: the peer has forgotten that one, and it is ended.
bool Agent::Impl::stale(const In& in, RemoteKey qp) {
  const auto it = remote_qps.find(qp);
  if (it == remote_qps.end()) return false;
  Connection& old = *find(it->second);
  if (old.route.remote_gid == in.route.remote_gid) start_disconnect(in.now, old, {});
  return true;
}

void Agent::Impl::on_req(const In& in) {
  const ReqMessage m = ReqMessage::read(in.data);
  const auto refuse = [&](RejReason reason) { send_rej(in, kNoId, m.local_comm_id, MessageRef::req, reason); };
  const RemoteKey key{m.local_ca_guid, m.local_comm_id};
  if (const auto it = remote_ids.find(key); it != remote_ids.end()) {
    Connection& known = *find(it->second);
    const bool same = known.passive && known.req_tid == in.header.transaction_id && known.remote_qpn == m.local_qpn &&
                      known.sq_psn == m.starting_psn;
    if (same) return on_duplicate_req(in, known);
    // The peer uses the ID for another connection, as after a restart.
    if (!known.resting()) return refuse(RejReason::duplicate_local_comm_id);
    remote_ids.erase(it);
    known.knows_remote_id = false;
  }
  if (stale(in, {m.local_ca_guid, m.local_qpn})) return refuse(RejReason::stale_connection);
  if (m.transport == Transport::rd) return refuse(RejReason::invalid_transport_type);
  const CommId listener = find_listener(m.service_id);
  if (listener == kNoId) return refuse(RejReason::invalid_service_id);
  Connection* c = create();
  if (c == nullptr) {
    ++counters.no_room;
    return;
  }
  c->passive = true;
  c->state = State::req_rcvd;
  c->listener = listener;
  c->service_id = m.service_id;
  c->route = in.route;
  c->tid = c->req_tid = in.header.transaction_id;
  c->remote_id = m.local_comm_id;
  c->remote_ca_guid = m.local_ca_guid;
  c->transport = m.transport;
  c->remote_qpn = m.local_qpn;
  c->sq_psn = m.starting_psn;
  c->responder_resources = m.initiator_depth;
  c->initiator_depth = m.responder_resources;
  c->retry_count = m.retry_count;
  c->rnr_retry_count = m.rnr_retry_count;
  c->path_mtu = m.path_mtu;
  c->path = received_path(m.primary);
  c->ack_timeout = static_cast<std::uint8_t>(std::min(31, c->path.packet_life_time + 1));
  c->max_retries = m.max_cm_retries;
  c->interval = capped(m.local_cm_response_timeout) + capped(c->ack_timeout);
  c->peer_interval = capped(m.remote_cm_response_timeout) + 2 * capped(c->path.packet_life_time);
  remote_ids[key] = c->id;
  c->knows_remote_id = true;
  fill_req_event(in, m, *c, event(*c, EventKind::req_received));
}

void Agent::Impl::fill_req_event(const In& in, const ReqMessage& m, const Connection& c, Event& e) const {
  e.listener = c.listener;
  e.remote_ca_guid = m.local_ca_guid;
  e.remote_qpn = m.local_qpn;
  e.remote_qkey = m.local_qkey;
  e.starting_psn = m.starting_psn;
  e.transport = m.transport;
  e.responder_resources = c.responder_resources;
  e.initiator_depth = c.initiator_depth;
  e.flow_control = m.flow_control;
  e.srq = m.srq;
  e.rnr_retry_count = m.rnr_retry_count;
  e.ece = {m.vendor_id, in.header.attribute_modifier};
  e.service_id = m.service_id;
  e.retry_count = m.retry_count;
  e.local_cm_response_timeout = m.remote_cm_response_timeout;
  e.remote_cm_response_timeout = m.local_cm_response_timeout;
  e.path_mtu = m.path_mtu;
  e.pkey = m.pkey;
  e.path = c.path;
  e.has_alternate = m.has_alternate();
  if (e.has_alternate) e.alternate = received_path(m.alternate);
  e.route = in.route;
  fill_data<ReqMessage>(in, e);
}

void Agent::Impl::on_duplicate_req(const In& in, Connection& c) {
  duplicate(MessageType::req);
  if (!from_peer(in, c)) return;
  switch (c.state) {
    case State::mra_req_sent:
      repeat_answer(c);
      break;
    case State::rep_sent:  // the REP did not arrive, or not yet
      answer(c.route, *c.request, MessageType::rep, true);
      break;
    case State::idle:  // rejected
      set_deadline(c, in.now + 2 * c.peer_interval);
      [[fallthrough]];
    case State::dreq_sent:
    case State::timewait:
      if (c.answer_type == MessageType::rej) repeat_answer(c);
      break;
    default:  // the peer has its answer, or will get it
      break;
  }
}

void Agent::Impl::on_rep(const In& in) {
  const RepMessage m = RepMessage::read(in.data);
  Connection* c = match(in, m.remote_comm_id, kNoId);
  if (c == nullptr || c->passive || (c->state != State::req_sent && c->state != State::mra_req_rcvd)) {
    return on_unexpected_rep(in, m);
  }
  const std::uint32_t remote_qpn = c->transport == Transport::xrc ? m.local_eecn : m.local_qpn;
  if (m.local_comm_id == kNoId) return;
  if (stale(in, {m.local_ca_guid, remote_qpn})) {
    send_rej(in, c->id, m.local_comm_id, MessageRef::rep, RejReason::stale_connection);
    to_idle(in.now, *c);
    event(*c, EventKind::rej_received).reason = RejReason::stale_connection;
    return;
  }
  stop_request(*c);
  c->state = State::rep_rcvd;
  c->remote_id = m.local_comm_id;
  c->remote_ca_guid = m.local_ca_guid;
  c->knows_remote_id = remote_ids.emplace(RemoteKey{m.local_ca_guid, m.local_comm_id}, c->id).second;
  c->remote_qpn = remote_qpn;
  c->sq_psn = m.starting_psn;
  c->initiator_depth = m.responder_resources;
  c->responder_resources = m.initiator_depth;
  c->rnr_retry_count = m.rnr_retry_count;
  c->ack_timeout = ack_timeout_code(m.target_ack_delay, static_cast<std::uint8_t>(c->ack_timeout - 1));
  Event& e = event(*c, EventKind::rep_received);
  e.remote_ca_guid = m.local_ca_guid;
  e.remote_qpn = remote_qpn;
  e.remote_qkey = m.local_qkey;
  e.starting_psn = m.starting_psn;
  e.transport = c->transport;
  e.responder_resources = c->responder_resources;
  e.initiator_depth = c->initiator_depth;
  e.flow_control = m.flow_control;
  e.srq = m.srq;
  e.rnr_retry_count = m.rnr_retry_count;
  e.target_ack_delay = m.target_ack_delay;
  e.failover = m.failover;
  e.ece = {m.vendor_id, in.header.attribute_modifier};
  fill_data<RepMessage>(in, e);
}

void Agent::Impl::on_unexpected_rep(const In& in, const RepMessage& m) {
  Connection* c = match(in, m.remote_comm_id, m.local_comm_id);
  if (c == nullptr) {  // the connection is over, or never was: the peer need not wait for an RTU
    return send_rej(in, m.remote_comm_id, m.local_comm_id, MessageRef::rep, RejReason::invalid_comm_id);
  }
  duplicate(MessageType::rep);
  switch (c->state) {
    case State::established:
    case State::mra_rep_sent:
      return repeat_answer(*c);
    case State::timewait:
      if (c->answer_type == MessageType::rej && c->answer != nullptr) return repeat_answer(*c);
      return send_rej(in, m.remote_comm_id, m.local_comm_id, MessageRef::rep, RejReason::invalid_comm_id);
    default:
      return;
  }
}

}  // namespace softrnic::cm
