#include <algorithm>

#include "protocols/cm/agent_impl.h"

namespace softrnic::cm {

namespace {

constexpr Nanos kShortestWait = 1'000'000;

// A permutation of the 32-bit numbers: IDs in an order that does not show.
std::uint32_t mix(std::uint32_t v) {
  v = (v ^ v >> 16) * 0x85EBCA6Bu;
  v = (v ^ v >> 13) * 0xC2B2AE35u;
  return v ^ v >> 16;
}

}  // namespace

std::uint8_t ack_timeout_code(std::uint8_t ca_ack_delay, std::uint8_t packet_life_time) {
  // The sum of two powers of two as the next code: one more only where both are of about the same size.
  const unsigned delay = ca_ack_delay, twice = packet_life_time + 1u;
  const unsigned greater = std::max(delay, twice), less = std::min(delay, twice);
  return static_cast<std::uint8_t>(std::min(31u, greater + (less + 1 >= greater ? 1 : 0)));
}

Agent::Impl::Impl(const AgentOptions& o)
    : options(o), id_scramble(mix(static_cast<std::uint32_t>(o.seed ^ o.seed >> 32) + 0x9E3779B9u)) {
  store_be64(guid_, o.ca_guid);
}

CommId Agent::Impl::new_id() {
  for (;;) {
    const CommId id = mix(id_counter++ ^ id_scramble);
    if (id != kNoId && !connections.contains(id) && !listeners.contains(id)) return id;
  }
}

Connection* Agent::Impl::create() {
  if (connections.size() >= options.max_ids) {
    if (resting.empty()) return nullptr;
    erase(*find(resting.begin()->second));
  }
  auto c = std::make_unique<Connection>();
  c->id = new_id();
  Connection* p = c.get();
  connections.emplace(c->id, std::move(c));
  return p;
}

Connection* Agent::Impl::find(CommId id) {
  const auto it = connections.find(id);
  return it == connections.end() ? nullptr : it->second.get();
}

const Connection* Agent::Impl::find(CommId id) const {
  const auto it = connections.find(id);
  return it == connections.end() ? nullptr : it->second.get();
}

Connection* Agent::Impl::find_owned(CommId id) {
  Connection* c = find(id);
  return c != nullptr && c->owned ? c : nullptr;
}

void Agent::Impl::set_deadline(Connection& c, Nanos when) {
  if (c.deadline != kNever) timers.erase({c.deadline, c.id});
  c.deadline = when;
  if (when != kNever) timers.emplace(when, c.id);
  rest(c);
}

void Agent::Impl::rest(Connection& c) {
  const Nanos key = !c.owned && c.resting() ? c.deadline : kNever;
  if (key == c.resting_key) return;
  if (c.resting_key != kNever) resting.erase({c.resting_key, c.id});
  if (key != kNever) resting.emplace(key, c.id);
  c.resting_key = key;
}

void Agent::Impl::remember_remote_qp(Connection& c) {
  remote_qps[{c.remote_ca_guid, c.remote_qpn}] = c.id;
  c.knows_remote_qp = true;
}

void Agent::Impl::forget_remote_qp(Connection& c) {
  if (!std::exchange(c.knows_remote_qp, false)) return;
  const auto it = remote_qps.find({c.remote_ca_guid, c.remote_qpn});
  if (it != remote_qps.end() && it->second == c.id) remote_qps.erase(it);
}

void Agent::Impl::forget_remote(Connection& c) {
  forget_remote_qp(c);
  if (std::exchange(c.knows_remote_id, false)) remote_ids.erase({c.remote_ca_guid, c.remote_id});
  if (std::exchange(c.knows_sidr, false)) remote_sidrs.erase({c.route.remote_gid, c.remote_id});
}

void Agent::Impl::erase(Connection& c) {
  drop_events(c);
  forget_remote(c);
  set_deadline(c, kNever);
  connections.erase(c.id);
}

void Agent::Impl::stop_request(Connection& c) {
  c.request.reset();
  set_deadline(c, kNever);
}

void Agent::Impl::to_idle(Nanos now, Connection& c, Nanos remember) {
  stop_request(c);
  forget_remote_qp(c);
  c.state = State::idle;
  if (remember == 0) {
    forget_remote(c);
    c.answer.reset();
  } else {
    set_deadline(c, now + remember);
  }
}

void Agent::Impl::to_timewait(Nanos now, Connection& c) {
  stop_request(c);
  forget_remote_qp(c);
  c.state = State::timewait;
  set_deadline(c, now + capped(c.ack_timeout));
}

void Agent::Impl::drop_events(Connection& c) {
  if (std::exchange(c.events, 0) == 0) return;
  std::erase_if(events, [&c](const auto& e) { return e.first == c.id; });
}

void Agent::Impl::release(Connection& c) {
  drop_events(c);
  c.owned = false;
  if (c.deadline == kNever) return erase(c);
  rest(c);
}

Nanos Agent::Impl::capped(unsigned code) const {
  return std::max(kShortestWait, time_of_code(std::min<unsigned>(code, options.max_time_code)));
}

CommId Agent::Impl::find_listener(std::uint64_t service) const {
  if (const auto it = exact_listeners.find(service); it != exact_listeners.end()) return it->second;
  for (const auto& [id, listener] : masked_listeners) {
    if ((service & listener.mask) == listener.service_id) return id;
  }
  return kNoId;
}

// ---- output and events ---------------------------------------------------------------------------------------------

void Agent::Impl::transmit(const mad::MadRoute& route, const Mad& m, MessageType type, bool again) {
  output.push_back({route, m});
  ++counters.tx_msgs[static_cast<std::size_t>(type)];
  if (again) ++counters.tx_retries[static_cast<std::size_t>(type)];
}

void Agent::Impl::answer(const mad::MadRoute& route, const Mad& m, MessageType type, bool again) {
  if (output.size() >= options.max_output) {
    ++counters.output_dropped;
    return;
  }
  transmit(route, m, type, again);
}

void Agent::Impl::send_request(Nanos now, Connection& c, MessageType type, const Mad& m) {
  c.request = std::make_unique<Mad>(m);
  c.request_type = type;
  c.retries_left = c.max_retries;
  c.mra_honoured = false;
  transmit(c.route, m, type);
  set_deadline(c, now + c.interval);
}

void Agent::Impl::keep_answer(Connection& c, MessageType type, const Mad& m) {
  c.answer = std::make_unique<Mad>(m);
  c.answer_type = type;
}

void Agent::Impl::send_answer(Connection& c, MessageType type, const Mad& m) {
  keep_answer(c, type, m);
  transmit(c.route, m, type);
}

void Agent::Impl::repeat_answer(const Connection& c) {
  if (c.answer != nullptr) answer(c.route, *c.answer, c.answer_type, true);
}

Event& Agent::Impl::event(Connection& c, EventKind kind) {
  Event* e = &scratch;
  if (c.owned) {
    e = &events.emplace_back(c.id, Event{}).second;
    ++c.events;
  }
  e->kind = kind;
  e->id = c.id;
  e->state = c.state;
  return *e;
}

// ---- time -----------------------------------------------------------------------------------------------------------

void Agent::Impl::on_deadline(Nanos now, Connection& c) {
  if (c.state == State::timewait || c.state == State::idle) {
    const bool was_timewait = c.state == State::timewait;
    to_idle(now, c);
    if (!c.owned) return erase(c);
    if (was_timewait) event(c, EventKind::timewait_exit);
    return;
  }
  if (c.retries_left == 0) return on_retries_exhausted(now, c);
  --c.retries_left;
  c.mra_honoured = false;
  transmit(c.route, *c.request, c.request_type, true);
  set_deadline(c, now + c.interval);
}

void Agent::Impl::on_retries_exhausted(Nanos now, Connection& c) {
  switch (c.state) {
    case State::req_sent:
    case State::mra_req_rcvd:
      start_reject(now, c, RejReason::timeout, guid_bytes(), {});
      event(c, EventKind::req_error);
      break;
    case State::rep_sent:
    case State::mra_rep_rcvd:
      take_back_rep(now, c, RejReason::timeout, guid_bytes(), {});
      event(c, EventKind::rep_error);
      break;
    case State::dreq_sent:
      to_timewait(now, c);
      if (!c.silent) event(c, EventKind::dreq_error);
      break;
    default:  // sidr_req_sent: nothing else repeats
      to_idle(now, c);
      event(c, EventKind::sidr_req_error);
      break;
  }
}

Nanos Agent::next_timeout() const { return impl_->timers.empty() ? kNever : impl_->timers.begin()->first; }

void Agent::on_timeout(Nanos now) {
  while (!impl_->timers.empty() && impl_->timers.begin()->first <= now) {
    impl_->on_deadline(now, *impl_->find(impl_->timers.begin()->second));
  }
}

// ---- the rest of the interface -------------------------------------------------------------------------------------

Agent::Agent(const AgentOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Agent::~Agent() = default;

bool Agent::poll_transmit(Nanos, mad::OutMad* out) {
  if (impl_->output.empty()) return false;
  *out = impl_->output.front();
  impl_->output.pop_front();
  return true;
}

bool Agent::poll_event(Event* out) {
  if (impl_->events.empty()) return false;
  *out = impl_->events.front().second;
  --impl_->find(impl_->events.front().first)->events;
  impl_->events.pop_front();
  return true;
}

const Counters& Agent::counters() const { return impl_->counters; }
std::size_t Agent::size() const { return impl_->connections.size(); }

State Agent::state(CommId id) const {
  if (impl_->listeners.contains(id)) return State::listen;
  const Connection* c = impl_->find(id);
  return c == nullptr ? State::idle : c->state;
}

CommId Agent::remote_id(CommId id) const {
  const Connection* c = impl_->find(id);
  return c == nullptr ? kNoId : c->remote_id;
}

std::uint32_t Agent::remote_qpn(CommId id) const {
  const Connection* c = impl_->find(id);
  return c == nullptr ? 0 : c->remote_qpn;
}

std::uint64_t Agent::service_id(CommId id) const {
  if (const auto it = impl_->listeners.find(id); it != impl_->listeners.end()) return it->second.service_id;
  const Connection* c = impl_->find(id);
  return c == nullptr ? 0 : c->service_id;
}

}  // namespace softrnic::cm
