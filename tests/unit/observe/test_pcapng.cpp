#include <fcntl.h>
#include <pcap/pcap.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "engine/observe/pcapng.h"

using namespace softrnic;
using namespace softrnic::observe;

namespace {

// An unlinked temporary file.
class TempFile {
 public:
  TempFile() : file_(std::tmpfile()) { REQUIRE(file_ != nullptr); }
  ~TempFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  int fd() const { return fileno(file_); }
  std::size_t size() const {
    struct stat st {};
    fstat(fd(), &st);
    return static_cast<std::size_t>(st.st_size);
  }
  std::vector<std::uint8_t> bytes() const {
    std::vector<std::uint8_t> v(size());
    REQUIRE(pread(fd(), v.data(), v.size(), 0) == static_cast<ssize_t>(v.size()));
    return v;
  }
  // For libpcap, which closes it.
  FILE* release() {
    FILE* f = file_;
    file_ = nullptr;
    std::rewind(f);
    return f;
  }

 private:
  FILE* file_;
};

struct Packet {
  std::uint64_t time;
  std::uint32_t original_length;
  std::vector<std::uint8_t> data;
};

// All packets as libpcap reads them. Fails the test when the file is not intact up to its end.
std::vector<Packet> read_all(TempFile& file) {
  char error[PCAP_ERRBUF_SIZE] = "";
  pcap_t* p = pcap_fopen_offline_with_tstamp_precision(file.release(), PCAP_TSTAMP_PRECISION_NANO, error);
  INFO(error);
  REQUIRE(p != nullptr);
  std::vector<Packet> out;
  pcap_pkthdr* header;
  const u_char* data;
  int rc;
  while ((rc = pcap_next_ex(p, &header, &data)) == 1) {
    out.push_back({static_cast<std::uint64_t>(header->ts.tv_sec) * 1'000'000'000u +
                       static_cast<std::uint64_t>(header->ts.tv_usec),
                   header->len,
                   {data, data + header->caplen}});
  }
  INFO(pcap_geterr(p));
  CHECK(rc == PCAP_ERROR_BREAK);
  pcap_close(p);
  return out;
}

std::vector<std::uint8_t> packet_of(std::size_t length, int seed) {
  std::vector<std::uint8_t> v(length);
  for (std::size_t i = 0; i < length; ++i) v[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(seed));
  return v;
}

std::uint32_t u32_at(const std::vector<std::uint8_t>& v, std::size_t at) {
  std::uint32_t x;
  std::memcpy(&x, &v.at(at + 3) - 3, sizeof x);
  return x;
}

// The bytes of the `index`th block of `type`.
std::vector<std::uint8_t> find_block(const std::vector<std::uint8_t>& file, std::uint32_t type, int index = 0) {
  for (std::size_t at = 0; at < file.size(); at += u32_at(file, at + 4)) {
    if (u32_at(file, at) == type && index-- == 0) {
      const auto first = file.begin() + static_cast<std::ptrdiff_t>(at);
      return {first, first + u32_at(file, at + 4)};
    }
  }
  FAIL("no such block");
  return {};
}

// Value of the first option `code` of a block whose options start at `at`.
std::string option(const std::vector<std::uint8_t>& block, std::size_t at, unsigned code) {
  while (at + 8 <= block.size()) {
    const std::uint32_t head = u32_at(block, at);
    const std::size_t length = head >> 16;
    if ((head & 0xFFFF) == code)
      return {block.begin() + static_cast<std::ptrdiff_t>(at + 4),
              block.begin() + static_cast<std::ptrdiff_t>(at + 4 + length)};
    if ((head & 0xFFFF) == 0) break;
    at += 4 + ((length + 3) & ~std::size_t{3});
  }
  FAIL("no such option");
  return {};
}

std::uint64_t number_option(const std::vector<std::uint8_t>& block, std::size_t at, unsigned code) {
  const std::string s = option(block, at, code);
  std::uint64_t v = 0;
  std::memcpy(&v, s.data(), s.size());
  return v;
}

constexpr std::uint64_t kTime = 1'700'000'000'123'456'789u;

// Lets files of this process grow to `bytes` only, while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

}  // namespace

