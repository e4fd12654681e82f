// A station on an Ethernet that has a communication manager and nothing else: it sets up connections of queue pairs
// that do not exist. For the connection manager of a kernel on the same network to talk to.
//
//   cm_station INTERFACE ADDRESS listen PORT COUNT           accepts COUNT connections or resolutions
//   cm_station INTERFACE ADDRESS connect PEER PORT COUNT     makes COUNT connections
//   cm_station INTERFACE ADDRESS resolve PEER PORT COUNT     resolves the UDP port COUNT times
//
// Connections that the peer does not end are ended after a while. Prints a line for every event. Exit code: 0 when all
// COUNT went from beginning to end, 1 when not within 60 s.
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocols/cm/cm.h"
#include "protocols/cm/rdma_cm.h"
#include "protocols/neigh/host_stack.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"
#include "tests/support/frames.h"

using namespace softrnic;

namespace {

constexpr neigh::Mac kMac{0x52, 0x54, 0, 0, 0, 0x77};
constexpr Nanos kMs = 1'000'000, kLimit = 60'000 * kMs, kUse = 300 * kMs;
constexpr std::uint8_t kUdSendOnly = 0x64;

Nanos clock_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<Nanos>(t.tv_sec) * 1'000'000'000 + static_cast<Nanos>(t.tv_nsec);
}

Gid gid_of(const char* address) {
  in_addr a{};
  inet_pton(AF_INET, address, &a);
  return neigh::from_ipv4(ntohl(a.s_addr));
}

