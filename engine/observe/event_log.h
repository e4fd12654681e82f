// What happened in the NIC process, as numbered lines of JSON; the newest are kept.
#pragma once

#include <concepts>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

namespace softrnic::observe {

struct EventField {
  template <std::integral T>
  EventField(std::string_view n, T v) : name(n), value(static_cast<std::int64_t>(v)) {}
  EventField(std::string_view n, std::string v) : name(n), value(std::move(v)) {}

  std::string_view name;
  std::variant<std::int64_t, std::string> value;
};

class EventLog {
 public:
  explicit EventLog(std::size_t kept = 8192) : kept_(kept) {}

  // `time`: ns since 1970. `kind` is a word for programs, `text` a sentence for people.
  void add(std::uint64_t time, std::string_view kind, std::initializer_list<EventField> fields, std::string_view text);

  struct Batch {
    std::string lines;         // one event a line
    std::uint64_t last = 0;    // number of the last one in `lines`; `after` when there is none
    std::uint64_t missed = 0;  // events after `after` that are no longer kept
  };
  // What came after the event with the number `after`, in at most `max_bytes`, but at least one event if there is one.
  Batch read(std::uint64_t after, std::size_t max_bytes) const;
  // Number of the last event, from 1; 0: none yet.
  std::uint64_t last() const { return first_ + lines_.size() - 1; }

 private:
  const std::size_t kept_;
  std::deque<std::string> lines_;
  std::uint64_t first_ = 1;  // number of lines_.front()
};

}  // namespace softrnic::observe
