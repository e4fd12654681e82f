#include "engine/observe/capture.h"
#include "engine/observe/wall_clock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace softrnic::observe {
namespace {

constexpr std::size_t kFlushBytes = PcapngWriter::kDefaultBuffer / 2;
constexpr int kPollMillis = 100;
constexpr std::size_t kMaxComment = 1024;  // what the writer takes

// A pipe is opened anew without blocking: setting O_NONBLOCK on the descriptor we were given would set it for the
// process that gave it, too.
sw::UniqueFd without_blocking(sw::UniqueFd fd) {
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0 || !S_ISFIFO(st.st_mode)) return fd;
  sw::UniqueFd own(::open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  return own ? std::move(own) : std::move(fd);
}

}  // namespace

Capture::Capture(sw::UniqueFd fd, const Options& options, std::function<void(const CaptureResult&)> on_end)
    : fd_(without_blocking(std::move(fd))), options_(options), on_end_(std::move(on_end)) {
  filling_.reserve(options_.buffer_bytes);
  writer_ = std::thread([this] { write_loop(); });
}

Capture::~Capture() {
  abandoned_ = true;
  finish();
  writer_.join();
}

std::size_t Capture::size_of(const Record& record) { return sizeof(record) + record.length + record.comment; }

void Capture::append(std::vector<std::uint8_t>& buffer, const Record& record, const void* bytes, const char* comment) {
  const std::size_t at = buffer.size();
  buffer.resize(at + size_of(record));
  std::memcpy(buffer.data() + at, &record, sizeof(record));
  if (record.length != 0) std::memcpy(buffer.data() + at + sizeof(record), bytes, record.length);
  if (record.comment != 0) std::memcpy(buffer.data() + at + sizeof(record) + record.length, comment, record.comment);
}

void Capture::add_interface(std::uint16_t vf_id, std::string_view name) {
  std::lock_guard lock(mutex_);
  Record record{};
  record.kind = RecordKind::interface;
  record.vf_id = vf_id;
  record.length = static_cast<std::uint32_t>(name.size());
  append(filling_, record, name.data(), nullptr);  // beyond the bound if need be: there is one a VF
  changed_.notify_all();
}

void Capture::on_frame(std::uint16_t source_vf, Bytes frame, std::string_view comment) {
  if (options_.filter != nullptr && !options_.filter->matches(frame)) return;
  Record record{};
  record.kind = RecordKind::frame;
  record.time = wall_clock();
  record.vf_id = source_vf;
  record.original = static_cast<std::uint32_t>(frame.size());
  record.length = options_.snaplen == 0 ? record.original : std::min(record.original, options_.snaplen);
  record.comment = static_cast<std::uint16_t>(std::min(comment.size(), kMaxComment));

  std::unique_lock lock(mutex_);
  if (!wait_for_room(lock, size_of(record))) {
    ++lost_;
    return;
  }
  const bool was_empty = filling_.empty();
  append(filling_, record, frame.data(), comment.data());
  if (was_empty) changed_.notify_all();
}

bool Capture::wait_for_room(std::unique_lock<std::mutex>& lock, std::size_t bytes) {
  auto has_room = [&] { return ended_ || filling_.size() + bytes <= options_.buffer_bytes; };
  if (!has_room() && !lossy_) lossy_ = !changed_.wait_for(lock, options_.patience, has_room);
  return has_room() && !ended_;
}

void Capture::begin() {
  std::lock_guard lock(mutex_);
  begun_ = true;
  changed_.notify_all();
}

void Capture::finish() {
  std::lock_guard lock(mutex_);
  finishing_ = true;
  changed_.notify_all();
}

void Capture::write_loop() {
  PcapngWriter writer(fd_.get());
  std::vector<std::uint8_t> writing;
  writing.reserve(options_.buffer_bytes);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return begun_ || finishing_; });
  }
  int error = writer.begin("softrnic");
  if (error == 0) error = flush(writer);
  while (error == 0) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !filling_.empty() || finishing_; });
      if (filling_.empty()) break;
      writing.swap(filling_);
      lossy_ = false;
      changed_.notify_all();
    }
    error = write_all(writer, writing);
    writing.clear();
  }
  if (error == 0) error = writer.finish(wall_clock());
  if (error == 0 || error == EAGAIN) error = flush(writer);
  on_end_(result_of(writer, error));
}

CaptureResult Capture::result_of(const PcapngWriter& writer, int error) {
  CaptureResult result;
  result.error = error;
  result.packets = writer.packets_written();
  std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
  result.lost = lost_ + writer.packets_lost();
  return result;
}

int Capture::write_all(PcapngWriter& writer, const std::vector<std::uint8_t>& buffer) {
  std::size_t unflushed = 0;
  for (std::size_t at = 0; at < buffer.size();) {
    Record record;
    std::memcpy(&record, buffer.data() + at, sizeof(record));
    if (int error = write_record(writer, record, buffer.data() + at + sizeof(record))) return error;
    at += size_of(record);
    unflushed += size_of(record);
    if (unflushed < kFlushBytes) continue;
    if (int error = flush(writer)) return error;
    unflushed = 0;
  }
  return flush(writer);
}

int Capture::write_record(PcapngWriter& writer, const Record& record, const std::uint8_t* bytes) {
  int error = 0;
  if (record.kind == RecordKind::interface) {
    const std::string_view name(reinterpret_cast<const char*>(bytes), record.length);
    error = writer.add_interface(name, LinkType::ethernet, &interfaces_[record.vf_id]);
  } else {
    const auto it = interfaces_.find(record.vf_id);
    if (it == interfaces_.end()) {
      const std::string name = record.vf_id == dp::kNoVf ? "network" : fmt::format("vf{}", record.vf_id);
      error = writer.add_interface(name, LinkType::ethernet, &interfaces_[record.vf_id]);
      if (error != 0 && error != EAGAIN) return error;
    }
    const Direction direction = record.vf_id == dp::kNoVf ? Direction::in : Direction::out;
    const std::string_view comment(reinterpret_cast<const char*>(bytes) + record.length, record.comment);
    error = writer.write_packet(interfaces_[record.vf_id], record.time, Bytes(bytes, record.length), record.original,
                                direction, comment);
  }
  return error == EAGAIN ? 0 : error;  // it waits in the writer's buffer, which flush() empties
}

// Waits until the descriptor has taken everything.
int Capture::flush(PcapngWriter& writer) {
  for (;;) {
    const int error = writer.flush();
    if (error != EAGAIN) return error;
    if (abandoned_) return ECANCELED;
    pollfd p{fd_.get(), POLLOUT, 0};
    ::poll(&p, 1, kPollMillis);
  }
}

}  // namespace softrnic::observe
