// Frames and marks that wait for room in a VF's ring, in order. Allocates in chunks, and only while something waits.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "engine/datapath/shm_layout.h"
#include "protocols/common/types.h"

namespace softrnic::sw {

class FrameQueue {
 public:
  struct Item {
    dp::EntryKind kind;  // frame or mark
    std::uint16_t aux;   // of the entry
    Bytes data;          // frame, or body of the mark
    Bytes rest = {};     // what follows in the frame
    std::size_t size() const { return data.size() + rest.size(); }
  };

  bool empty() const { return chunks_.empty(); }
  std::size_t bytes() const { return bytes_; }  // of data waiting
  // It has at most kMaxFrame bytes.
  void push(const Item& item);
  Item front() const;  // not empty; in one piece; valid until pop()
  void pop();
  void clear();

 private:
  static constexpr std::size_t kChunkSize = 65536;
  struct Record {
    std::uint16_t length;
    std::uint16_t aux;
    dp::EntryKind kind;
  };
  struct Chunk {
    std::size_t begin = 0, end = 0;
    std::uint8_t data[kChunkSize];
  };
  std::deque<std::unique_ptr<Chunk>> chunks_;  // none is empty
  std::unique_ptr<Chunk> spare_;
  std::size_t bytes_ = 0;
};

}  // namespace softrnic::sw