TEST_CASE("pcapng: packets come back byte for byte with nanosecond times", "[pcapng]") {
  TempFile file;
  PcapngWriter w(file.fd());
  std::uint32_t a = 9, b = 9;
  REQUIRE(w.begin("softrnic test") == 0);
  REQUIRE(w.add_interface("vf3 (ib_send_bw/1234)", LinkType::ethernet, &a) == 0);
  CHECK(a == 0);
  for (std::size_t n = 0; n < 20; ++n) {
    REQUIRE(w.write_packet(a, kTime + n, packet_of(60 + n, 1), static_cast<std::uint32_t>(100 + n), Direction::out) ==
            0);
  }
  REQUIRE(w.add_interface("port0", LinkType::ethernet, &b) == 0);
  CHECK(b == 1);
  REQUIRE(w.write_packet(b, kTime + 100, packet_of(1500, 2), 1500, Direction::in, "dropped: loss 1%") == 0);
  REQUIRE(w.finish(kTime + 200) == 0);
  CHECK(w.packets_written() == 21);
  CHECK(w.packets_lost() == 0);

  const auto packets = read_all(file);
  REQUIRE(packets.size() == 21);
  for (std::size_t n = 0; n < 20; ++n) {
    CHECK(packets[n].time == kTime + n);
    CHECK(packets[n].original_length == 100 + n);
    CHECK(packets[n].data == packet_of(60 + n, 1));
  }
  CHECK(packets[20].data == packet_of(1500, 2));
}

TEST_CASE("pcapng: names, direction, comment and statistics are options of their blocks", "[pcapng]") {
  TempFile file;
  PcapngWriter w(file.fd());
  std::uint32_t id;
  REQUIRE(w.begin("softrnic 0.1") == 0);
  REQUIRE(w.add_interface("vf3 (ib_send_bw/1234)", LinkType::infiniband, &id) == 0);
  REQUIRE(w.write_packet(id, kTime, packet_of(61, 1), 61, Direction::in, "a comment") == 0);
  REQUIRE(w.write_packet(id, kTime, packet_of(64, 1), 64, Direction::out) == 0);
  REQUIRE(w.write_packet(id, kTime, packet_of(64, 1), 64, Direction::unknown) == 0);
  REQUIRE(w.write_packet(id, kTime, packet_of(40000, 1), 40000, Direction::out) == EMSGSIZE);
  REQUIRE(w.finish(kTime) == 0);
  const auto bytes = file.bytes();

  CHECK(option(find_block(bytes, 0x0A0D0D0A), 24, 4) == "softrnic 0.1");
  const auto idb = find_block(bytes, 1);
  CHECK((u32_at(idb, 8) & 0xFFFF) == 247);
  CHECK(option(idb, 16, 2) == "vf3 (ib_send_bw/1234)");
  CHECK(number_option(idb, 16, 9) == 9);
  CHECK(number_option(find_block(bytes, 6, 0), 28 + 64, 2) == 1);
  CHECK(option(find_block(bytes, 6, 0), 28 + 64, 1) == "a comment");
  CHECK(number_option(find_block(bytes, 6, 1), 28 + 64, 2) == 2);
  CHECK(find_block(bytes, 6, 2).size() == 28 + 64 + 4);  // no options at all
  const auto isb = find_block(bytes, 5);
  CHECK(number_option(isb, 20, 4) == 4);
  CHECK(number_option(isb, 20, 5) == 1);
}

TEST_CASE("pcapng: long text is cut between UTF-8 characters", "[pcapng]") {
  TempFile file;
  PcapngWriter w(file.fd());
  std::uint32_t id;
  std::string name(1023, 'x');
  name += "\u00e4\u00e4";
  REQUIRE(w.begin("t") == 0);
  REQUIRE(w.add_interface(name, LinkType::ethernet, &id) == 0);
  REQUIRE(w.flush() == 0);
  CHECK(option(find_block(file.bytes(), 1), 16, 2) == std::string(1023, 'x'));
}

TEST_CASE("pcapng: an unknown interface is refused and counted", "[pcapng]") {
  TempFile file;
  PcapngWriter w(file.fd());
  REQUIRE(w.begin("t") == 0);
  CHECK(w.write_packet(0, kTime, packet_of(64, 1), 64, Direction::in) == EINVAL);
  CHECK(w.packets_lost() == 1);
}

TEST_CASE("pcapng: a full device is reported and every lost packet counted", "[pcapng]") {
  const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  PcapngWriter w(fd);
  std::uint32_t id;
  REQUIRE(w.begin("t") == 0);
  REQUIRE(w.add_interface("p", LinkType::ethernet, &id) == 0);
  std::uint64_t refused = 0, offered = 0;
  while (refused < 5) {
    ++offered;
    const int e = w.write_packet(id, kTime, packet_of(1000, 1), 1000, Direction::in);
    if (e != 0) {
      CHECK(e == ENOSPC);
      ++refused;
    }
  }
  CHECK(w.error() == ENOSPC);
  CHECK(w.flush() == ENOSPC);
  CHECK(w.finish(kTime) == ENOSPC);
  CHECK(w.packets_written() == 0);
  CHECK(w.packets_lost() == offered);
  close(fd);
}

