// Service ID resolution: from a service ID to a datagram queue pair and its Q_Key.
#include <algorithm>

#include "protocols/cm/agent_impl.h"

namespace softrnic::cm {

Result Agent::sidr_request(Nanos now, const SidrReqParams& p, CommId* id) {
  Impl& a = *impl_;
  if (p.max_cm_retries > 15 || p.timeout == 0 || p.private_data.size() > kSidrReqPrivateData) {
    return Result::bad_argument;
  }
  Connection* c = a.create();
  if (c == nullptr) return Result::no_room;
  *id = c->id;
  c->service_id = p.service_id;
  c->route = p.route;
  c->max_retries = p.max_cm_retries;
  c->interval = p.timeout;
  c->tid = a.new_tid(c->id);
  c->state = State::sidr_req_sent;
  a.send_request(now, *c, MessageType::sidr_req,
                 make_mad(c->tid, SidrReqMessage{c->id, p.route.pkey, p.service_id}, p.private_data));
  return Result::ok;
}

Result Agent::sidr_reply(Nanos now, CommId id, const SidrRepParams& p) {
  Connection* c = impl_->find_owned(id);
  if (c == nullptr || c->state != State::sidr_req_rcvd) return Result::bad_state;
  if (p.qpn > 0xFFFFFF || p.ece.vendor_id > 0xFFFFFF || p.info.size() > kAriSize ||
      p.private_data.size() > kSidrRepPrivateData) {
    return Result::bad_argument;
  }
  impl_->start_sidr_reply(now, *c, p);
  return Result::ok;
}

void Agent::Impl::start_sidr_reply(Nanos now, Connection& c, const SidrRepParams& p) {
  const SidrRepMessage m{.request_id = c.remote_id,
                         .status = p.status,
                         .info_length = static_cast<std::uint8_t>(p.info.size()),
                         .vendor_id = p.ece.vendor_id,
                         .qpn = p.qpn,
                         .service_id = c.service_id,
                         .qkey = p.qkey};
  send_answer(c, MessageType::sidr_rep, make_mad(c.tid, m, p.private_data, p.info, p.ece.attr_mod));
  to_idle(now, c, options.sidr_linger);
}

void Agent::Impl::on_sidr_req(const In& in) {
  const SidrReqMessage m = SidrReqMessage::read(in.data);
  const std::pair<Gid, CommId> key{in.route.remote_gid, m.request_id};
  if (const auto it = remote_sidrs.find(key); it != remote_sidrs.end()) {
    Connection& known = *find(it->second);
    if (known.state != State::idle || known.tid == in.header.transaction_id) {
      duplicate(MessageType::sidr_req);
      if (known.state == State::idle) repeat_answer(known);
      return;
    }
    remote_sidrs.erase(it);  // answered long ago: the peer uses the ID again
    known.knows_sidr = false;
  }
  const CommId listener = find_listener(m.service_id);
  if (listener == kNoId) {
    SidrRepMessage reply;
    reply.request_id = m.request_id;
    reply.status = SidrStatus::unsupported;
    reply.service_id = m.service_id;
    return answer(in.route, make_mad(in.header.transaction_id, reply), MessageType::sidr_rep);
  }
  Connection* c = create();
  if (c == nullptr) {
    ++counters.no_room;
    return;
  }
  c->passive = true;
  c->state = State::sidr_req_rcvd;
  c->listener = listener;
  c->service_id = m.service_id;
  c->route = in.route;
  c->tid = c->req_tid = in.header.transaction_id;
  c->remote_id = m.request_id;
  remote_sidrs[key] = c->id;
  c->knows_sidr = true;
  Event& e = event(*c, EventKind::sidr_req_received);
  e.listener = listener;
  e.service_id = m.service_id;
  e.pkey = m.pkey;
  e.route = in.route;
  fill_data<SidrReqMessage>(in, e);
}

void Agent::Impl::on_sidr_rep(const In& in) {
  const SidrRepMessage m = SidrRepMessage::read(in.data);
  Connection* c = match(in, m.request_id, kNoId);
  if (c == nullptr) return;
  if (c->state != State::sidr_req_sent) return duplicate(MessageType::sidr_rep);
  to_idle(in.now, *c);
  Event& e = event(*c, EventKind::sidr_rep_received);
  e.sidr_status = m.status;
  e.remote_qpn = m.qpn;
  e.remote_qkey = m.qkey;
  e.ece = {m.vendor_id, in.header.attribute_modifier};
  e.route = in.route;
  e.ari_length = static_cast<std::uint8_t>(std::min<std::size_t>(m.info_length, kAriSize));
  std::copy_n(in.data + SidrRepMessage::kInfo, e.ari_length, e.ari.begin());
  fill_data<SidrRepMessage>(in, e);
}

}  // namespace softrnic::cm
