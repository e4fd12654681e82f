// What the switch shows to a capture, and what a capture does when its file is slow.
#include <fcntl.h>
#include <pcap/pcap.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <iterator>

#include "engine/observe/capture.h"
#include "tests/support/host_fixture.h"
#include "tests/unit/switch/switch_fixture.h"

using namespace softrnic;
using namespace softrnic::test;
using observe::Capture;
using observe::CaptureResult;

namespace {

struct Ended {
  std::promise<CaptureResult> promise;
  std::function<void(const CaptureResult&)> callback() {
    return [this](const CaptureResult& r) { promise.set_value(r); };
  }
  CaptureResult result() { return promise.get_future().get(); }
};

struct Packet {
  std::uint64_t time = 0;
  std::vector<std::uint8_t> data;
};

std::vector<Packet> read_capture(const std::string& path) {
  char error[PCAP_ERRBUF_SIZE];
  pcap_t* p = ::pcap_open_offline_with_tstamp_precision(path.c_str(), PCAP_TSTAMP_PRECISION_NANO, error);
  REQUIRE(p != nullptr);
  std::vector<Packet> out;
  pcap_pkthdr* h = nullptr;
  const u_char* data = nullptr;
  int rc = 0;
  while ((rc = ::pcap_next_ex(p, &h, &data)) == 1)
    out.push_back(
        {static_cast<std::uint64_t>(h->ts.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(h->ts.tv_usec),
         {data, data + h->caplen}});
  CHECK(rc == PCAP_ERROR_BREAK);
  ::pcap_close(p);
  return out;
}

sw::UniqueFd create_file(const std::string& path) {
  sw::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  REQUIRE(fd);
  return fd;
}

}  // namespace

TEST_CASE("A capture has every frame that passed, in order, with growing times", "[switch][capture]") {
  TempDir dir;
  const std::string path = dir.path() + "/c.pcapng";
  SwitchFixture f;
  TestVf &a = f.add(), &b = f.add();
  Ended ended;
  Capture::Options options;
  options.buffer_bytes = 64 * 1024;  // so small that the switch has to wait for the writer
  auto capture = std::make_shared<Capture>(create_file(path), options, ended.callback());
  capture->add_interface(a.id(), "vf1 (one pid 1)");
  capture->begin();
  f.settle_taps({capture});

  constexpr std::uint32_t kCount = 5000;
  std::uint32_t received = 0;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    a.send(make_frame({.dest_qpn = b.qpn(), .psn = i, .payload = 4 * (i % 256)}));
    Received r;
    while (b.try_receive(&r)) REQUIRE(psn_of(r.bytes) == received++);
  }
  while (received < kCount) REQUIRE(psn_of(b.receive().bytes) == received++);
  f.settle();  // without taps
  capture->finish();
  const CaptureResult result = ended.result();
  CHECK(result.error == 0);
  CHECK(result.packets == kCount);
  CHECK(result.lost == 0);

  const auto packets = read_capture(path);
  REQUIRE(packets.size() == kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    REQUIRE(packets[i].data == make_frame({.dest_qpn = b.qpn(), .psn = i, .payload = 4 * (i % 256)}));
    if (i > 0) CHECK(packets[i].time >= packets[i - 1].time);
  }
}

TEST_CASE("Frames reach the file while the capture runs", "[switch][capture]") {
  TempDir dir;
  const std::string path = dir.path() + "/c.pcapng";
  Ended ended;
  Capture capture(create_file(path), Capture::Options{}, ended.callback());
  capture.add_interface(1, "vf1");
  capture.begin();
  capture.on_frame(1, std::vector<std::uint8_t>(3000, 7), {});
  while (std::filesystem::file_size(path) < 3000) std::this_thread::yield();
  capture.finish();
  CHECK(ended.result().packets == 1);
}

