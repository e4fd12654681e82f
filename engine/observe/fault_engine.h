// Applies fault rules to packets. No clock, no threads, and randomness from the rules' seeds only: the same packets at
// the same times are treated alike every time.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/observe/fault_rule.h"
#include "engine/observe/flow_tracker.h"
#include "engine/switch/disturber.h"

namespace softrnic::observe {

// A fault that was applied to a packet.
struct FaultEvent {
  std::uint32_t rule = 0;
  std::string what;  // e.g. "dropped"
  sw::Ingress from;
  std::uint8_t opcode = 0;
  std::uint32_t dest_qpn = 0;
  std::uint32_t psn = 0;
};

struct FaultStatus {
  std::uint32_t id = 0;
  std::string text;
  std::uint64_t matched = 0;  // packets that fulfil the conditions on the packet itself
  std::uint64_t applied = 0;  // faults
  std::uint64_t left = 0;     // until it is used up
};

// All rules look at a packet as it came. Those that apply act in the order in which they were added: changes add up,
// the first drop ends it, the first rule that holds the packet back decides until when.
class FaultEngine {
 public:
  explicit FaultEngine(std::function<void(const FaultEvent&)> on_applied) : on_applied_(std::move(on_applied)) {}

  // Rules are numbered from 1 and never again with the same number.
  std::uint32_t add(FaultRule rule);
  // What the rule holds back is due at once. False when there is no such rule.
  bool remove(std::uint32_t id);
  std::vector<FaultStatus> list() const;
  std::size_t size() const { return rules_.size(); }
  // No rules, and nothing held back.
  bool idle() const { return rules_.empty() && held_.empty(); }

  void on_frame(Nanos now, const sw::Passing& p, sw::FrameSink& out);
  Nanos next_timeout() const { return held_.empty() ? kNever : held_.begin()->first; }
  void on_timeout(Nanos now, sw::FrameSink& out);
  // Drops what is held back for a VF that is gone.
  void forget(std::uint16_t vf);

  static constexpr std::size_t kMaxHeldBytes = 64u << 20;  // what is to be held back beyond that is dropped

 private:
  struct Rule {
    Rule(std::uint32_t i, FaultRule r) : id(i), rule(std::move(r)), left(rule.match.times), rng(rule.match.seed) {}
    std::uint32_t id;
    FaultRule rule;
    std::uint64_t matched = 0, applied = 0, left;
    std::mt19937_64 rng;
    FlowTracker flows;
  };
  // What the rules have decided about a packet.
  struct Outcome {
    std::uint8_t opcode = 0;  // before any change, as the two below
    std::uint32_t dest_qpn = 0, psn = 0;
    bool dropped = false;
    std::uint32_t copies = 0;
    const Rule* holder = nullptr;
    std::string comment;
  };
  struct Held {
    sw::Passing passing;
    std::vector<std::uint8_t> bytes;
    std::vector<std::uint16_t> vfs;
    std::string comment;
    std::uint32_t copies = 0;
    std::uint32_t rule = 0;
    FlowKey flow;
    std::uint32_t behind = 0;  // reorder: later packets of the flow that are still to pass
  };
  using HeldMap = std::multimap<Nanos, std::unique_ptr<Held>>;

  bool selects(Rule& r, const sw::Passing& p, const Packet& packet);
  void apply(Rule& r, const sw::Passing& p, Packet* packet, Outcome* o);
  void report(Rule& r, const sw::Passing& p, const std::string& what, Outcome* o);
  bool hold(Nanos now, const sw::Passing& p, MutableBytes frame, const FlowKey& flow, Outcome& o);
  void emit(const sw::Passing& p, MutableBytes frame, std::string_view comment, std::uint32_t copies,
            sw::FrameSink& out);
  std::unique_ptr<Held> take_out(HeldMap::iterator it);
  void release(HeldMap::iterator it, sw::FrameSink& out);
  void passed(const FlowKey& flow, sw::FrameSink& out);

  std::function<void(const FaultEvent&)> on_applied_;
  std::list<Rule> rules_;
  std::uint32_t next_id_ = 1;
  HeldMap held_;
  std::size_t held_bytes_ = 0;
  std::vector<HeldMap::iterator> reordering_;  // of held_
  std::vector<Rule*> chosen_;                  // for the packet at hand
};

}  // namespace softrnic::observe
