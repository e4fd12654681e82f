#include "engine/observe/fault_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "protocols/common/psn.h"

namespace softrnic::observe {
namespace {

constexpr std::uint32_t kMaxCopies = 100;
constexpr std::uint32_t kMaxReorder = 10000;
constexpr Nanos kMaxTime = 60'000'000'000;
constexpr Nanos kReorderTime = 100'000'000;
constexpr std::uint32_t kMinLength = 14;  // of a truncated frame: an Ethernet header
constexpr std::uint32_t kMaxLength = 65535;
constexpr const char* kActions = "drop, duplicate, delay, reorder, corrupt, truncate, ecn, set";
constexpr const char* kConditions =
    "from, to, op, qp, psn, msg, nth, every, prob, seed, times, once, or the name of a field such as aeth.syndrome";

struct Word {
  std::string_view text;
  std::size_t column;  // from 1
};

bool parse_number(std::string_view text, std::uint64_t* out) {
  int base = 10;
  if (text.starts_with("0x")) {
    base = 16;
    text.remove_prefix(2);
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// N or N-M, `prefix` before each number.
bool parse_range(std::string_view text, std::string_view prefix, Range* out) {
  const std::size_t dash = text.find('-');
  std::string_view first = text.substr(0, dash), last = dash == std::string_view::npos ? first : text.substr(dash + 1);
  if (!first.starts_with(prefix) || !last.starts_with(prefix)) return false;
  first.remove_prefix(prefix.size());
  last.remove_prefix(prefix.size());
  return parse_number(first, &out->first) && parse_number(last, &out->last) && out->first <= out->last;
}

bool parse_time(std::string_view text, Nanos* out) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const Nanos factor = unit == "ns"   ? 1
                       : unit == "us" ? 1'000
                       : unit == "ms" ? 1'000'000
                       : unit == "s"  ? 1'000'000'000
                                      : 0;
  if (error != std::errc() || factor == 0 || number > kMaxTime / factor) return false;
  *out = number * factor;
  return true;
}

bool parse_layer(std::string_view text, Layer* out) {
  static constexpr struct {
    std::string_view name;
    Layer layer;
  } kLayers[] = {{"frame", Layer::frame},     {"ip", Layer::ipv4},           {"udp", Layer::udp},
                 {"bth", Layer::bth},         {"deth", Layer::deth},         {"reth", Layer::reth},
                 {"aeth", Layer::aeth},       {"atomic", Layer::atomic_eth}, {"immdt", Layer::imm_dt},
                 {"payload", Layer::payload}, {"icrc", Layer::icrc}};
  for (const auto& l : kLayers) {
    if (l.name != text) continue;
    *out = l.layer;
    return true;
  }
  return false;
}

class RuleParser {
 public:
  RuleParser(std::string_view text, FaultRule* out, std::string* why) : rule_(*out), why_(*why) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = text.find_first_not_of(" \t\r", at);
      if (begin == std::string_view::npos) break;
      at = std::min(text.find_first_of(" \t\r", begin), text.size());
      words_.push_back({text.substr(begin, at - begin), begin + 1});
    }
    end_ = {"", text.size() + 1};
  }

  bool parse() {
    if (words_.empty()) return fail(end_, fmt::format("expected an action (there are: {})", kActions));
    if (!parse_action()) return false;
    if (at_ == words_.size()) return true;
    if (words_[at_].text != "if")
      return fail(words_[at_], fmt::format("expected 'if' or the end, not '{}'", words_[at_].text));
    ++at_;
    if (at_ == words_.size())
      return fail(end_, fmt::format("expected a condition after 'if' (there are: {})", kConditions));
    for (; at_ < words_.size(); ++at_)
      if (!parse_condition(words_[at_])) return false;
    return true;
  }

 private:
  using Kind = FaultAction::Kind;

  bool fail(const Word& where, const std::string& what) {
    why_ = fmt::format("column {}: {}", where.column, what);
    return false;
  }