TEST_CASE("pcapng: a file that cannot grow ends behind its last complete block", "[pcapng]") {
  for (const rlim_t limit : {rlim_t{60'000}, rlim_t{70'001}, rlim_t{131'072}, rlim_t{200'003}}) {
    INFO(limit);
    TempFile file;
    PcapngWriter w(file.fd(), 64 * 1024);
    std::uint64_t offered = 0;
    {
      FileSizeLimit no_more(limit);
      std::uint32_t id;
      REQUIRE(w.begin("t") == 0);
      REQUIRE(w.add_interface("p", LinkType::ethernet, &id) == 0);
      while (offered < 400) {
        w.write_packet(id, kTime + offered, packet_of(900 + offered % 4, static_cast<int>(offered)), 1500,
                       Direction::in);
        ++offered;
      }
      CHECK(w.flush() == EFBIG);
    }
    CHECK(w.error() == EFBIG);
    CHECK(w.packets_written() + w.packets_lost() == offered);
    CHECK(file.size() <= limit);
    CHECK(file.size() + 2000 > limit);
    const std::uint64_t written = w.packets_written();
    const auto packets = read_all(file);
    REQUIRE(packets.size() == written);
    for (std::size_t i = 0; i < packets.size(); ++i) {
      CHECK(packets[i].data == packet_of(900 + i % 4, static_cast<int>(i)));
    }
  }
}

TEST_CASE("pcapng: a file that was not empty keeps what it had", "[pcapng]") {
  TempFile file;
  {
    PcapngWriter first(file.fd());
    std::uint32_t id;
    REQUIRE(first.begin("t") == 0);
    REQUIRE(first.add_interface("p", LinkType::ethernet, &id) == 0);
    REQUIRE(first.write_packet(id, kTime, packet_of(100, 1), 100, Direction::in) == 0);
    REQUIRE(first.finish(kTime) == 0);
  }
  const auto before = file.bytes();
  REQUIRE(fcntl(file.fd(), F_SETFL, O_APPEND) == 0);
  lseek(file.fd(), 0, SEEK_SET);
  FileSizeLimit no_more(before.size() + 50);
  PcapngWriter second(file.fd());
  REQUIRE(second.begin("a second section that does not fit into fifty bytes") == 0);
  CHECK(second.flush() == EFBIG);
  CHECK(file.bytes() == before);
}

TEST_CASE("pcapng: a reader that went away is reported as EPIPE", "[pcapng]") {
  std::signal(SIGPIPE, SIG_IGN);
  int fds[2];
  REQUIRE(pipe(fds) == 0);
  close(fds[0]);
  PcapngWriter w(fds[1]);
  REQUIRE(w.begin("t") == 0);
  CHECK(w.flush() == EPIPE);
  CHECK(w.error() == EPIPE);
  close(fds[1]);
}

TEST_CASE("pcapng: a slow reader of a pipe loses counted packets, not the stream", "[pcapng]") {
  int fds[2];
  REQUIRE(pipe2(fds, O_NONBLOCK) == 0);
  TempFile file;
  PcapngWriter w(fds[1], 64 * 1024);
  std::uint32_t id;
  REQUIRE(w.begin("t") == 0);
  REQUIRE(w.add_interface("p", LinkType::ethernet, &id) == 0);

  auto drain = [&] {
    char chunk[3001];
    ssize_t n;
    while ((n = read(fds[0], chunk, sizeof chunk)) > 0)
      REQUIRE(write(file.fd(), chunk, static_cast<std::size_t>(n)) == n);
  };
  std::vector<int> accepted;
  for (int i = 0; i < 1000; ++i) {
    const int e = w.write_packet(id, kTime, packet_of(1001, i), 1001, Direction::in);
    if (e == 0)
      accepted.push_back(i);
    else
      CHECK(e == EAGAIN);
    if (i % 300 == 299) drain();
  }
  CHECK(w.error() == 0);
  while (w.flush() == EAGAIN) drain();
  drain();
  REQUIRE(w.finish(kTime) == 0);
  drain();
  close(fds[0]);
  close(fds[1]);

  CHECK(w.packets_lost() == 1000 - accepted.size());
  CHECK(w.packets_lost() > 0);
  CHECK(w.packets_written() == accepted.size());
  const auto packets = read_all(file);
  REQUIRE(packets.size() == accepted.size());
  for (std::size_t i = 0; i < packets.size(); ++i) CHECK(packets[i].data == packet_of(1001, accepted[i]));
}
