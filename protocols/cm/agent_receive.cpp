// Messages of connections that exist already; agent_req.cpp has those that make them.
#include <algorithm>

#include "protocols/cm/agent_impl.h"

namespace softrnic::cm {

bool Agent::on_mad(Nanos now, const mad::MadRoute& route, Bytes bytes) {
  Impl& a = *impl_;
  if (bytes.size() < mad::MadHeader::kSize) {
    ++a.counters.malformed;
    return false;
  }
  const mad::MadHeader header = mad::MadHeader::read(bytes.data());
  if (header.mgmt_class != mad::MgmtClass::cm) return false;
  const unsigned type = static_cast<unsigned>(header.attribute_id) - kFirstAttribute;
  if (bytes.size() < mad::kMadSize || header.base_version != mad::kBaseVersion || header.method != mad::Method::send ||
      type >= kMessageTypes) {
    ++a.counters.malformed;
    return true;
  }
  a.receive({now, route, header, bytes.data() + mad::MadHeader::kSize}, static_cast<MessageType>(type));
  return true;
}

void Agent::Impl::receive(const In& in, MessageType type) {
  if (in.header.class_version != kClassVersion) {
    ++counters.malformed;
    // What other versions have in common is where the requester's ID lies.
    if (type == MessageType::req) {
      send_rej(in, kNoId, load_be32(in.data), MessageRef::req, RejReason::invalid_class_version);
    }
    return;
  }
  ++counters.rx_msgs[static_cast<std::size_t>(type)];
  switch (type) {
    case MessageType::req:
      return on_req(in);
    case MessageType::mra:
      return on_mra(in);
    case MessageType::rej:
      return on_rej(in);
    case MessageType::rep:
      return on_rep(in);
    case MessageType::rtu:
      return on_rtu(in);
    case MessageType::dreq:
      return on_dreq(in);
    case MessageType::drep:
      return on_drep(in);
    case MessageType::sidr_req:
      return on_sidr_req(in);
    case MessageType::sidr_rep:
      return on_sidr_rep(in);
    case MessageType::lap:
      return on_lap(in);
    case MessageType::apr:
      return;  // the answer to a LAP, which this agent never sends
  }
}

bool Agent::Impl::from_peer(const In& in, const Connection& c) {
  if (in.route.remote_gid == c.route.remote_gid) return true;
  ++counters.wrong_source;
  return false;
}

Connection* Agent::Impl::match(const In& in, CommId local_id, CommId remote_id) {
  Connection* c = find(local_id);
  if (c == nullptr || c->remote_id != remote_id || !from_peer(in, *c)) return nullptr;
  return c;
}

void Agent::Impl::send_rej(const In& in, CommId local_id, CommId remote_id, MessageRef message, RejReason reason) {
  RejMessage m{local_id, remote_id, message, 0, reason};
  std::uint8_t highest_version[1] = {kClassVersion};
  Bytes info;
  if (reason == RejReason::invalid_class_version) info = highest_version;
  m.info_length = static_cast<std::uint8_t>(info.size());
  answer(in.route, make_mad(in.header.transaction_id, m, {}, info), MessageType::rej);
}

void Agent::Impl::on_mra(const In& in) {
  const MraMessage m = MraMessage::read(in.data);
  const bool req = m.message == MessageRef::req;
  Connection* c = match(in, m.remote_comm_id, req ? kNoId : m.local_comm_id);
  if (c == nullptr) return;
  const bool first = c->state == (req ? State::req_sent : State::rep_sent);
  const bool later = c->state == (req ? State::mra_req_rcvd : State::mra_rep_rcvd);
  if (!first && !later) return;
  // One for each transmission: how long a peer can put things off has an end.
  if (std::exchange(c->mra_honoured, true)) return duplicate(MessageType::mra);
  c->state = req ? State::mra_req_rcvd : State::mra_rep_rcvd;
  set_deadline(*c, in.now + capped(m.service_timeout) + capped(c->ack_timeout));
  if (later) return duplicate(MessageType::mra);
  Event& e = event(*c, EventKind::mra_received);
  e.service_timeout = m.service_timeout;
  fill_data<MraMessage>(in, e);
}

void Agent::Impl::on_rej(const In& in) {
  const RejMessage m = RejMessage::read(in.data);
  Connection* c = nullptr;
  if (m.reason == RejReason::timeout) {
    // The peer may not know this side's ID, but its own GUID.
    const auto it = remote_ids.find({load_be64(in.data + RejMessage::kInfo), m.local_comm_id});
    if (it != remote_ids.end()) c = find(it->second);
    if (c != nullptr && !from_peer(in, *c)) return;
  }
  if (c == nullptr && m.message != MessageRef::req) c = match(in, m.remote_comm_id, m.local_comm_id);
  // Of the REQ, or of a REP that was taken back and has not arrived.
  if (c == nullptr && m.message != MessageRef::rep) c = match(in, m.remote_comm_id, kNoId);
  if (c == nullptr) return;
  switch (c->state) {
    case State::req_sent:
    case State::mra_req_rcvd:
      if (m.reason == RejReason::stale_connection) {
        to_timewait(in.now, *c);
      } else {
        to_idle(in.now, *c);
      }
      break;
    case State::req_rcvd:
    case State::mra_req_sent:
      c->answer.reset();
      to_idle(in.now, *c, 2 * c->peer_interval);
      break;
    case State::rep_sent:
    case State::mra_rep_rcvd:
    case State::rep_rcvd:
    case State::mra_rep_sent:
    case State::established:
      to_timewait(in.now, *c);
      break;
    case State::dreq_sent:  // the peer knows nothing of the connection
      to_timewait(in.now, *c);
      if (!c->silent) event(*c, EventKind::drep_received);
      return;
    default:
      return duplicate(MessageType::rej);
  }
  Event& e = event(*c, EventKind::rej_received);
  e.reason = m.reason;
  e.rejected = m.message;
  e.ari_length = static_cast<std::uint8_t>(std::min<std::size_t>(m.info_length, kAriSize));
  std::copy_n(in.data + RejMessage::kInfo, e.ari_length, e.ari.begin());
  fill_data<RejMessage>(in, e);
}

void Agent::Impl::on_rtu(const In& in) {
  const RtuMessage m = RtuMessage::read(in.data);
  Connection* c = match(in, m.remote_comm_id, m.local_comm_id);
  if (c == nullptr) return;
  if (c->state != State::rep_sent && c->state != State::mra_rep_rcvd) return duplicate(MessageType::rtu);
  stop_request(*c);
  c->state = State::established;
  remember_remote_qp(*c);
  fill_data<RtuMessage>(in, event(*c, EventKind::rtu_received));
}

void Agent::Impl::on_dreq(const In& in) {
  const DreqMessage m = DreqMessage::read(in.data);
  Connection* c = match(in, m.remote_comm_id, m.local_comm_id);
  const State state = c == nullptr ? State::idle : c->state;
  if (c != nullptr && c->local_qpn != m.remote_qpn) return;
  switch (state) {
    case State::rep_sent:
    case State::mra_rep_rcvd:
    case State::established:
      stop_request(*c);
      forget_remote_qp(*c);
      c->tid = in.header.transaction_id;
      c->state = State::dreq_rcvd;
      fill_data<DreqMessage>(in, event(*c, EventKind::dreq_received));
      return;
    case State::dreq_sent:  // both at once
      c->tid = in.header.transaction_id;
      send_drep(in.now, *c, {});
      if (!c->silent) fill_data<DreqMessage>(in, event(*c, EventKind::drep_received));
      return;
    case State::rep_rcvd:
    case State::mra_rep_sent: {  // the peer took its REP back, and its REJ was lost
      c->tid = in.header.transaction_id;
      send_drep(in.now, *c, {});
      Event& e = event(*c, EventKind::rej_received);
      e.rejected = MessageRef::other;
      fill_data<DreqMessage>(in, e);
      return;
    }
    case State::dreq_rcvd:
      return duplicate(MessageType::dreq);
    case State::timewait:
      duplicate(MessageType::dreq);
      if (c->answer_type == MessageType::drep && c->tid == in.header.transaction_id) return repeat_answer(*c);
      [[fallthrough]];
    default:
      // Unknown here, and so it shall be there.
      if (c == nullptr) duplicate(MessageType::dreq);
      answer(in.route, make_mad(in.header.transaction_id, DrepMessage{m.remote_comm_id, m.local_comm_id}),
             MessageType::drep);
      return;
  }
}

void Agent::Impl::on_drep(const In& in) {
  const DrepMessage m = DrepMessage::read(in.data);
  Connection* c = match(in, m.remote_comm_id, m.local_comm_id);
  if (c == nullptr) return;
  if (c->state != State::dreq_sent) return duplicate(MessageType::drep);
  to_timewait(in.now, *c);
  if (!c->silent) fill_data<DrepMessage>(in, event(*c, EventKind::drep_received));
}

// Alternate paths are not supported: every request for one is answered, and refused.
void Agent::Impl::on_lap(const In& in) {
  const LapMessage m = LapMessage::read(in.data);
  const Connection* c = match(in, m.remote_comm_id, m.local_comm_id);
  ApStatus status = ApStatus::unsupported;
  if (c == nullptr) {
    status = ApStatus::invalid_comm_id;
  } else if (c->local_qpn != m.remote_qpn) {
    status = ApStatus::invalid_qpn;
  } else if (c->state != State::established) {
    status = ApStatus::rejected;
  }
  answer(in.route, make_mad(in.header.transaction_id, AprMessage{m.remote_comm_id, m.local_comm_id, 0, status}),
         MessageType::apr);
}

}  // namespace softrnic::cm