  // The next word of the action, if there is one.
  const Word* argument() const { return at_ < words_.size() && words_[at_].text != "if" ? &words_[at_] : nullptr; }
  const Word& here() const { return at_ < words_.size() ? words_[at_] : end_; }

  bool parse_action() {
    const Word& name = words_[at_++];
    FaultAction& a = rule_.action;
    if (name.text == "drop") return a.kind = Kind::drop, true;
    if (name.text == "ecn") return a.kind = Kind::ecn, true;
    if (name.text == "duplicate") return a.kind = Kind::duplicate, optional_count(kMaxCopies, "copies", &a.copies);
    if (name.text == "delay") return a.kind = Kind::delay, parse_delay();
    if (name.text == "reorder") return a.kind = Kind::reorder, parse_reorder();
    if (name.text == "corrupt") return a.kind = Kind::corrupt, parse_corrupt();
    if (name.text == "truncate") return a.kind = Kind::truncate, parse_truncate();
    if (name.text == "set") return a.kind = Kind::set, parse_set();
    return fail(name, fmt::format("unknown action '{}' (there are: {})", name.text, kActions));
  }

  bool optional_count(std::uint32_t max, const char* what, std::uint32_t* out) {
    const Word* word = argument();
    if (word == nullptr) return true;
    std::uint64_t n = 0;
    if (!parse_number(word->text, &n) || n == 0 || n > max)
      return fail(*word, fmt::format("expected a number of {} from 1 to {}, not '{}'", what, max, word->text));
    *out = static_cast<std::uint32_t>(n);
    ++at_;
    return true;
  }

  bool parse_delay() {
    const Word* word = argument();
    if (word == nullptr || !parse_time(word->text, &rule_.action.time) || rule_.action.time == 0)
      return fail(here(), "expected a time such as 10ms, up to 60s (units: ns, us, ms, s)");
    ++at_;
    return true;
  }

  bool parse_reorder() {
    FaultAction& a = rule_.action;
    a.time = kReorderTime;
    const Word* word = argument();
    Nanos time = 0;
    if (word != nullptr && !parse_time(word->text, &time) && !optional_count(kMaxReorder, "packets", &a.packets))
      return false;
    word = argument();
    if (word == nullptr) return true;
    if (!parse_time(word->text, &a.time) || a.time == 0)
      return fail(*word,
                  fmt::format("expected the longest time to wait, such as 10ms, up to 60s, not '{}'", word->text));
    ++at_;
    return true;
  }

  bool take_recompute() {
    const Word* word = argument();
    if (word == nullptr) return true;
    if (word->text != "recompute")
      return fail(*word, fmt::format("expected 'recompute' or 'if', not '{}'", word->text));
    rule_.action.recompute = true;
    ++at_;
    return true;
  }

  bool parse_corrupt() {
    const Word* word = argument();
    if (word == nullptr || word->text == "recompute") return take_recompute();
    const std::size_t colon = word->text.find(':');
    Layer layer = Layer::none;
    std::uint64_t bit = 0;
    if (colon == std::string_view::npos || !parse_layer(word->text.substr(0, colon), &layer) ||
        !parse_number(word->text.substr(colon + 1), &bit) || bit >= kMaxLength * 8)
      return fail(
          *word, fmt::format("expected LAYER:BIT, as in payload:17, not '{}' (layers: frame, ip, udp, bth, deth, reth, "
                             "aeth, atomic, immdt, payload, icrc)",
                             word->text));
    rule_.action.layer = layer;
    rule_.action.bit = static_cast<std::uint32_t>(bit);
    ++at_;
    return take_recompute();
  }

