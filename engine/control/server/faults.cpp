// Fault rules: how they come and go. While there are any, every VF sends through the eSwitch.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "engine/control/server/server.h"
#include "engine/observe/fault_parser.h"
#include "protocols/ib/opcode.h"

namespace softrnic::control {

bool NicHost::Impl::on_fault_add(Session& s, const Request& r) {
  FaultAddRequest request{};
  if (r.body.size() < sizeof(request)) return false;
  std::memcpy(&request, r.body.data(), sizeof(request));
  if ((request.flags & ~kFaultOfConnection) != 0) return false;
  const std::string_view text(reinterpret_cast<const char*>(r.body.data()) + sizeof(request),
                              r.body.size() - sizeof(request));
  std::vector<observe::FaultRule> rules;
  std::string why;
  if (!observe::parse_fault_rules(text, &rules, &why)) {
    s.send(MsgType::fault_add, r.header.seq, EINVAL, why.data(), why.size());
    return true;
  }
  FaultAddReply reply{};
  for (observe::FaultRule& rule : rules) {
    const std::string rule_text = rule.text;
    const std::uint32_t id = faults->add(std::move(rule));
    if (reply.count++ == 0) reply.first_id = id;
    if ((request.flags & kFaultOfConnection) != 0) session_faults[s.id()].push_back(id);
    tell("fault-added", {{"fault", id}, {"rule", rule_text}}, fmt::format("fault {} added: {}", id, rule_text));
  }
  routes.change(RouteMode::via_switch, [this, session = s.id(), seq = r.header.seq, reply] {
    const auto it = sessions.find(session);
    if (it != sessions.end()) it->second->send(MsgType::fault_add, seq, 0, &reply, sizeof(reply));
  });
  return true;
}

bool NicHost::Impl::on_fault_del(Session& s, const Request& r) {
  FaultDelRequest request{};
  if (r.body.size() != sizeof(request)) return false;
  std::memcpy(&request, r.body.data(), sizeof(request));
  int status = 0;
  if (request.id != 0) {
    if (!remove_fault(request.id)) status = ENOENT;
  } else {
    for (const observe::FaultStatus& f : faults->list()) remove_fault(f.id);
  }
  after_fault_removal();
  s.send(MsgType::fault_del, r.header.seq, status);
  return true;
}

bool NicHost::Impl::remove_fault(std::uint32_t id) {
  if (!faults->remove(id)) return false;
  tell("fault-removed", {{"fault", id}}, fmt::format("fault {} removed", id));
  return true;
}

void NicHost::Impl::after_fault_removal() {
  eswitch->wake();
  review_route();
}

void NicHost::Impl::remove_faults_of(std::uint64_t session) {
  const auto it = session_faults.find(session);
  if (it == session_faults.end()) return;
  for (const std::uint32_t id : it->second) remove_fault(id);
  session_faults.erase(it);
  after_fault_removal();
}

// Takes over what the switch's thread has reported.
void NicHost::Impl::collect_fault_events() {
  std::uint64_t lost = 0;
  for (const observe::FaultEvent& e : faults->take_events(&lost)) {
    const ib::OpcodeInfo& info = ib::opcode_info(e.opcode);
    const std::string op = info.known() ? info.name : fmt::format("opcode {:#04x}", e.opcode);
    const std::string from =
        e.from.vf != dp::kNoVf ? fmt::format("vf{}", e.from.vf) : fmt::format("port{}", e.from.uplink);
    tell("fault",
         {{"fault", e.rule},
          {"what", e.what},
          {"from", from},
          {"opcode", e.opcode},
          {"op", op},
          {"qp", e.dest_qpn},
          {"psn", e.psn}},
         fmt::format("fault {}: {} from {} to QP 0x{:06x} PSN {} {}", e.rule, op, from, e.dest_qpn, e.psn, e.what),
         false);
  }
  if (lost != 0) tell("faults-lost", {{"count", lost}}, fmt::format("{} more faults were applied", lost), false);
}

}  // namespace softrnic::control
