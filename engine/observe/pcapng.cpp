#include "engine/observe/pcapng.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace softrnic::observe {

namespace {

constexpr std::uint32_t kSectionHeader = 0x0A0D0D0A;
constexpr std::uint32_t kInterfaceDescription = 1;
constexpr std::uint32_t kInterfaceStatistics = 5;
constexpr std::uint32_t kEnhancedPacket = 6;

constexpr std::uint16_t kOptEnd = 0;
constexpr std::uint16_t kOptComment = 1;
constexpr std::uint16_t kShbUserAppl = 4;
constexpr std::uint16_t kIfName = 2;
constexpr std::uint16_t kIfTsResol = 9;
constexpr std::uint16_t kEpbFlags = 2;
constexpr std::uint16_t kIsbIfRecv = 4;
constexpr std::uint16_t kIsbIfDrop = 5;

constexpr std::size_t kMaxText = 1024;
constexpr std::size_t kMaxPacket = 32 * 1024;
constexpr std::size_t kMinBuffer = 64 * 1024;

// Builds one block in host byte order, which the section header's magic tells the reader.
class Block {
 public:
  Block(std::vector<std::uint8_t>& out, std::uint32_t type) : out_(out) {
    out_.clear();
    u32(type);
    u32(0);  // total length, set by finish()
  }
  void u16(std::uint16_t v) { raw(&v, sizeof v); }
  void u32(std::uint32_t v) { raw(&v, sizeof v); }
  void u64(std::uint64_t v) { raw(&v, sizeof v); }
  // A timestamp: the high word first, whatever the byte order.
  void time(std::uint64_t v) {
    u32(static_cast<std::uint32_t>(v >> 32));
    u32(static_cast<std::uint32_t>(v));
  }
  void padded(const void* p, std::size_t n) {
    raw(p, n);
    out_.resize((out_.size() + 3) & ~std::size_t{3});
  }
  void option(std::uint16_t code, const void* p, std::size_t n) {
    u16(code);
    u16(static_cast<std::uint16_t>(n));
    padded(p, n);
    has_options_ = true;
  }
  // Text of at most kMaxText bytes, not cut within a UTF-8 sequence; an empty one is left out.
  void text_option(std::uint16_t code, std::string_view text) {
    std::size_t n = std::min(text.size(), kMaxText);
    while (n != 0 && n < text.size() && (static_cast<std::uint8_t>(text[n]) & 0xC0) == 0x80) --n;
    if (n != 0) option(code, text.data(), n);
  }
  void finish() {
    if (has_options_) {
      u16(kOptEnd);
      u16(0);
    }
    const auto length = static_cast<std::uint32_t>(out_.size() + 4);
    u32(length);
    std::memcpy(out_.data() + 4, &length, sizeof length);
  }

 private:
  void raw(const void* p, std::size_t n) {
    const auto* b = static_cast<const std::uint8_t*>(p);
    out_.insert(out_.end(), b, b + n);
  }
  std::vector<std::uint8_t>& out_;
  bool has_options_ = false;
};

std::uint32_t u32_at(const std::vector<std::uint8_t>& v, std::size_t offset) {
  std::uint32_t x;
  std::memcpy(&x, v.data() + offset, sizeof x);
  return x;
}

std::int64_t offset_of_regular_file(int fd) {
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return -1;
  return (fcntl(fd, F_GETFL) & O_APPEND) != 0 ? st.st_size : lseek(fd, 0, SEEK_CUR);
}

}  // namespace

PcapngWriter::PcapngWriter(int fd, std::size_t buffer_bytes)
    : fd_(fd), capacity_(std::max(buffer_bytes, kMinBuffer)), file_offset_(offset_of_regular_file(fd)) {
  buffer_.reserve(capacity_);
}

int PcapngWriter::begin(std::string_view application) {
  Block b(block_, kSectionHeader);
  b.u32(0x1A2B3C4D);
  b.u16(1);
  b.u16(0);
  b.u64(UINT64_MAX);  // section length: not given
  b.text_option(kShbUserAppl, application);
  b.finish();
  return append(block_);
}