  bool parse_truncate() {
    const Word* word = argument();
    if (word == nullptr) return fail(here(), "expected the length in bytes that stays, or -N to cut off N bytes");
    FaultAction& a = rule_.action;
    std::string_view number = word->text;
    a.from_end = number.starts_with('-');
    if (a.from_end) number.remove_prefix(1);
    std::uint64_t n = 0;
    const std::uint32_t min = a.from_end ? 1 : kMinLength;
    if (!parse_number(number, &n) || n < min || n > kMaxLength)
      return fail(*word, fmt::format("expected a length from {} to {} bytes, or -N to cut off N bytes, not '{}'",
                                     kMinLength, kMaxLength, word->text));
    a.length = static_cast<std::uint32_t>(n);
    ++at_;
    return take_recompute();
  }

  bool parse_set() {
    if (argument() == nullptr) return fail(here(), "expected FIELD=VALUE");
    while (const Word* word = argument()) {
      if (!parse_change(*word)) return false;
      ++at_;
    }
    return true;
  }

  bool parse_change(const Word& word) {
    const std::size_t equals = word.text.find('=');
    if (equals == std::string_view::npos)
      return fail(word, fmt::format("expected FIELD=VALUE or 'if', not '{}'", word.text));
    FieldChange change;
    const std::string_view name = word.text.substr(0, equals);
    change.field = find_field(name);
    if (change.field == nullptr)
      return fail(word, fmt::format("unknown field '{}' (there are: {})", name, field_names()));
    std::string_view value = word.text.substr(equals + 1);
    const Word value_word{value, word.column + equals + 1};
    if (value.starts_with('+')) change.how = FieldChange::How::add;
    if (value.starts_with('-')) change.how = FieldChange::How::subtract;
    if (change.how != FieldChange::How::assign) value.remove_prefix(1);
    if (!parse_number(value, &change.value) || change.value > change.field->max())
      return fail(value_word,
                  fmt::format("expected a value for {} up to {:#x}, not '{}'", name, change.field->max(), value));
    rule_.action.changes.push_back(change);
    return true;
  }

  bool parse_condition(const Word& word) {
    FaultMatch& m = rule_.match;
    if (word.text == "once") return m.times = 1, true;
    const std::size_t equals = word.text.find('=');
    if (equals == std::string_view::npos) {
      return fail(word, fmt::format("unknown condition '{}' (there are: {})", word.text, kConditions));
    }
    const std::string_view name = word.text.substr(0, equals);
    const Word value{word.text.substr(equals + 1), word.column + equals + 1};
    if (name == "from") return parse_party(value, &m.from);
    if (name == "to") return parse_party(value, &m.to);
    if (name == "op") return parse_ops(value);
    if (name == "qp") return parse_field_condition("bth.destqp", value);
    if (name == "psn") return parse_psn(value);
    if (name == "msg") return parse_counted(value, &m.message);
    if (name == "nth") return parse_counted(value, &m.nth);
    if (name == "every") return parse_positive(value, &m.every);
    if (name == "prob") return parse_probability(value);
    if (name == "seed") return parse_number(value.text, &m.seed) || fail(value, "expected a number");
    if (name == "times") return parse_positive(value, &m.times);
    if (find_field(name) != nullptr) return parse_field_condition(name, value);
    return fail(word, fmt::format("unknown condition '{}' (there are: {})", name, kConditions));
  }

  bool parse_party(const Word& value, std::optional<PartyPattern>* out) {
    PartyPattern p;
    std::string_view rest = value.text;
    if (rest.starts_with("vf")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with("port")) {
      p.sort = PartyPattern::Sort::port;
      rest.remove_prefix(4);
    } else {
      rest = {};
    }
    std::uint64_t number = 0;
    if (rest != "*") {
      if (!parse_number(rest, &number) || number > 0xFFFF)
        return fail(value, fmt::format("expected vfN, vf*, portN or port*, not '{}'", value.text));
      p.number = static_cast<std::uint32_t>(number);
    }
    *out = p;
    return true;
  }

  bool parse_ops(const Word& value) {
    for (const Word& part : split(value)) {
      OpPattern op;
      std::string why;
      if (!parse_op(part.text, &op, &why)) return fail(part, why);
      rule_.match.ops.push_back(op);
    }
    return true;
  }

