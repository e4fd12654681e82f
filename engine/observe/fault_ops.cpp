// Names of opcodes in fault rules: KIND with, optionally, transport, position and what else the packet carries.
#include <fmt/format.h>

#include <charconv>

#include "engine/observe/fault_parser.h"
#include "protocols/ib/aeth_codes.h"

namespace softrnic::observe {
namespace {

using ib::OpcodeInfo;
using ib::OpKind;

constexpr std::uint8_t kAcknowledge = 0x11;
constexpr std::uint8_t kCmpSwap = 0x13;
constexpr std::uint8_t kFetchAdd = 0x14;
constexpr std::uint8_t kCnp = 0x81;  // IBA annex A17.9.3

struct KindName {
  std::string_view name;
  bool (*has)(std::uint8_t opcode, const OpcodeInfo& info);
  Range syndrome{0, 255};
};

template <OpKind K>
bool of_kind(std::uint8_t, const OpcodeInfo& info) {
  return info.kind == K;
}
template <std::uint8_t Code>
bool is_code(std::uint8_t opcode, const OpcodeInfo&) {
  return opcode == Code;
}

constexpr Range kAckSyndromes{ib::kSyndromeAck, ib::kSyndromeAck | ib::kSyndromeValueMask};
constexpr Range kRnrSyndromes{ib::kSyndromeRnr, ib::kSyndromeRnr | ib::kSyndromeValueMask};
constexpr Range kNakSyndromes{ib::kSyndromeNak, ib::kSyndromeNak | ib::kSyndromeValueMask};

constexpr KindName kKinds[] = {
    {"send", of_kind<OpKind::send>},
    {"write", of_kind<OpKind::write>},
    {"read-request", of_kind<OpKind::read_request>},
    {"read-response", of_kind<OpKind::read_response>},
    {"atomic", of_kind<OpKind::atomic>},
    {"cmp-swap", is_code<kCmpSwap>},
    {"fetch-add", is_code<kFetchAdd>},
    {"atomic-ack", of_kind<OpKind::atomic_ack>},
    {"ack", is_code<kAcknowledge>, kAckSyndromes},
    {"nak", is_code<kAcknowledge>, kNakSyndromes},
    {"rnr-nak", is_code<kAcknowledge>, kRnrSyndromes},
    {"acknowledge", is_code<kAcknowledge>},  // any of the three
    {"request", [](std::uint8_t, const OpcodeInfo& i) { return i.known() && i.request; }},
    {"response", [](std::uint8_t, const OpcodeInfo& i) { return i.known() && !i.request; }},
    {"cnp", is_code<kCnp>},
};

const KindName* find_kind(std::string_view name) {
  for (const KindName& k : kKinds)
    if (k.name == name) return &k;
  return nullptr;
}

std::string kind_names() {
  std::string out;
  for (const KindName& k : kKinds) out += (out.empty() ? "" : ", ") + std::string(k.name);
  return out;
}

// Takes the first part of `*rest`, up to a point.
std::string_view next_part(std::string_view* rest) {
  const std::size_t dot = rest->find('.');
  const std::string_view part = rest->substr(0, dot);
  *rest = dot == std::string_view::npos ? std::string_view() : rest->substr(dot + 1);
  return part;
}

bool parse_opcode_number(std::string_view text, OpPattern* out) {
  if (!text.starts_with("0x") || text.size() > 4) return false;
  unsigned code = 0;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), code, 16);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  out->opcodes.set(code);
  return true;
}

template <class Keep>
void restrict_to(OpPattern* p, Keep keep) {
  for (std::size_t code = 0; code < p->opcodes.size(); ++code)
    if (p->opcodes.test(code) &&
        !keep(static_cast<std::uint8_t>(code), ib::opcode_info(static_cast<std::uint8_t>(code))))
      p->opcodes.reset(code);
}

// Narrows the pattern by one more word; false when there is no such word.
bool apply_word(std::string_view word, OpPattern* p) {
  bool first = false, last = false;
  if (word == "imm" || word == "inv" || word == "plain") {
    restrict_to(p, [&](std::uint8_t, const OpcodeInfo& i) {
      return word == "imm" ? i.imm : word == "inv" ? i.inv : !i.imm && !i.inv;
    });
    return true;
  }
  if (word == "first") {
    first = true;
  } else if (word == "last") {
    last = true;
  } else if (word == "only") {
    first = last = true;
  } else if (word != "middle") {
    return false;
  }
  restrict_to(p, [&](std::uint8_t, const OpcodeInfo& i) { return i.first == first && i.last == last; });
  return true;
}

}  // namespace

bool parse_op(std::string_view text, OpPattern* out, std::string* why) {
  *out = {};
  if (parse_opcode_number(text, out)) return true;
  if (text.ends_with('.')) return *why = fmt::format("nothing follows the last point of '{}'", text), false;
  std::string_view rest = text;
  std::string_view part = next_part(&rest);
  std::optional<std::uint8_t> transport;
  if (part == "rc") transport = ib::kTransportRc;
  if (part == "uc") transport = ib::kTransportUc;
  if (part == "ud") transport = ib::kTransportUd;
  if (transport) part = next_part(&rest);
  const KindName* kind = find_kind(part);
  if (kind == nullptr) {
    *why = fmt::format("unknown operation '{}' (there are: {}; or an opcode as 0xNN)", part, kind_names());
    return false;
  }
  for (unsigned code = 0; code < 256; ++code) {
    const auto opcode = static_cast<std::uint8_t>(code);
    if (transport && (opcode & ib::kTransportMask) != *transport) continue;
    if (kind->has(opcode, ib::opcode_info(opcode))) out->opcodes.set(code);
  }
  out->syndrome = kind->syndrome;
  while (!rest.empty()) {
    part = next_part(&rest);
    if (apply_word(part, out)) continue;
    *why = fmt::format("'{}' is nothing that can follow '{}' (possible: first, middle, last, only, imm, inv, plain)",
                       part, kind->name);
    return false;
  }
  if (out->opcodes.none()) {
    *why = fmt::format("no packet is '{}'", text);
    return false;
  }
  return true;
}

}  // namespace softrnic::observe
