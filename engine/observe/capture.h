// A running capture: takes frames from the eSwitch's thread and writes them as pcapng on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/observe/packet_filter.h"
#include "engine/observe/pcapng.h"
#include "engine/switch/eswitch.h"
#include "engine/switch/unique_fd.h"

namespace softrnic::observe {

// How a capture ended.
struct CaptureResult {
  int error = 0;              // 0, or what stopped it: ENOSPC, EPIPE, EIO, ...
  std::uint64_t packets = 0;  // written completely
  std::uint64_t lost = 0;     // passed the switch during the capture and are not in the file
};

// Between the two threads stands a bounded buffer. When it is full, the switch waits for the writer, so that a slow
// disk or reader slows the traffic down and the capture stays complete. A writer that cannot get rid of a single byte
// for `patience` (a reader that was stopped) makes the capture lossy: the traffic goes on, frames are counted as
// lost, until there is room again.
class Capture : public sw::FrameTap {
 public:
  struct Options {
    std::uint32_t snaplen = 0;                   // bytes of each frame that are kept; 0: all
    std::shared_ptr<const PacketFilter> filter;  // null: every frame
    std::size_t buffer_bytes = 8u << 20;
    std::chrono::milliseconds patience{1000};
  };
  // Writes to `fd`. `on_end` is called once, on the writer's thread, when everything is written after finish(), or at
  // an error, which ends the capture by itself.
  Capture(sw::UniqueFd fd, const Options& options, std::function<void(const CaptureResult&)> on_end);
  // Abandons what is not yet written.
  ~Capture() override;

  // Everything that is sent passes from now on: writes the head of the file, so that whoever reads it may take its
  // appearance as the start.
  void begin();
  // Names the interface of a VF, before its first frame; a VF id that comes back gets a new interface.
  void add_interface(std::uint16_t vf_id, std::string_view name);
  void on_frame(std::uint16_t source_vf, Bytes frame, std::string_view comment) override;
  // No more frames come: writes the rest, then calls on_end.
  void finish();

 private:
  enum class RecordKind : std::uint8_t { frame, interface };
  struct Record {
    std::uint64_t time;      // ns since 1970
    std::uint32_t length;    // bytes that follow, the comment after them
    std::uint32_t original;  // of the frame
    std::uint16_t vf_id;
    std::uint16_t comment;  // its length
    RecordKind kind;
  };
  static std::size_t size_of(const Record& record);
  static void append(std::vector<std::uint8_t>& buffer, const Record& record, const void* bytes, const char* comment);
  bool wait_for_room(std::unique_lock<std::mutex>& lock, std::size_t bytes);
  void write_loop();
  int write_all(PcapngWriter& writer, const std::vector<std::uint8_t>& buffer);
  int write_record(PcapngWriter& writer, const Record& record, const std::uint8_t* bytes);
  int flush(PcapngWriter& writer);
  CaptureResult result_of(const PcapngWriter& writer, int error);

  sw::UniqueFd fd_;
  const Options options_;
  const std::function<void(const CaptureResult&)> on_end_;
  std::map<std::uint16_t, std::uint32_t> interfaces_;  // of the writer: VF id to interface number

  std::mutex mutex_;  // for all below
  std::condition_variable changed_;
  std::vector<std::uint8_t> filling_;
  std::uint64_t lost_ = 0;
  bool lossy_ = false;  // the writer made no progress for `patience`
  bool begun_ = false;
  bool finishing_ = false;  // no more frames come
  bool ended_ = false;      // nothing is written any more
  std::atomic<bool> abandoned_{false};

  std::thread writer_;
};

}  // namespace softrnic::observe
