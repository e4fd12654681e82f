#include "engine/switch/frame_queue.h"

#include <cstring>

namespace softrnic::sw {

void FrameQueue::push(const Item& item) {
  const std::size_t need = sizeof(Record) + item.size();
  if (chunks_.empty() || chunks_.back()->end + need > kChunkSize) {
    // Default-initialised: the bytes are not cleared.
    chunks_.push_back(spare_ ? std::move(spare_) : std::unique_ptr<Chunk>(new Chunk));
    chunks_.back()->begin = chunks_.back()->end = 0;
  }
  Chunk& c = *chunks_.back();
  const Record record{static_cast<std::uint16_t>(item.size()), item.aux, item.kind};
  std::memcpy(c.data + c.end, &record, sizeof(record));
  std::uint8_t* to = c.data + c.end + sizeof(record);
  if (!item.data.empty()) std::memcpy(to, item.data.data(), item.data.size());
  if (!item.rest.empty()) std::memcpy(to + item.data.size(), item.rest.data(), item.rest.size());
  c.end += need;
  bytes_ += item.size();
}

FrameQueue::Item FrameQueue::front() const {
  const Chunk& c = *chunks_.front();
  Record record;
  std::memcpy(&record, c.data + c.begin, sizeof(record));
  return {record.kind, record.aux, Bytes(c.data + c.begin + sizeof(record), record.length), {}};
}

void FrameQueue::pop() {
  Chunk& c = *chunks_.front();
  Record record;
  std::memcpy(&record, c.data + c.begin, sizeof(record));
  c.begin += sizeof(record) + record.length;
  bytes_ -= record.length;
  if (c.begin == c.end) {
    spare_ = std::move(chunks_.front());
    chunks_.pop_front();
  }
}

void FrameQueue::clear() {
  chunks_.clear();
  spare_.reset();
  bytes_ = 0;
}

}  // namespace softrnic::sw
