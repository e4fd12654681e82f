#include "engine/observe/event_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace softrnic::observe {

void EventLog::add(std::uint64_t time, std::string_view kind, std::initializer_list<EventField> fields,
                   std::string_view text) {
  nlohmann::ordered_json event{{"number", last() + 1}, {"time", time}, {"event", kind}};
  for (const EventField& f : fields)
    std::visit([&](const auto& value) { event[std::string(f.name)] = value; }, f.value);
  event["text"] = text;
  lines_.push_back(event.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  if (lines_.size() > kept_) {
    lines_.pop_front();
    ++first_;
  }
}

EventLog::Batch EventLog::read(std::uint64_t after, std::size_t max_bytes) const {
  Batch batch;
  batch.last = after;
  if (after >= last()) return batch;
  const std::uint64_t begin = std::max(after + 1, first_);
  batch.missed = begin - (after + 1);
  for (std::uint64_t n = begin; n <= last(); ++n) {
    const std::string& line = lines_[static_cast<std::size_t>(n - first_)];
    if (!batch.lines.empty() && batch.lines.size() + line.size() > max_bytes) break;
    batch.lines += line;
    batch.last = n;
  }
  return batch;
}

}  // namespace softrnic::observe
