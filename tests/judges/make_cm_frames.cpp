// Writes a capture of what two CM agents say to each other, over RoCE v2, for check_cm.py to judge:
// make_cm_frames FILE. The values in the messages are those that check_cm.py expects.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "engine/observe/pcapng.h"
#include "protocols/cm/cm.h"
#include "protocols/cm/messages.h"
#include "protocols/cm/rdma_cm.h"
#include "protocols/ib/opcode.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"
#include "tests/support/frames.h"

using namespace softrnic;

namespace {

constexpr std::uint64_t kService = cm::service_id(cm::PortSpace::tcp, 7471);

Gid ipv4(std::uint8_t last) { return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, last}}; }

Bytes bytes_of(const char* s) { return {reinterpret_cast<const std::uint8_t*>(s), std::strlen(s)}; }

class Capture {
 public:
  explicit Capture(const char* path) : fd_(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)), writer_(fd_) {
    error_ = fd_ < 0 ? errno : writer_.begin("make_cm_frames");
    if (error_ == 0) error_ = writer_.add_interface("RoCE v2 IPv4", observe::LinkType::ethernet, &interface_);
  }
  void add(const mad::OutMad& m) {
    std::vector<std::uint8_t> t(wire::kBthSize + wire::Deth::kSize + mad::kMadSize);
    wire::Bth bth;
    bth.opcode = 0x64;  // UD SEND Only
    bth.dest_qpn = m.route.remote_qpn;
    bth.psn = psn_++;
    bth.write(t.data());
    wire::Deth{mad::kGsiQkey, mad::kGsiQpn}.write(t.data() + wire::kBthSize);
    std::memcpy(t.data() + wire::kBthSize + wire::Deth::kSize, m.data.data(), mad::kMadSize);
    roce::PathParams p;
    p.version = roce::Version::v2;
    p.sgid = m.route.local_gid;
    p.dgid = m.route.remote_gid;
    p.src_mac[0] = p.dst_mac[0] = 0x52;
    p.src_mac[5] = p.sgid.raw[15];
    p.dst_mac[5] = p.dgid.raw[15];
    p.udp_sport = 0xC001;
    const auto f = make_frame(roce::HeaderTemplate(p), t);
    if (error_ == 0) {
      error_ = writer_.write_packet(interface_, time_ += 1000, f, static_cast<std::uint32_t>(f.size()),
                                    observe::Direction::out, "MAD");
    }
  }
  int finish() { return error_ != 0 ? error_ : writer_.finish(time_); }

 private:
  int fd_;
  observe::PcapngWriter writer_;
  int error_ = 0;
  std::uint32_t interface_ = 0, psn_ = 0;
  std::uint64_t time_ = 1'700'000'000'000'000'000u;
};

cm::AgentOptions options(std::uint64_t guid) {
  cm::AgentOptions o;
  o.ca_guid = guid;
  o.ca_ack_delay = 15;
  o.seed = guid;
  return o;
}

class Dialogue {
 public:
  explicit Dialogue(Capture& capture)
      : capture_(capture), a_(options(0xA1A2A3A4A5A6A7A8)), b_(options(0xB1B2B3B4B5B6B7B8)) {
    cm::CommId id;
    b_.listen(kService, 0, &id);
  }

  void connection() {
    cm::CommId id;
    a_.connect(0, req(kService), &id);
    pump();
    const cm::CommId peer = event(b_).id;
    b_.mra(0, peer, 24);
    pump();
    event(a_);
    cm::RepParams r;
    r.qpn = 0x654321;
    r.starting_psn = 0x222222;
    r.responder_resources = 5;
    r.initiator_depth = 6;
    r.rnr_retry_count = 7;
    r.srq = true;
    r.private_data = bytes_of("accepted");
    b_.accept(0, peer, r);
    pump();
    event(a_);
    a_.ready(0, id, bytes_of("ready"));
    pump();
    event(b_);
    a_.disconnect(0, id, bytes_of("bye"));
    pump();
    event(b_);
    b_.confirm_disconnect(0, peer, bytes_of("farewell"));
    pump();
    event(a_);
  }
  void refusals() {
    cm::CommId id;
    a_.connect(0, req(kService + 1), &id);  // nobody listens
    pump();
    event(a_);
    a_.connect(0, req(kService), &id);
    pump();
    const std::uint8_t info[] = {0xDE, 0xAD};
    b_.reject(0, event(b_).id, cm::RejReason::consumer_defined, info, bytes_of("no"));
    pump();
    event(a_);
  }
  void resolution() {
    cm::SidrReqParams p;
    p.service_id = kService;
    p.timeout = 1'000'000;
    p.route = route(1, 2);
    cm::CommId id;
    a_.sidr_request(0, p, &id);
    pump();
    b_.sidr_reply(0, event(b_).id, {});
    pump();
    mad::OutMad lap{route(1, 2), cm::make_mad(9, cm::LapMessage{1, 2, 3, 4, {}})};
    capture_.add(lap);
    b_.on_mad(0, lap.route.reversed(), lap.data);
    pump();
  }

 private:
  static mad::MadRoute route(std::uint8_t from, std::uint8_t to) {
    mad::MadRoute r;
    r.local_gid = ipv4(from);
    r.remote_gid = ipv4(to);
    return r;
  }
  cm::ReqParams req(std::uint64_t service) {
    cm::IpHeader ip;
    ip.src_port = 0x1234;
    ip.src = ipv4(1);
    ip.dst = ipv4(2);
    private_data_.assign(cm::kReqPrivateData, 0);
    ip.write(private_data_.data());
    std::memcpy(private_data_.data() + cm::IpHeader::kSize, "hello", 5);
    cm::ReqParams p;
    p.service_id = service;
    p.qpn = 0x123456;
    p.starting_psn = 0x111111;
    p.responder_resources = 3;
    p.initiator_depth = 4;
    p.remote_cm_response_timeout = 20;
    p.local_cm_response_timeout = 19;
    p.retry_count = 7;
    p.rnr_retry_count = 6;
    p.max_cm_retries = 15;
    p.path_mtu = 5;
    p.srq = true;
    p.route = route(1, 2);
    p.path.local_gid = ipv4(1);
    p.path.remote_gid = ipv4(2);
    p.path.flow_label = 0xABCDE;
    p.path.traffic_class = 0x68;
    p.path.hop_limit = 64;
    p.path.sl = 3;
    p.path.rate = 7;
    p.path.packet_life_time = 16;
    p.private_data = private_data_;
    return p;
  }
  static cm::Event event(cm::Agent& agent) {
    cm::Event e;
    agent.poll_event(&e);
    return e;
  }
  void pump() {
    mad::OutMad m;
    for (bool more = true; more;) {
      more = false;
      while (a_.poll_transmit(0, &m)) {
        more = true;
        capture_.add(m);
        b_.on_mad(0, m.route.reversed(), m.data);
      }
      while (b_.poll_transmit(0, &m)) {
        more = true;
        capture_.add(m);
        a_.on_mad(0, m.route.reversed(), m.data);
      }
    }
  }

  Capture& capture_;
  cm::Agent a_, b_;
  std::vector<std::uint8_t> private_data_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_cm_frames FILE\n");
    return 2;
  }
  Capture capture(argv[1]);
  Dialogue dialogue(capture);
  dialogue.connection();
  dialogue.refusals();
  dialogue.resolution();
  const int e = capture.finish();
  if (e != 0) std::fprintf(stderr, "make_cm_frames: %s: %s\n", argv[1], std::strerror(e));
  return e == 0 ? 0 : 1;
}