int PcapngWriter::add_interface(std::string_view name, LinkType link_type, std::uint32_t* id) {
  Block b(block_, kInterfaceDescription);
  b.u16(static_cast<std::uint16_t>(link_type));
  b.u16(0);
  b.u32(0);  // no limit to a packet's length
  b.text_option(kIfName, name);
  const std::uint8_t nanoseconds = 9;
  b.option(kIfTsResol, &nanoseconds, 1);
  b.finish();
  if (const int e = append(block_); e != 0) return e;
  *id = static_cast<std::uint32_t>(interfaces_.size());
  interfaces_.emplace_back();
  return 0;
}

int PcapngWriter::write_packet(std::uint32_t interface, std::uint64_t time, Bytes data, std::uint32_t original_length,
                               Direction direction, std::string_view comment) {
  if (interface >= interfaces_.size()) {
    ++packets_lost_;
    return EINVAL;
  }
  ++interfaces_[interface].offered;
  if (error_ != 0) return lose(interface, error_);
  if (data.size() > kMaxPacket) return lose(interface, EMSGSIZE);
  Block b(block_, kEnhancedPacket);
  b.u32(interface);
  b.time(time);
  b.u32(static_cast<std::uint32_t>(data.size()));
  b.u32(original_length);
  b.padded(data.data(), data.size());
  if (direction != Direction::unknown) {
    const auto flags = static_cast<std::uint32_t>(direction);
    b.option(kEpbFlags, &flags, sizeof flags);
  }
  b.text_option(kOptComment, comment);
  b.finish();
  const int e = append(block_);
  return e == 0 ? 0 : lose(interface, e);
}

int PcapngWriter::flush() {
  while (error_ == 0 && sent_ < buffer_.size()) {
    const ssize_t n = write(fd_, buffer_.data() + sent_, buffer_.size() - sent_);
    if (n > 0) {
      account(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      return EAGAIN;
    } else if (n < 0 && errno != EINTR) {
      fail(errno);
    }
  }
  return error_;
}

int PcapngWriter::finish(std::uint64_t time) {
  for (std::size_t i = 0; i < interfaces_.size(); ++i) {
    Block b(block_, kInterfaceStatistics);
    b.u32(static_cast<std::uint32_t>(i));
    b.time(time);
    b.option(kIsbIfRecv, &interfaces_[i].offered, sizeof interfaces_[i].offered);
    b.option(kIsbIfDrop, &interfaces_[i].lost, sizeof interfaces_[i].lost);
    b.finish();
    if (const int e = append(block_); e != 0) return e;
  }
  return flush();
}

// Puts a block into the buffer, which is written out first when the block has no room in it.
int PcapngWriter::append(const std::vector<std::uint8_t>& block) {
  if (error_ != 0) return error_;
  if (buffer_.size() + block.size() > capacity_) {
    const int e = flush();
    if (error_ != 0) return error_;
    if (buffer_.size() + block.size() > capacity_) return e;
  }
  buffer_.insert(buffer_.end(), block.begin(), block.end());
  return 0;
}

int PcapngWriter::lose(std::uint32_t interface, int error) {
  ++interfaces_[interface].lost;
  ++packets_lost_;
  return error;
}

// The descriptor took `sent` more bytes: drops the blocks that are complete from the buffer.
void PcapngWriter::account(std::size_t sent) {
  sent_ += sent;
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const std::uint32_t length = u32_at(buffer_, done + 4);
    if (done + length > sent_) break;
    if (u32_at(buffer_, done) == kEnhancedPacket) ++packets_written_;
    done += length;
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(done));
  sent_ -= done;
  if (file_offset_ >= 0) file_offset_ += static_cast<std::int64_t>(done);
}

// A hard error: takes the incomplete block out of the file, and counts the packets of the buffer as lost.
void PcapngWriter::fail(int error) {
  error_ = error;
  if (sent_ != 0 && file_offset_ >= 0 && ftruncate(fd_, file_offset_) == 0) lseek(fd_, file_offset_, SEEK_SET);
  for (std::size_t at = 0; at < buffer_.size(); at += u32_at(buffer_, at + 4)) {
    if (u32_at(buffer_, at) == kEnhancedPacket) lose(u32_at(buffer_, at + 8), error);
  }
  buffer_.clear();
  sent_ = 0;
}

}  // namespace softrnic::observe