// The packet socket, the host, and the frames of management datagrams.
class Network {
 public:
  Network(const char* interface, const Gid& ip) : ip_(ip), stack_(options()) {
    fd_ = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_protocol = htons(ETH_P_ALL);
    to.sll_ifindex = static_cast<int>(if_nametoindex(interface));
    packet_mreq all{};
    all.mr_ifindex = to.sll_ifindex;
    all.mr_type = PACKET_MR_PROMISC;
    if (fd_ < 0 || bind(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0 ||
        setsockopt(fd_, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0) {
      std::perror("cm_station");
      std::exit(2);
    }
    stack_.add_address(clock_now(), {ip, 24, neigh::kNoVlan});
  }
  ~Network() { close(fd_); }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  void send(Nanos now, const mad::OutMad& m) {
    roce::PathParams p;
    p.sgid = m.route.local_gid;
    p.dgid = m.route.remote_gid;
    std::copy(kMac.begin(), kMac.end(), p.src_mac);
    p.udp_sport = 0xC123;
    std::vector<std::uint8_t> t(kBth + wire::Deth::kSize + mad::kMadSize);
    wire::Bth bth;
    bth.opcode = kUdSendOnly;
    bth.dest_qpn = m.route.remote_qpn;
    bth.psn = psn_++;
    bth.write(t.data());
    wire::Deth{mad::kGsiQkey, mad::kGsiQpn}.write(t.data() + kBth);
    std::copy(m.data.begin(), m.data.end(), t.begin() + kBth + wire::Deth::kSize);
    std::vector<std::uint8_t> f = make_frame(roce::HeaderTemplate(p), t);
    neigh::Mac mac;
    if (stack_.send(now, p.dgid, neigh::kNoVlan, f, &mac) == neigh::HostStack::Verdict::ready) {
      std::copy(mac.begin(), mac.end(), f.begin());  // no part of the ICRC
      write_frame(f);
    }
    flush(now);
  }

  // Waits until there is something to do, and gives the next management datagram.
  bool receive(Nanos until, mad::MadRoute* route, std::vector<std::uint8_t>* out) {
    const Nanos now = clock_now(), due = std::min(until, stack_.next_timeout());
    const int wait = due <= now ? 0 : static_cast<int>(std::min<Nanos>((due - now) / kMs + 1, 100));
    pollfd p{fd_, POLLIN, 0};
    if (poll(&p, 1, wait) > 0) {
      std::uint8_t buffer[2048];
      sockaddr_ll from{};
      socklen_t size = sizeof from;
      const ssize_t n = recvfrom(fd_, buffer, sizeof buffer, 0, reinterpret_cast<sockaddr*>(&from), &size);
      if (n > 0 && from.sll_pkttype != PACKET_OUTGOING &&  // what this socket sent is seen as well
          take({buffer, static_cast<std::size_t>(n)}, route, out))
        return true;
    }
    stack_.on_timeout(clock_now());
    flush(clock_now());
    return false;
  }

 private:
  static constexpr std::size_t kBth = wire::kBthSize;

  static neigh::HostOptions options() {
    neigh::HostOptions o;
    o.mac = kMac;
    return o;
  }
  void write_frame(Bytes f) { [[maybe_unused]] const ssize_t n = ::send(fd_, f.data(), f.size(), 0); }
  void flush(Nanos now) {
    std::uint8_t frame[2048];
    while (const std::size_t n = stack_.poll_transmit(now, frame)) write_frame({frame, n});
  }
  bool take(Bytes frame, mad::MadRoute* route, std::vector<std::uint8_t>* out) {
    roce::RxFrame f;
    if (roce::parse(frame, &f) != roce::FrameError::none || f.dgid != ip_) {
      stack_.on_packet(clock_now(), frame);
      flush(clock_now());
      return false;
    }
    const wire::BthView bth(f.transport.data());
    const std::size_t headers = kBth + wire::Deth::kSize;
    if (!roce::icrc_ok(f) || bth.opcode() != kUdSendOnly || bth.dest_qpn() != mad::kGsiQpn ||
        f.transport.size() < headers || wire::Deth::read(f.transport.data() + kBth).qkey != mad::kGsiQkey) {
      return false;
    }
    route->local_gid = f.dgid;
    route->remote_gid = f.sgid;
    out->assign(f.transport.begin() + headers, f.transport.end());
    return true;
  }

  const Gid ip_;
  int fd_;
  neigh::HostStack stack_;
  std::uint32_t psn_ = 0;
};

class Station {
 public:
  Station(const char* interface, const char* address)
      : ip_(gid_of(address)), network_(interface, ip_), agent_(options()) {}

  void listen(std::uint16_t port, unsigned count) {
    cm::CommId id;
    agent_.listen(cm::service_id(cm::PortSpace::tcp, port), 0, &id);
    agent_.listen(cm::service_id(cm::PortSpace::udp, port), 0, &id);
    left_ = count;
  }
  void connect(const char* peer, std::uint16_t port, unsigned count) {
    left_ = count;
    for (unsigned i = 0; i < count; ++i) {
      cm::ReqParams p;
      p.service_id = cm::service_id(cm::PortSpace::tcp, port);
      p.qpn = next_qpn_++;
      p.starting_psn = 100 + i;
      p.responder_resources = p.initiator_depth = 1;
      p.remote_cm_response_timeout = p.local_cm_response_timeout = cm::kResponseTimeout;
      p.retry_count = p.rnr_retry_count = 7;
      p.max_cm_retries = cm::kMaxCmRetries;
      p.path_mtu = 3;
      p.route = route(peer);
      p.path.local_gid = ip_;
      p.path.remote_gid = p.route.remote_gid;
      p.path.hop_limit = 64;
      p.path.packet_life_time = cm::kRocePacketLifeTime;
      const auto data = header(peer, static_cast<std::uint16_t>(40000 + i));
      p.private_data = data;
      cm::CommId id;
      if (agent_.connect(clock_now(), p, &id) != cm::Result::ok) std::exit(2);
    }
  }
  void resolve(const char* peer, std::uint16_t port, unsigned count) {
    left_ = count;
    for (unsigned i = 0; i < count; ++i) {
      cm::SidrReqParams p;
      p.service_id = cm::service_id(cm::PortSpace::udp, port);
      p.timeout = cm::time_of_code(cm::kResponseTimeout);
      p.max_cm_retries = cm::kMaxCmRetries;
      p.route = route(peer);
      const auto data = header(peer, static_cast<std::uint16_t>(40000 + i));
      p.private_data = data;
      cm::CommId id;
      if (agent_.sidr_request(clock_now(), p, &id) != cm::Result::ok) std::exit(2);
    }
  }

  int run() {
    std::printf("ready\n");
    std::fflush(stdout);
    const Nanos end = clock_now() + kLimit;
    while (left_ > 0 || agent_.size() > 0) {
      const Nanos now = clock_now();
      if (now > end) return 1;
      agent_.on_timeout(now);
      for (auto it = in_use_.begin(); it != in_use_.end();) {
        if (it->second <= now && agent_.disconnect(now, it->first) == cm::Result::ok) std::printf("disconnect\n");
        it = it->second <= now ? in_use_.erase(it) : std::next(it);
      }
      cm::Event e;
      while (agent_.poll_event(&e)) on_event(e);
      mad::OutMad out;
      while (agent_.poll_transmit(now, &out)) network_.send(now, out);
      mad::MadRoute from;
      std::vector<std::uint8_t> in;
      if (network_.receive(std::min(agent_.next_timeout(), now + 20 * kMs), &from, &in)) {
        agent_.on_mad(clock_now(), from, in);
      }
      std::fflush(stdout);
    }
    std::printf("done, %u failed\n", failed_);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  static cm::AgentOptions options() {
    cm::AgentOptions o;
    o.ca_guid = 0x0254'00FF'FE00'0077;
    o.ca_ack_delay = 15;
    o.seed = clock_now();
    o.sidr_linger = 2'000 * kMs;
    return o;
  }
  mad::MadRoute route(const char* peer) const {
    mad::MadRoute r;
    r.local_gid = ip_;
    r.remote_gid = gid_of(peer);
    return r;
  }
  std::vector<std::uint8_t> header(const char* peer, std::uint16_t port) const {
    std::vector<std::uint8_t> data(cm::IpHeader::kSize);
    cm::IpHeader h;
    h.src_port = port;
    h.src = ip_;
    h.dst = gid_of(peer);
    h.write(data.data());
    return data;
  }
  void over(cm::CommId id, bool failed) {
    agent_.destroy(clock_now(), id);
    in_use_.erase(id);
    failed_ += failed ? 1 : 0;
    if (left_ > 0) --left_;
  }

  void on_event(const cm::Event& e) {
    const Nanos now = clock_now();
    switch (e.kind) {
      case cm::EventKind::req_received: {
        const auto h = cm::IpHeader::read(e.data());
        std::printf("req_received qpn=%u addresses=%d mtu=%u\n", e.remote_qpn, h.has_value(), e.path_mtu);
        cm::RepParams p;
        p.qpn = next_qpn_++;
        p.starting_psn = 7;
        p.responder_resources = e.responder_resources;
        p.initiator_depth = e.initiator_depth;
        p.rnr_retry_count = 7;
        agent_.accept(now, e.id, p);
        break;
      }
      case cm::EventKind::rep_received:
        std::printf("rep_received qpn=%u\n", e.remote_qpn);
        agent_.ready(now, e.id);
        in_use_[e.id] = now + kUse;
        break;
      case cm::EventKind::rtu_received:
        std::printf("rtu_received\n");
        in_use_[e.id] = now + kUse;
        break;
      case cm::EventKind::dreq_received:
        std::printf("dreq_received\n");
        agent_.confirm_disconnect(now, e.id);
        over(e.id, false);
        break;
      case cm::EventKind::drep_received:
        std::printf("drep_received\n");
        over(e.id, false);
        break;
      case cm::EventKind::rej_received:
        std::printf("rej_received reason=%u\n", static_cast<unsigned>(e.reason));
        over(e.id, true);
        break;
      case cm::EventKind::sidr_req_received: {
        std::printf("sidr_req_received addresses=%d\n", cm::IpHeader::read(e.data()).has_value());
        cm::SidrRepParams p;
        p.qpn = next_qpn_++;
        p.qkey = 0x01234567;
        agent_.sidr_reply(now, e.id, p);
        over(e.id, false);
        break;
      }
      case cm::EventKind::sidr_rep_received:
        std::printf("sidr_rep_received status=%u qpn=%u qkey=0x%08x\n", static_cast<unsigned>(e.sidr_status),
                    e.remote_qpn, e.remote_qkey);
        over(e.id, e.sidr_status != cm::SidrStatus::ok);
        break;
      case cm::EventKind::mra_received:
        std::printf("mra_received\n");
        break;
      case cm::EventKind::req_error:
      case cm::EventKind::rep_error:
      case cm::EventKind::dreq_error:
      case cm::EventKind::sidr_req_error:
        std::printf("no answer\n");
        over(e.id, true);
        break;
      default:
        break;
    }
  }

  const Gid ip_;
  Network network_;
  cm::Agent agent_;
  std::map<cm::CommId, Nanos> in_use_;  // established, to be ended then
  std::uint32_t next_qpn_ = 0x4001;
  unsigned left_ = 0, failed_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 3 ? argv[3] : "";
  const bool passive = mode == "listen";
  if ((!passive || argc != 6) && ((mode != "connect" && mode != "resolve") || argc != 7)) {
    std::fprintf(stderr, "usage: cm_station INTERFACE ADDRESS listen PORT COUNT | connect|resolve PEER PORT COUNT\n");
    return 2;
  }
  const auto port = static_cast<std::uint16_t>(std::atoi(argv[argc - 2]));
  const auto count = static_cast<unsigned>(std::atoi(argv[argc - 1]));
  Station station(argv[1], argv[2]);
  if (passive) {
    station.listen(port, count);
  } else if (mode == "connect") {
    station.connect(argv[4], port, count);
  } else {
    station.resolve(argv[4], port, count);
  }
  return station.run();
}
