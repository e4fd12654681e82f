// A fault rule as values. Its text form is that of fault_parser.h.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/observe/packet_fields.h"
#include "engine/switch/disturber.h"

namespace softrnic::observe {

// Inclusive at both ends.
struct Range {
  std::uint64_t first = 0, last = 0;
  bool contains(std::uint64_t v) const { return v >= first && v <= last; }
};

// A VF or an uplink, or all of one sort.
struct PartyPattern {
  enum class Sort : std::uint8_t { vf, port } sort = Sort::vf;
  std::optional<std::uint32_t> number;
};

// Packets of some opcodes; those with an AETH are told apart by its syndrome, too.
struct OpPattern {
  std::bitset<256> opcodes;
  Range syndrome{0, 255};
};

struct FieldCondition {
  const Field* field = nullptr;
  std::vector<Range> any_of;
};

// PSN counted from a base.
struct RelativePsn {
  enum class Base : std::uint8_t { flow, message } base = Base::flow;  // first PSN seen of the flow, or of the message
  Range offset;
};

// All conditions must hold. Those on the packet itself come first; the packets that they leave are counted.
struct FaultMatch {
  std::optional<PartyPattern> from, to;
  std::vector<OpPattern> ops;  // any of them; empty: every packet
  std::vector<FieldCondition> fields;
  std::optional<RelativePsn> psn;
  std::optional<Range> message;  // number of the message of its kind in the flow, from 1

  std::optional<Range> nth;  // of the packets that match all above, from 1
  std::uint64_t every = 1;   // each so many-th of them
  double probability = 1;    // of those
  std::uint64_t seed = 1;
  std::uint64_t times = UINT64_MAX;  // then the rule is used up

  // True when it must know what has passed before.
  bool needs_flow() const { return psn.has_value() || message.has_value(); }
};

struct FieldChange {
  const Field* field = nullptr;
  enum class How : std::uint8_t { assign, add, subtract } how = How::assign;
  std::uint64_t value = 0;
};

struct FaultAction {
  enum class Kind : std::uint8_t { drop, duplicate, delay, reorder, corrupt, truncate, ecn, set };
  Kind kind = Kind::drop;
  std::uint32_t copies = 1;    // duplicate: beside the packet itself
  Nanos time = 0;              // delay: so long; reorder: at most so long
  std::uint32_t packets = 1;   // reorder: behind so many later packets of the flow
  std::optional<Layer> layer;  // corrupt: the bit counts from the start of this; none: a random bit from the BTH on
  std::uint32_t bit = 0;       // the highest bit of the first byte is 0
  bool from_end = false;       // truncate: `length` bytes are cut off
  std::uint32_t length = 0;    // truncate: bytes that stay
  bool recompute = false;      // corrupt, truncate: checksums (and lengths) are made right afterwards
  std::vector<FieldChange> changes;  // set
};

struct FaultRule {
  std::string text;  // as it was given
  FaultAction action;
  FaultMatch match;
};

}  // namespace softrnic::observe