  bool parse_field_condition(std::string_view name, const Word& value) {
    FieldCondition c;
    c.field = find_field(name);
    for (const Word& part : split(value)) {
      Range r;
      if (!parse_range(part.text, "", &r) || r.last > c.field->max())
        return fail(part, fmt::format("expected a number or N-M up to {:#x}, not '{}'", c.field->max(), part.text));
      c.any_of.push_back(r);
    }
    rule_.match.fields.push_back(std::move(c));
    return true;
  }

  bool parse_psn(const Word& value) {
    RelativePsn psn;
    std::string_view prefix;
    if (value.text.starts_with('+')) prefix = "+";
    if (value.text.starts_with("msg+")) {
      prefix = "msg+";
      psn.base = RelativePsn::Base::message;
    }
    if (prefix.empty()) return parse_field_condition("bth.psn", value);
    if (!parse_range(value.text, prefix, &psn.offset) || psn.offset.last > kPsnMask / 2)
      return fail(value,
                  fmt::format("expected {0}N or {0}N-{0}M up to {1:#x}, not '{2}'", prefix, kPsnMask / 2, value.text));
    rule_.match.psn = psn;
    return true;
  }

  bool parse_counted(const Word& value, std::optional<Range>* out) {
    Range r;
    if (!parse_range(value.text, "", &r) || r.first == 0)
      return fail(value, fmt::format("expected a number or N-M, from 1, not '{}'", value.text));
    *out = r;
    return true;
  }

  bool parse_positive(const Word& value, std::uint64_t* out) {
    if (parse_number(value.text, out) && *out != 0) return true;
    return fail(value, fmt::format("expected a number from 1, not '{}'", value.text));
  }

  bool parse_probability(const Word& value) {
    std::string_view number = value.text;
    const bool percent = number.ends_with('%');
    if (percent) number.remove_suffix(1);
    double p = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), p);
    if (percent) p /= 100;
    if (error != std::errc() || end != number.data() + number.size() || !(p >= 0 && p <= 1))
      return fail(value, fmt::format("expected a probability from 0 to 1 or from 0% to 100%, not '{}'", value.text));
    rule_.match.probability = p;
    return true;
  }

  static std::vector<Word> split(const Word& list) {
    std::vector<Word> out;
    std::size_t at = 0;
    for (;;) {
      const std::size_t comma = list.text.find(',', at);
      out.push_back({list.text.substr(at, comma - at), list.column + at});
      if (comma == std::string_view::npos) return out;
      at = comma + 1;
    }
  }

  FaultRule& rule_;
  std::string& why_;
  std::vector<Word> words_;
  Word end_{};
  std::size_t at_ = 0;
};

std::string_view trimmed(std::string_view line) {
  line = line.substr(0, line.find('#'));
  const std::size_t end = line.find_last_not_of(" \t\r");
  return end == std::string_view::npos ? std::string_view() : line.substr(0, end + 1);
}

}  // namespace

bool parse_fault_rule(std::string_view text, FaultRule* out, std::string* why) {
  *out = {};
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin != std::string_view::npos) out->text = text.substr(begin);
  return RuleParser(text, out, why).parse();
}

bool parse_fault_rules(std::string_view text, std::vector<FaultRule>* out, std::string* why) {
  const bool several = text.find('\n') != std::string_view::npos;
  std::size_t number = 0;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = trimmed(text.substr(at, end - at));
    at = end + 1;
    ++number;
    if (line.empty()) continue;
    FaultRule rule;
    if (!parse_fault_rule(line, &rule, why)) {
      if (several) *why = fmt::format("line {}, {}", number, *why);
      return false;
    }
    out->push_back(std::move(rule));
  }
  if (!out->empty()) return true;
  *why = "there is no rule";
  return false;
}

}  // namespace softrnic::observe
