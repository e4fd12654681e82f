// What the consumer of the agent asks for, but for service ID resolution.
#include <algorithm>
#include <vector>

#include "protocols/cm/agent_impl.h"

namespace softrnic::cm {

namespace {

constexpr std::uint32_t kMax24 = 0xFFFFFF;
constexpr unsigned kMaxTimeCode = 31;
constexpr std::uint64_t kWholeId = ~std::uint64_t{0};
constexpr std::uint64_t kAgnMask = 0xFF00'0000'0000'0000;
constexpr std::uint16_t kPermissiveLid = 0xFFFF;

bool valid(const ReqParams& p) {
  return (p.transport == Transport::rc || p.transport == Transport::uc || p.transport == Transport::xrc) &&
         p.qpn <= kMax24 && p.starting_psn <= kMax24 && p.remote_cm_response_timeout <= kMaxTimeCode &&
         p.local_cm_response_timeout <= kMaxTimeCode && p.retry_count <= 7 && p.rnr_retry_count <= 7 &&
         p.max_cm_retries <= 15 && p.path_mtu >= 1 && p.path_mtu <= 5 && p.path.flow_label <= 0xFFFFF &&
         p.path.sl <= 15 && p.path.rate <= 63 && p.path.packet_life_time <= kMaxTimeCode && p.ece.vendor_id <= kMax24 &&
         p.private_data.size() <= kReqPrivateData;
}

bool valid(const RepParams& p) {
  return p.qpn <= kMax24 && p.starting_psn <= kMax24 && p.rnr_retry_count <= 7 && p.ece.vendor_id <= kMax24 &&
         p.private_data.size() <= kRepPrivateData;
}

ReqPath primary_path(const ReqParams& p, std::uint8_t ack_timeout) {
  ReqPath r;
  r.subnet_local = p.path.hop_limit <= 1;
  r.local_lid = r.subnet_local ? p.path.local_lid : kPermissiveLid;
  r.remote_lid = r.subnet_local ? p.path.remote_lid : kPermissiveLid;
  r.local_gid = p.path.local_gid;
  r.remote_gid = p.path.remote_gid;
  r.flow_label = p.path.flow_label;
  r.packet_rate = p.path.rate;
  r.traffic_class = p.path.traffic_class;
  r.hop_limit = p.path.hop_limit;
  r.sl = p.path.sl;
  r.local_ack_timeout = ack_timeout;
  return r;
}

ReqMessage make_req(const ReqParams& p, const AgentOptions& options) {
  ReqMessage m;
  m.vendor_id = p.ece.vendor_id;
  m.service_id = p.service_id;
  m.local_ca_guid = options.ca_guid;
  m.local_qpn = p.qpn;
  m.initiator_depth = p.initiator_depth;
  m.remote_cm_response_timeout = p.remote_cm_response_timeout;
  m.transport = p.transport;
  m.flow_control = p.flow_control;
  m.starting_psn = p.starting_psn;
  m.local_cm_response_timeout = p.local_cm_response_timeout;
  m.pkey = p.route.pkey;
  m.path_mtu = p.path_mtu;
  m.max_cm_retries = p.max_cm_retries;
  if (p.transport != Transport::xrc) {  // an XRC initiator responds to nothing
    m.responder_resources = p.responder_resources;
    m.retry_count = p.retry_count;
    m.rnr_retry_count = p.rnr_retry_count;
    m.srq = p.srq;
  }
  m.primary = primary_path(p, ack_timeout_code(options.ca_ack_delay, p.path.packet_life_time));
  return m;
}

}  // namespace

// ---- listeners -----------------------------------------------------------------------------------------------------

Result Agent::listen(std::uint64_t service, std::uint64_t mask, CommId* id) {
  Impl& a = *impl_;
  if (mask == 0) mask = kWholeId;
  service &= mask;
  if (service == kAssignServiceId) {
    mask = kWholeId;
    do service = ++a.assigned_service;
    while (a.find_listener(service) != kNoId);
  } else if ((service & kAgnMask) == kAssignServiceId) {
    return Result::bad_argument;
  }
  if (a.listeners.size() >= a.options.max_listeners) return Result::no_room;
  const auto overlaps = [&](std::uint64_t other, std::uint64_t other_mask) {
    return (other & mask) == (service & other_mask);
  };
  if (mask == kWholeId ? a.exact_listeners.contains(service)
                       : std::any_of(a.exact_listeners.begin(), a.exact_listeners.end(),
                                     [&](const auto& l) { return overlaps(l.first, kWholeId); })) {
    return Result::in_use;
  }
  for (const auto& [other, l] : a.masked_listeners) {
    if (overlaps(l.service_id, l.mask)) return Result::in_use;
  }
  *id = a.new_id();
  a.listeners[*id] = {service, mask};
  if (mask == kWholeId) {
    a.exact_listeners[service] = *id;
  } else {
    a.masked_listeners[*id] = {service, mask};
  }
  return Result::ok;
}

// ---- setting up ----------------------------------------------------------------------------------------------------

Result Agent::connect(Nanos now, const ReqParams& p, CommId* id) {
  Impl& a = *impl_;
  if (!valid(p)) return Result::bad_argument;
  Connection* c = a.create();
  if (c == nullptr) return Result::no_room;
  *id = c->id;
  c->service_id = p.service_id;
  c->route = p.route;
  c->transport = p.transport;
  c->local_qpn = p.qpn;
  c->rq_psn = p.starting_psn;
  c->responder_resources = p.responder_resources;
  c->initiator_depth = p.initiator_depth;
  c->retry_count = p.retry_count;
  c->rnr_retry_count = p.rnr_retry_count;
  c->path_mtu = p.path_mtu;
  c->path = p.path;
  c->ack_timeout = static_cast<std::uint8_t>(std::min(31, p.path.packet_life_time + 1));
  c->max_retries = p.max_cm_retries;
  c->interval = 2 * a.capped(p.path.packet_life_time) + a.capped(p.remote_cm_response_timeout);
  c->tid = a.new_tid(c->id);
  ReqMessage m = make_req(p, a.options);
  m.local_comm_id = c->id;
  c->state = State::req_sent;
  a.send_request(now, *c, MessageType::req, make_mad(c->tid, m, p.private_data, {}, p.ece.attr_mod));
  return Result::ok;
}

Result Agent::accept(Nanos now, CommId id, const RepParams& p) {
  Impl& a = *impl_;
  Connection* c = a.find_owned(id);
  if (c == nullptr || (c->state != State::req_rcvd && c->state != State::mra_req_sent)) return Result::bad_state;
  if (!valid(p)) return Result::bad_argument;
  c->local_qpn = p.qpn;
  c->rq_psn = p.starting_psn;
  c->responder_resources = p.responder_resources;
  c->initiator_depth = p.initiator_depth;
  RepMessage m;
  m.local_comm_id = c->id;
  m.remote_comm_id = c->remote_id;
  m.vendor_id = p.ece.vendor_id;
  m.starting_psn = p.starting_psn;
  m.responder_resources = p.responder_resources;
  m.target_ack_delay = a.options.ca_ack_delay;
  m.failover = Failover::unsupported;
  m.rnr_retry_count = p.rnr_retry_count;
  m.local_ca_guid = a.options.ca_guid;
  if (c->transport == Transport::xrc) {
    m.local_eecn = p.qpn;
    m.srq = true;
  } else {
    m.local_qpn = p.qpn;
    m.initiator_depth = p.initiator_depth;
    m.flow_control = p.flow_control;
    m.srq = p.srq;
  }
  c->answer.reset();
  c->state = State::rep_sent;
  a.send_request(now, *c, MessageType::rep, make_mad(c->tid, m, p.private_data, {}, p.ece.attr_mod));
  return Result::ok;
}

Result Agent::ready(Nanos, CommId id, Bytes private_data) {
  Impl& a = *impl_;
  Connection* c = a.find_owned(id);
  if (c == nullptr || (c->state != State::rep_rcvd && c->state != State::mra_rep_sent)) return Result::bad_state;
  if (private_data.size() > kRtuPrivateData) return Result::bad_argument;
  c->state = State::established;
  a.remember_remote_qp(*c);
  a.send_answer(*c, MessageType::rtu, make_mad(c->tid, RtuMessage{c->id, c->remote_id}, private_data));
  return Result::ok;
}

Result Agent::establish(Nanos, CommId id) {
  Impl& a = *impl_;
  Connection* c = a.find_owned(id);
  if (c != nullptr && c->state == State::established) return Result::connected;
  if (c == nullptr || (c->state != State::rep_sent && c->state != State::mra_rep_rcvd)) return Result::bad_state;
  a.stop_request(*c);
  c->state = State::established;
  a.remember_remote_qp(*c);
  a.event(*c, EventKind::user_established);
  return Result::ok;
}

Result Agent::mra(Nanos, CommId id, std::uint8_t service_timeout, Bytes private_data, bool only_if_repeated) {
  Impl& a = *impl_;
  Connection* c = a.find_owned(id);
  if (c == nullptr || (c->state != State::req_rcvd && c->state != State::rep_rcvd)) return Result::bad_state;
  if (service_timeout > kMaxTimeCode || private_data.size() > kMraPrivateData) return Result::bad_argument;
  const bool req = c->state == State::req_rcvd;
  c->state = req ? State::mra_req_sent : State::mra_rep_sent;
  const MraMessage m{c->id, c->remote_id, req ? MessageRef::req : MessageRef::rep, service_timeout};
  a.keep_answer(*c, MessageType::mra, make_mad(c->tid, m, private_data));
  if (!only_if_repeated) a.transmit(c->route, *c->answer, MessageType::mra);
  return Result::ok;
}

// ---- refusing ------------------------------------------------------------------------------------------------------

namespace {

Mad make_rej(const Connection& c, CommId local_id, MessageRef message, RejReason reason, Bytes info,
             Bytes private_data) {
  const RejMessage m{local_id, c.remote_id, message, static_cast<std::uint8_t>(info.size()), reason};
  return make_mad(c.tid, m, private_data, info);
}

}  // namespace

void Agent::Impl::start_reject(Nanos now, Connection& c, RejReason reason, Bytes info, Bytes private_data) {
  switch (c.state) {
    case State::req_sent:
    case State::mra_req_rcvd:
      // The peer's ID is not known: this reason alone lets the peer find the connection, by the GUID.
      transmit(c.route, make_rej(c, c.id, MessageRef::other, RejReason::timeout, guid_bytes(), private_data),
               MessageType::rej);
      to_idle(now, c);
      break;
    case State::req_rcvd:
    case State::mra_req_sent: {
      const CommId told = c.state == State::req_rcvd ? kNoId : c.id;
      send_answer(c, MessageType::rej, make_rej(c, told, MessageRef::req, reason, info, private_data));
      to_idle(now, c, 2 * c.peer_interval);
      break;
    }
    case State::rep_rcvd:
    case State::mra_rep_sent:
      send_answer(c, MessageType::rej, make_rej(c, c.id, MessageRef::rep, reason, info, private_data));
      to_timewait(now, c);
      break;
    default:
      take_back_rep(now, c, reason, info, private_data);
      break;
  }
}

void Agent::Impl::take_back_rep(Nanos now, Connection& c, RejReason reason, Bytes info, Bytes private_data) {
  // The peer may have seen the REP, and may think the connection established. A REJ alone can be lost.
  send_answer(c, MessageType::rej, make_rej(c, c.id, MessageRef::other, reason, info, private_data));
  c.silent = true;
  c.state = State::dreq_sent;
  c.request = std::make_unique<Mad>(make_mad(new_tid(c.id), DreqMessage{c.id, c.remote_id, c.remote_qpn}));
  c.request_type = MessageType::dreq;
  c.retries_left = c.max_retries + 1u;
  set_deadline(c, now + c.interval);
}

Result Agent::reject(Nanos now, CommId id, RejReason reason, Bytes info, Bytes private_data) {
  Connection* c = impl_->find_owned(id);
  if (c == nullptr) return Result::bad_state;
  switch (c->state) {
    case State::req_sent:
    case State::mra_req_rcvd:
    case State::req_rcvd:
    case State::mra_req_sent:
    case State::rep_rcvd:
    case State::mra_rep_sent:
    case State::rep_sent:
    case State::mra_rep_rcvd:
      break;
    default:
      return Result::bad_state;
  }
  if (info.size() > kAriSize || private_data.size() > kRejPrivateData) return Result::bad_argument;
  impl_->start_reject(now, *c, reason, info, private_data);
  return Result::ok;
}

Result Agent::drop(CommId id) {
  Connection* c = impl_->find_owned(id);
  if (c == nullptr || (c->state != State::req_rcvd && c->state != State::sidr_req_rcvd)) return Result::bad_state;
  impl_->erase(*c);
  return Result::ok;
}

// ---- tearing down --------------------------------------------------------------------------------------------------

void Agent::Impl::start_disconnect(Nanos now, Connection& c, Bytes private_data) {
  forget_remote_qp(c);  // the peer may use the QP again as soon as it knows
  c.tid = new_tid(c.id);
  c.answer.reset();
  c.state = State::dreq_sent;
  send_request(now, c, MessageType::dreq, make_mad(c.tid, DreqMessage{c.id, c.remote_id, c.remote_qpn}, private_data));
}

void Agent::Impl::send_drep(Nanos now, Connection& c, Bytes private_data) {
  send_answer(c, MessageType::drep, make_mad(c.tid, DrepMessage{c.id, c.remote_id}, private_data));
  to_timewait(now, c);
}

Result Agent::disconnect(Nanos now, CommId id, Bytes private_data) {
  Connection* c = impl_->find_owned(id);
  if (c == nullptr) return Result::bad_state;
  if (c->state == State::dreq_rcvd) return confirm_disconnect(now, id, private_data);
  if (c->state != State::established) return Result::bad_state;
  if (private_data.size() > kDreqPrivateData) return Result::bad_argument;
  impl_->start_disconnect(now, *c, private_data);
  return Result::ok;
}

Result Agent::confirm_disconnect(Nanos now, CommId id, Bytes private_data) {
  Connection* c = impl_->find_owned(id);
  if (c == nullptr || c->state != State::dreq_rcvd) return Result::bad_state;
  if (private_data.size() > kDrepPrivateData) return Result::bad_argument;
  impl_->send_drep(now, *c, private_data);
  return Result::ok;
}

void Agent::destroy(Nanos now, CommId id) {
  Impl& a = *impl_;
  if (const auto l = a.listeners.find(id); l != a.listeners.end()) {
    a.exact_listeners.erase(l->second.service_id);
    a.masked_listeners.erase(id);
    a.listeners.erase(l);
    std::vector<CommId> waiting;
    for (const auto& [of, e] : a.events) {
      if (e.listener == id) waiting.push_back(of);
    }
    for (const CommId of : waiting) {
      if (a.find(of)->state == State::req_rcvd) a.start_reject(now, *a.find(of), RejReason::invalid_service_id, {}, {});
      destroy(now, of);
    }
    return;
  }
  Connection* c = a.find_owned(id);
  if (c == nullptr) return;
  switch (c->state) {
    case State::idle:
    case State::timewait:
    case State::dreq_sent:
    case State::listen:
      break;
    case State::established:
      a.start_disconnect(now, *c, {});
      break;
    case State::dreq_rcvd:
      a.send_drep(now, *c, {});
      break;
    case State::sidr_req_sent:
      a.to_idle(now, *c);
      break;
    case State::sidr_req_rcvd: {
      SidrRepParams refusal;
      refusal.status = SidrStatus::rejected;
      a.start_sidr_reply(now, *c, refusal);
      break;
    }
    default:
      a.start_reject(now, *c, RejReason::consumer_defined, {}, {});
      break;
  }
  a.release(*c);
}

// ---- QP attributes -------------------------------------------------------------------------------------------------

namespace {

bool knows_path(State s) {
  switch (s) {
    case State::req_rcvd:
    case State::mra_req_sent:
    case State::rep_rcvd:
    case State::mra_rep_sent:
    case State::rep_sent:
    case State::mra_rep_rcvd:
    case State::established:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result Agent::qp_setup(CommId id, QpTarget target, QpSetup* out) const {
  const Connection* c = impl_->find(id);
  if (c == nullptr || !c->owned) return Result::bad_state;
  const bool asked = c->state == State::req_sent || c->state == State::mra_req_rcvd;
  if (!knows_path(c->state) && !(asked && target == QpTarget::init)) return Result::bad_state;
  const bool initiator = c->transport == Transport::rc || (c->transport == Transport::xrc && !c->passive);
  const bool target_qp = c->transport == Transport::rc || (c->transport == Transport::xrc && c->passive);
  QpSetup s;
  s.path = c->path;
  s.route = c->route;
  s.mask = QpSetup::kState;
  switch (target) {
    case QpTarget::init:
      s.mask |= QpSetup::kAccessFlags | QpSetup::kPkeyIndex | QpSetup::kPort;
      s.remote_write = true;
      s.remote_read = s.remote_atomic = c->responder_resources != 0;
      break;
    case QpTarget::rtr:
      s.mask |= QpSetup::kAv | QpSetup::kPathMtu | QpSetup::kDestQpn | QpSetup::kRqPsn;
      s.path_mtu = c->path_mtu;
      s.dest_qpn = c->remote_qpn;
      s.rq_psn = c->rq_psn;
      if (target_qp) {
        s.mask |= QpSetup::kMaxDestRdAtomic | QpSetup::kMinRnrTimer;
        s.max_dest_rd_atomic = c->responder_resources;
      }
      break;
    case QpTarget::rts:
      s.mask |= QpSetup::kSqPsn;
      s.sq_psn = c->sq_psn;
      if (initiator) {
        s.mask |= QpSetup::kRetryCnt | QpSetup::kRnrRetry | QpSetup::kMaxRdAtomic;
        s.retry_cnt = c->retry_count;
        s.rnr_retry = c->rnr_retry_count;
        s.max_rd_atomic = c->initiator_depth;
      }
      if (c->transport != Transport::uc) {
        s.mask |= QpSetup::kTimeout;
        s.timeout = c->ack_timeout;
      }
      break;
    default:
      return Result::bad_argument;
  }
  *out = s;
  return Result::ok;
}

}  // namespace softrnic::cm
