// Writes captures in the pcapng format (draft-ietf-opsawg-pcapng): a section header, an interface
// description for each port or virtual function, an enhanced packet block for each packet.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "protocols/common/types.h"

namespace softrnic::observe {

// LINKTYPE_ values of the registry at tcpdump.org.
enum class LinkType : std::uint16_t { ethernet = 1, infiniband = 247 };

// Seen from the interface: in arrived at it, out was sent by it.
enum class Direction : std::uint8_t { unknown = 0, in = 1, out = 2 };

// Collects blocks in a buffer and writes them to a descriptor, which stays the caller's. Not thread-safe.
//
// Functions return 0 or an errno value. No packet is lost silently: packets_lost() counts each one that a
// call accepted or refused and that did not reach the file. The first hard error (ENOSPC, EPIPE, EIO, ...)
// is final: all later calls return it. A file then ends behind the last block that was written completely,
// so it can be read. EAGAIN of a non-blocking descriptor is not final: blocks wait in the buffer, and only
// packets that find it full are lost. The process must ignore SIGPIPE.
class PcapngWriter {
 public:
  static constexpr std::size_t kDefaultBuffer = 256 * 1024;

  // `buffer_bytes` bounds what waits to be written; at least 64 KiB are taken.
  explicit PcapngWriter(int fd, std::size_t buffer_bytes = kDefaultBuffer);
  PcapngWriter(const PcapngWriter&) = delete;
  PcapngWriter& operator=(const PcapngWriter&) = delete;

  // The section header; before everything else.
  int begin(std::string_view application);

  // Describes an interface, at any time before its first packet. Names are UTF-8; what exceeds 1024 bytes is
  // cut off. `*id` numbers the interfaces from 0. Timestamps have nanosecond resolution.
  int add_interface(std::string_view name, LinkType link_type, std::uint32_t* id);

  // One packet. `time` is in nanoseconds since 1970 (UTC); `data` are the bytes captured of a packet that had
  // `original_length` bytes, at most 32 KiB; `comment` is shown by Wireshark with the packet, cut as above.
  int write_packet(std::uint32_t interface, std::uint64_t time, Bytes data, std::uint32_t original_length,
                   Direction direction, std::string_view comment = {});

  // Hands the buffer to the descriptor. EAGAIN when some of it must still wait.
  int flush();

  // Adds the statistics of each interface (packets offered and lost) and flushes. Nothing may follow but
  // flush(). With a non-blocking descriptor call it when flush() has returned 0.
  int finish(std::uint64_t time);

  // The final error, or 0.
  int error() const { return error_; }
  // Packets of which the descriptor has taken every byte.
  std::uint64_t packets_written() const { return packets_written_; }
  std::uint64_t packets_lost() const { return packets_lost_; }

 private:
  struct Interface {
    std::uint64_t offered = 0;
    std::uint64_t lost = 0;
  };

  int append(const std::vector<std::uint8_t>& block);
  int lose(std::uint32_t interface, int error);
  void account(std::size_t sent);
  void fail(int error);

  const int fd_;
  const std::size_t capacity_;
  std::int64_t file_offset_;          // of the first block boundary not yet behind us; -1: not a regular file
  std::vector<std::uint8_t> buffer_;  // whole blocks; of the first, `sent_` bytes are already written
  std::size_t sent_ = 0;
  std::vector<std::uint8_t> block_;  // the block being built
  std::vector<Interface> interfaces_;
  std::uint64_t packets_written_ = 0;
  std::uint64_t packets_lost_ = 0;
  int error_ = 0;
};

}  // namespace softrnic::observe
