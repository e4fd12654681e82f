#include "engine/observe/fault_engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/observe/fault_action.h"
#include "protocols/common/psn.h"

namespace softrnic::observe {
namespace {

using Kind = FaultAction::Kind;

std::string time_text(Nanos t) {
  if (t % 1'000'000'000 == 0) return fmt::format("{} s", t / 1'000'000'000);
  if (t % 1'000'000 == 0) return fmt::format("{} ms", t / 1'000'000);
  if (t % 1'000 == 0) return fmt::format("{} us", t / 1'000);
  return fmt::format("{} ns", t);
}

bool is_from(const PartyPattern& pattern, const sw::Ingress& from) {
  if (pattern.sort == PartyPattern::Sort::vf)
    return from.vf != dp::kNoVf && (!pattern.number || *pattern.number == from.vf);
  return from.uplink != sw::kNoUplink && (!pattern.number || static_cast<int>(*pattern.number) == from.uplink);
}

bool is_to(const PartyPattern& pattern, const sw::Verdict& to) {
  if (pattern.sort == PartyPattern::Sort::port)
    return to.uplink != sw::kNoUplink && (!pattern.number || static_cast<int>(*pattern.number) == to.uplink);
  return std::any_of(to.destinations.begin(), to.destinations.end(),
                     [&](std::uint16_t vf) { return !pattern.number || *pattern.number == vf; });
}

bool is_one_of(const std::vector<OpPattern>& ops, const Packet& packet) {
  std::uint64_t syndrome = 0;
  static const Field* field = find_field("aeth.syndrome");
  read_field(packet, *field, &syndrome);
  syndrome &= 0x7F;  // bit 7 is reserved (IBA 9.7.5.1.3)
  return std::any_of(ops.begin(), ops.end(), [&](const OpPattern& op) {
    return op.opcodes.test(packet.opcode()) && op.syndrome.contains(syndrome);
  });
}

bool has_field(const FieldCondition& c, const Packet& packet) {
  std::uint64_t value = 0;
  return read_field(packet, *c.field, &value) &&
         std::any_of(c.any_of.begin(), c.any_of.end(), [&](const Range& r) { return r.contains(value); });
}

bool stands_at(const FaultMatch& m, const FlowTracker::Place& place, std::uint32_t psn) {
  if (m.message && !m.message->contains(place.message)) return false;
  if (!m.psn) return true;
  const bool by_message = m.psn->base == RelativePsn::Base::message;
  if (by_message && place.message == 0) return false;
  const std::int32_t offset = psn_diff(psn, by_message ? place.message_psn : place.first_psn);
  return offset >= 0 && m.psn->offset.contains(static_cast<std::uint64_t>(offset));
}

}  // namespace

std::uint32_t FaultEngine::add(FaultRule rule) {
  rules_.emplace_back(next_id_, std::move(rule));
  return next_id_++;
}

bool FaultEngine::remove(std::uint32_t id) {
  if (rules_.remove_if([id](const Rule& r) { return r.id == id; }) == 0) return false;
  std::vector<std::unique_ptr<Held>> due;
  for (auto it = held_.begin(); it != held_.end();) {
    const auto next = std::next(it);
    if (it->second->rule == id) due.push_back(take_out(it));
    it = next;
  }
  for (auto& held : due) {
    held->behind = 0;
    held_bytes_ += held->bytes.size();
    held_.emplace(0, std::move(held));
  }
  return true;
}

std::vector<FaultStatus> FaultEngine::list() const {
  std::vector<FaultStatus> out;
  for (const Rule& r : rules_) out.push_back({r.id, r.rule.text, r.matched, r.applied, r.left});
  return out;
}

// Whether the rule applies to the packet. Counts, and draws, as the conditions' order says.
bool FaultEngine::selects(Rule& r, const sw::Passing& p, const Packet& packet) {
  const FaultMatch& m = r.rule.match;
  FlowTracker::Place place;
  if (m.needs_flow()) place = r.flows.observe(p.from, packet);
  if (r.left == 0) return false;
  if (m.from && !is_from(*m.from, p.from)) return false;
  if (m.to && !is_to(*m.to, p.to)) return false;
  if (!m.ops.empty() && !is_one_of(m.ops, packet)) return false;
  if (!std::all_of(m.fields.begin(), m.fields.end(), [&](const FieldCondition& c) { return has_field(c, packet); }))
    return false;
  if (m.needs_flow() && !stands_at(m, place, packet.psn())) return false;
  if (!is_applicable(r.rule.action, packet)) return false;
  ++r.matched;
  if (m.nth && !m.nth->contains(r.matched)) return false;
  if (r.matched % m.every != 0) return false;
  // 53 random bits make a number in [0, 1) that is the same everywhere; the distributions of <random> are not.
  return m.probability >= 1 || static_cast<double>(r.rng() >> 11) * 0x1p-53 < m.probability;
}

void FaultEngine::on_frame(Nanos now, const sw::Passing& p, sw::FrameSink& out) {
  Packet packet;
  if (!packet.parse(p.frame)) return out.pass(p);
  chosen_.clear();
  for (Rule& r : rules_)
    if (selects(r, p, packet)) chosen_.push_back(&r);

  const FlowKey flow = flow_of(p.from, packet);
  Outcome o;
  o.opcode = packet.opcode();
  o.dest_qpn = packet.dest_qpn();
  o.psn = packet.psn();
  for (Rule* r : chosen_) {
    if (o.dropped) break;
    apply(*r, p, &packet, &o);
  }
  if (o.holder != nullptr && !o.dropped && hold(now, p, packet.bytes(), flow, o)) return;
  if (o.dropped) {
    sw::Passing shown = p;
    shown.frame = packet.bytes();
    shown.comment = o.comment;
    shown.dropped = true;
    return out.pass(shown);
  }
  emit(p, packet.bytes(), o.comment, o.copies, out);
  if (!reordering_.empty()) passed(flow, out);
}

void FaultEngine::apply(Rule& r, const sw::Passing& p, Packet* packet, Outcome* o) {
  const FaultAction& a = r.rule.action;
  // An earlier rule may have changed the packet so that this one no longer can.
  if (!is_applicable(a, *packet)) return;
  switch (a.kind) {
    case Kind::drop:
      o->dropped = true;
      return report(r, p, "dropped", o);
    case Kind::duplicate:
      o->copies += a.copies;
      return report(r, p, a.copies == 1 ? "duplicated" : fmt::format("duplicated, {} copies", a.copies), o);
    case Kind::delay:
    case Kind::reorder:
      if (o->holder != nullptr) return;
      o->holder = &r;
      return report(r, p,
                    a.kind == Kind::delay ? fmt::format("delayed by {}", time_text(a.time))
                                          : fmt::format("put behind {} later packet{}, at most for {}", a.packets,
                                                        a.packets == 1 ? "" : "s", time_text(a.time)),
                    o);
    default:
      return report(r, p, change_packet(a, r.rng(), packet), o);
  }
}

void FaultEngine::report(Rule& r, const sw::Passing& p, const std::string& what, Outcome* o) {
  ++r.applied;
  if (r.left != UINT64_MAX) --r.left;
  o->comment += fmt::format("{}fault {}: {}", o->comment.empty() ? "" : "; ", r.id, what);
  if (on_applied_) on_applied_({r.id, what, p.from, o->opcode, o->dest_qpn, o->psn});
}

// False when there is no room: the packet is dropped.
bool FaultEngine::hold(Nanos now, const sw::Passing& p, MutableBytes frame, const FlowKey& flow, Outcome& o) {
  if (held_bytes_ + frame.size() > kMaxHeldBytes) {
    o.dropped = true;
    o.comment += fmt::format("; dropped: {} MiB are held back already", kMaxHeldBytes >> 20);
    return false;
  }
  const FaultAction& a = o.holder->rule.action;
  auto held = std::make_unique<Held>();
  held->bytes.assign(frame.begin(), frame.end());
  held->vfs.assign(p.to.destinations.begin(), p.to.destinations.end());
  held->passing = p;
  held->passing.to.destinations = held->vfs;
  held->comment = std::move(o.comment);
  held->copies = o.copies;
  held->rule = o.holder->id;
  held->flow = flow;
  held->behind = a.kind == Kind::reorder ? a.packets : 0;
  held_bytes_ += frame.size();
  const auto it = held_.emplace(now + a.time, std::move(held));
  if (a.kind == Kind::reorder) reordering_.push_back(it);
  return true;
}

void FaultEngine::emit(const sw::Passing& p, MutableBytes frame, std::string_view comment, std::uint32_t copies,
                       sw::FrameSink& out) {
  sw::Passing passing = p;
  passing.frame = frame;
  passing.comment = comment;
  out.pass(passing);
  if (copies == 0) return;
  const std::string of_copy = std::string(comment) + " (copy)";
  passing.comment = of_copy;
  for (std::uint32_t i = 0; i < copies; ++i) out.pass(passing);
}

std::unique_ptr<FaultEngine::Held> FaultEngine::take_out(HeldMap::iterator it) {
  std::erase(reordering_, it);
  std::unique_ptr<Held> held = std::move(it->second);
  held_.erase(it);
  held_bytes_ -= held->bytes.size();
  return held;
}

void FaultEngine::release(HeldMap::iterator it, sw::FrameSink& out) {
  const std::unique_ptr<Held> held = take_out(it);
  emit(held->passing, MutableBytes(held->bytes), held->comment, held->copies, out);
}

// A packet of the flow has passed: those that were to let it pass may come next.
void FaultEngine::passed(const FlowKey& flow, sw::FrameSink& out) {
  std::vector<HeldMap::iterator> due;
  for (const auto it : reordering_)
    if (it->second->flow == flow && --it->second->behind == 0) due.push_back(it);
  for (const auto it : due) release(it, out);
}

void FaultEngine::on_timeout(Nanos now, sw::FrameSink& out) {
  while (!held_.empty() && held_.begin()->first <= now) release(held_.begin(), out);
}

void FaultEngine::forget(std::uint16_t vf) {
  for (auto it = held_.begin(); it != held_.end();) {
    Held& h = *it->second;
    std::erase(h.vfs, vf);
    h.passing.to.destinations = h.vfs;
    const auto next = std::next(it);
    if (h.vfs.empty() && h.passing.to.uplink == sw::kNoUplink && !h.passing.to.gsi) take_out(it);
    it = next;
  }
}

}  // namespace softrnic::observe