TEST_CASE("A frame has its comment in the file, and a filter decides what is taken", "[switch][capture]") {
  TempDir dir;
  const std::string path = dir.path() + "/c.pcapng";
  Ended ended;
  Capture::Options options;
  std::string why;
  options.filter = observe::PacketFilter::compile("udp", &why);
  Capture capture(create_file(path), options, ended.callback());
  capture.begin();
  capture.on_frame(1, std::vector<std::uint8_t>(500, 7), "not taken");
  capture.on_frame(1, make_frame({.psn = 1}), "fault 1: dropped");
  capture.finish();
  CHECK(ended.result().packets == 1);
  CHECK(read_capture(path).size() == 1);
  std::ifstream in(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  CHECK(bytes.find("fault 1: dropped") != std::string::npos);
  CHECK(bytes.find("not taken") == std::string::npos);
}

TEST_CASE("Dropped frames are in the capture too", "[switch][capture]") {
  TempDir dir;
  const std::string path = dir.path() + "/c.pcapng";
  SwitchFixture f;
  TestVf& a = f.add();
  Ended ended;
  auto capture = std::make_shared<Capture>(create_file(path), Capture::Options{}, ended.callback());
  capture->begin();
  f.settle_taps({capture});
  a.send(make_frame({.dest_qpn = 9u << 12}));
  f.wait_taken(a);
  f.settle();
  capture->finish();
  CHECK(ended.result().packets == 1);
  CHECK(read_capture(path).size() == 1);
}

TEST_CASE("snaplen cuts frames", "[switch][capture]") {
  TempDir dir;
  const std::string path = dir.path() + "/c.pcapng";
  Ended ended;
  Capture::Options options;
  options.snaplen = 60;
  Capture capture(create_file(path), options, ended.callback());
  capture.begin();
  capture.on_frame(1, std::vector<std::uint8_t>(500, 7), {});
  capture.finish();
  CHECK(ended.result().packets == 1);
  CHECK(read_capture(path).at(0).data.size() == 60);
}

TEST_CASE("A full file system ends a capture and does not hold up the switch", "[switch][capture]") {
  Ended ended;
  Capture::Options options;
  options.buffer_bytes = 64 * 1024;
  options.patience = std::chrono::hours(1);
  Capture capture(sw::UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)), options, ended.callback());
  capture.begin();
  const std::vector<std::uint8_t> frame(4000, 1);
  for (int i = 0; i < 1000; ++i) capture.on_frame(1, frame, {});
  CHECK(ended.result().error == ENOSPC);
}

TEST_CASE("A slow reader of a pipe loses nothing", "[switch][capture]") {
  int fds[2];
  REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
  sw::UniqueFd reader(fds[0]);
  Ended ended;
  Capture::Options options;
  options.buffer_bytes = 64 * 1024;
  options.patience = std::chrono::hours(1);
  auto capture = std::make_unique<Capture>(sw::UniqueFd(fds[1]), options, ended.callback());
  capture->begin();
  constexpr std::size_t kCount = 500;
  std::thread producer([&] {
    const std::vector<std::uint8_t> frame(2000, 1);
    for (std::size_t i = 0; i < kCount; ++i) capture->on_frame(1, frame, {});
    capture->finish();
  });
  TempDir dir;
  const std::string path = dir.path() + "/c.pcapng";
  sw::UniqueFd file = create_file(path);
  int short_writes = 0;  // assertions belong to the main thread
  std::thread copier([&] {
    char buffer[512];
    ssize_t n = 0;
    while ((n = ::read(reader.get(), buffer, sizeof(buffer))) > 0) {
      short_writes += ::write(file.get(), buffer, static_cast<std::size_t>(n)) != n;
    }
  });
  producer.join();
  const CaptureResult result = ended.result();
  CHECK(result.packets == kCount);
  CHECK(result.lost == 0);
  capture.reset();  // closes the pipe
  copier.join();
  CHECK(short_writes == 0);
  CHECK(read_capture(path).size() == kCount);
}

TEST_CASE("A reader of a pipe that takes nothing makes the capture lose packets, counted, and the switch goes on",
          "[switch][capture]") {
  int fds[2];
  REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
  sw::UniqueFd reader(fds[0]);
  Ended ended;
  Capture::Options options;
  options.buffer_bytes = 64 * 1024;
  options.patience = std::chrono::milliseconds(5);
  auto capture = std::make_unique<Capture>(sw::UniqueFd(fds[1]), options, ended.callback());
  capture->begin();
  constexpr std::uint64_t kCount = 2000;
  const std::vector<std::uint8_t> frame(2000, 1);
  for (std::uint64_t i = 0; i < kCount; ++i) capture->on_frame(1, frame, {});
  capture->finish();
  std::thread drain([&] {
    char buffer[65536];
    while (::read(reader.get(), buffer, sizeof(buffer)) > 0) {
    }
  });
  const CaptureResult result = ended.result();
  CHECK(result.lost > 0);
  CHECK(result.packets + result.lost == kCount);
  capture.reset();  // closes the pipe
  drain.join();
}

TEST_CASE("The end of a capture does not wait for a reader that is stuck", "[switch][capture]") {
  int fds[2];
  REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
  sw::UniqueFd reader(fds[0]);
  Ended ended;
  {
    Capture capture(sw::UniqueFd(fds[1]), Capture::Options{}, ended.callback());
    capture.begin();
    const std::vector<std::uint8_t> frame(2000, 1);
    for (int i = 0; i < 200; ++i) capture.on_frame(1, frame, {});
  }
  CHECK(ended.result().error == ECANCELED);
}
