#include "engine/observe/fault_action.h"

#include <fmt/format.h>

namespace softrnic::observe {
namespace {

using Kind = FaultAction::Kind;

constexpr std::uint64_t kCongestionExperienced = 3;  // RFC 3168 section 5

const Field& ecn_field() {
  static const Field* field = find_field("ip.ecn");
  return *field;
}

bool find_layer(const Packet& p, Layer layer, std::size_t* at, std::size_t* length) {
  return p.find(layer, at, length) || (layer == Layer::ipv4 && p.find(Layer::ipv6, at, length));
}

// The bit of the frame that is to be inverted.
bool find_bit(const FaultAction& action, const Packet& p, std::uint64_t random, std::size_t* bit) {
  std::size_t at = 0, length = 0;
  if (action.layer) {
    if (!find_layer(p, *action.layer, &at, &length) || action.bit >= length * 8) return false;
    *bit = at * 8 + action.bit;
    return true;
  }
  std::size_t end = 0;
  p.find(Layer::icrc, &end, &length);
  end += length;
  p.find(Layer::bth, &at, &length);
  *bit = at * 8 + static_cast<std::size_t>(random % ((end - at) * 8));
  return true;
}

std::size_t length_after(const FaultAction& action, std::size_t size) {
  if (!action.from_end) return action.length;
  return action.length < size ? size - action.length : 0;
}

std::string corrupt(const FaultAction& action, std::uint64_t random, Packet* p) {
  std::size_t bit = 0;
  find_bit(action, *p, random, &bit);
  p->bytes()[bit / 8] ^= static_cast<std::uint8_t>(0x80u >> (bit % 8));
  if (action.recompute) p->recompute();
  return fmt::format("bit {} of byte {} inverted{}", 7 - bit % 8, bit / 8, action.recompute ? ", ICRC recomputed" : "");
}

std::string change_fields(const FaultAction& action, Packet* p) {
  std::string what;
  const std::uint32_t error = p->icrc_error();  // a packet that another rule has corrupted stays so
  for (const FieldChange& c : action.changes) {
    std::uint64_t old = 0;
    read_field(*p, *c.field, &old);
    const std::uint64_t value = c.how == FieldChange::How::assign ? c.value
                                : c.how == FieldChange::How::add  ? old + c.value
                                                                  : old - c.value;
    write_field(*p, *c.field, value);
    what +=
        fmt::format("{}{} {:#x} set to {:#x}", what.empty() ? "" : ", ", c.field->name, old, value & c.field->max());
  }
  p->recompute(error);
  return what;
}

}  // namespace

bool is_applicable(const FaultAction& action, const Packet& p) {
  std::size_t bit = 0;
  std::uint64_t value = 0;
  switch (action.kind) {
    case Kind::drop:
    case Kind::duplicate:
    case Kind::delay:
    case Kind::reorder:
      return true;
    case Kind::ecn:
      return p.whole();
    case Kind::corrupt:
      return p.whole() && find_bit(action, p, 0, &bit);
    case Kind::truncate: {
      const std::size_t length = length_after(action, p.bytes().size());
      return p.whole() && length != 0 && length < p.bytes().size();
    }
    case Kind::set:
      if (!p.whole()) return false;
      for (const FieldChange& c : action.changes)
        if (!read_field(p, *c.field, &value)) return false;
      return true;
  }
  return false;
}

std::string change_packet(const FaultAction& action, std::uint64_t random, Packet* p) {
  switch (action.kind) {
    case Kind::corrupt:
      return corrupt(action, random, p);
    case Kind::truncate: {
      const std::size_t before = p->bytes().size();
      const bool valid = p->truncate(length_after(action, before), action.recompute);
      return fmt::format("truncated from {} to {} bytes{}", before, p->bytes().size(),
                         valid ? ", ICRC recomputed" : "");
    }
    case Kind::ecn: {
      const std::uint32_t error = p->icrc_error();
      write_field(*p, ecn_field(), kCongestionExperienced);
      p->recompute(error);
      return "marked as congestion experienced";
    }
    case Kind::set:
      return change_fields(action, p);
    default:
      return {};
  }
}

}  // namespace softrnic::observe
