// Bad input for a port: frames from captures, altered at random, and rubbish, sent into an Ethernet.
//
//   storm -i INTERFACE -m MAC -g GID -x GID [options] CAPTURE...
//     -m, -g  the station to be hit, and its address that the victims listen at
//     -x      address that the frames for the victims come from
//     -v      victims: numbers of queue pairs that take frames from -x; any harm to them is fair
//     -k, -b  R_Key and address of memory that the victims have for others
//     -l      bystanders: numbers of queue pairs that only get what must not harm them
//     -p      addresses (GIDs, with commas) of the bystanders' peers: nobody pretends to be those stations
//     -n, -r, -s  number of frames, frames a second, seed
//     -t      seconds after which it ends in any case
//     -w      writes the last frames to this capture
// Addresses are IPv6, IPv4 ones mapped. The same captures, options and seed give the same frames.
#include <arpa/inet.h>
#include <getopt.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <pcap/pcap.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "protocols/common/bytes.h"
#include "protocols/ib/opcode.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eth.h"
#include "protocols/wire/eths.h"
#include "protocols/wire/icmp.h"
#include "protocols/wire/icmpv6.h"
#include "protocols/wire/icrc.h"
#include "protocols/wire/inet_checksum.h"
#include "protocols/wire/ipv4.h"
#include "protocols/wire/ipv6.h"
#include "protocols/wire/vlan.h"
#include "tests/support/frames.h"

using namespace softrnic;

namespace {

using Frame = std::vector<std::uint8_t>;

constexpr std::size_t kLongest = 1500 + 14;
constexpr std::size_t kKept = 4096;  // last frames
constexpr std::uint64_t kBurst = 16;

struct Options {
  std::string interface, last;
  std::array<std::uint8_t, 6> mac{};
  Gid own{}, attacker{};
  std::vector<std::uint32_t> victims, bystanders;
  std::vector<Gid> spared;
  std::uint32_t rkey = 0;
  std::uint64_t address = 0, frames = 100000, rate = 20000, seed = 1, seconds = 3600;
} opt;

volatile std::sig_atomic_t stopped = 0;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "storm: %s\n", what.c_str());
  std::exit(1);
}

bool contains(Bytes in, Bytes what) { return std::search(in.begin(), in.end(), what.begin(), what.end()) != in.end(); }

// ---- where the network layer of a frame begins -----
struct Layers {
  std::uint16_t ethertype = 0;
  std::size_t at = 0;
};
Layers layers_of(const Frame& f) {
  Layers l;
  if (f.size() < 14) return l;
  l.ethertype = load_be16(f.data() + 12);
  l.at = 14;
  if (l.ethertype == wire::kEthertypeVlan && f.size() >= 18) {
    l.ethertype = load_be16(f.data() + 16);
    l.at = 18;
  }
  return l;
}

// ---- the captures: frames by kind, so that rare ones are as frequent as others -----
class Corpus {
 public:
  void load(const std::string& path) {
    char why[PCAP_ERRBUF_SIZE];
    pcap_t* p = ::pcap_open_offline(path.c_str(), why);
    if (p == nullptr) die(why);
    if (::pcap_datalink(p) != DLT_EN10MB) die(path + " is no capture of an Ethernet");
    pcap_pkthdr* h = nullptr;
    const u_char* data = nullptr;
    while (::pcap_next_ex(p, &h, &data) == 1)
      if (h->caplen >= 15 && h->caplen <= kLongest) add(Frame(data, data + h->caplen));
    ::pcap_close(p);
  }
  template <class Random>
  const Frame& pick(Random& random) const {
    const auto& frames = kinds_[random() % kinds_.size()];
    return frames[random() % frames.size()];
  }
  std::size_t kinds() const { return kinds_.size(); }

 private:
  static std::string kind_of(const Frame& f) {
    const Layers l = layers_of(f);
    std::string kind = std::to_string(l.ethertype) + (l.at == 18 ? "v" : "");
    roce::RxFrame rx;
    if (roce::parse(f, &rx) == roce::FrameError::none) return kind + "r" + std::to_string(rx.transport[0]);
    const auto append = [&](std::size_t at) {
      if (l.at + at < f.size()) kind += "-" + std::to_string(f[l.at + at]);
    };
    if (l.ethertype == wire::kEthertypeIpv4) append(9), append(20);
    if (l.ethertype == wire::kEthertypeIpv6) append(6), append(40);
    if (l.ethertype == wire::kEthertypeArp) append(7);
    return kind;
  }
  void add(Frame f) {
    const auto [it, is_new] = index_.emplace(kind_of(f), kinds_.size());
    if (is_new) kinds_.emplace_back();
    auto& frames = kinds_[it->second];
    if (frames.size() < 64) frames.push_back(std::move(f));
  }
  std::map<std::string, std::size_t> index_;
  std::vector<std::vector<Frame>> kinds_;
};

// ---- what is done to a frame -----
class Mutator {
 public:
  Mutator(const Corpus& corpus, std::uint64_t seed) : corpus_(corpus), random_(seed) {}

  Frame next() {
    for (;;) {
      Frame f = one_in(50) ? rubbish() : corpus_.pick(random_);
      if (!one_in(3)) aim(f);
      for (std::uint64_t n = random_() % 4; n != 0; --n) damage(f);
      address(f);
      if (one_in(2)) repair(f);
      if (f.size() < 15 || f.size() > kLongest || harms_bystanders(f)) continue;
      return f;
    }
  }

 private:
  bool one_in(std::uint64_t n) { return random_() % n == 0; }
  std::size_t position(const Frame& f) { return random_() % f.size(); }
  template <class T>
  T one_of(const std::vector<T>& all, T otherwise) {
    return all.empty() ? otherwise : all[random_() % all.size()];
  }

  Frame rubbish() {
    static constexpr std::uint16_t kTypes[] = {0x0800, 0x86DD, 0x0806, 0x8100, 0x8915, 0x88CC, 0x0000, 0xFFFF};
    Frame f(15 + random_() % 200);
    for (auto& b : f) b = static_cast<std::uint8_t>(random_());
    store_be16(f.data() + 12, kTypes[random_() % std::size(kTypes)]);
    return f;
  }

  // To our station, from another one, mostly.
  void address(Frame& f) {
    if (f.size() < 14) return;
    const bool group = (f[0] & 1) != 0;
    if (!one_in(20) && !(group && one_in(2))) std::copy(opt.mac.begin(), opt.mac.end(), f.begin());
    if (!one_in(50)) f[6] = 0x02, f[7] = 0x66;
  }

  // A RoCE packet becomes one for a queue pair that exists, of a path that the station takes.
  void aim(Frame& f) {
    roce::RxFrame rx;
    if (roce::parse(f, &rx) != roce::FrameError::none) return;
    Frame t(rx.transport.begin(), rx.transport.end());
    if (one_in(3)) t[0] = static_cast<std::uint8_t>(random_());
    const bool bystander = one_in(5);
    aim_transport(t, bystander ? one_of(opt.bystanders, 0x100u) : one_of(opt.victims, 0x100u));
    roce::PathParams path;
    path.version = one_in(10) ? roce::Version::v1 : roce::Version::v2;
    // For a bystander: from the wrong station, or from the right one and damaged.
    const bool pretended = bystander && one_in(2);
    path.sgid = pretended ? one_of(opt.spared, opt.attacker) : opt.attacker;
    path.dgid = one_in(20) ? rx.dgid : opt.own;
    if (one_in(20)) path.has_vlan = true, path.vlan_id = static_cast<std::uint16_t>(random_() & 0xFFF);
    path.traffic_class = static_cast<std::uint8_t>(one_in(4) ? random_() : 0);
    f = make_frame(roce::HeaderTemplate(path), t);
    if (pretended) f[f.size() - 4] ^= 1;  // in the ICRC
  }

  void aim_transport(Frame& t, std::uint32_t qpn) {
    const std::uint32_t special[] = {0, 1, 0xFFFFFF, static_cast<std::uint32_t>(random_()) & 0xFFFFFF};
    if (one_in(20)) qpn = special[random_() % std::size(special)];
    store_be24(t.data() + 5, qpn);
    if (!one_in(10)) store_be24(t.data() + 9, static_cast<std::uint32_t>(random_() % 6));  // where the victims are
    const ib::OpcodeInfo& op = ib::opcode_info(t[0]);
    if (!op.known() || t.size() < op.header_len) return;
    if (op.reth != 0 && !one_in(4)) {
      const std::uint32_t lengths[] = {0,          1,          4096,
                                       0x7FFFFFFF, 0xFFFFFFFF, static_cast<std::uint32_t>(t.size() - op.header_len)};
      wire::Reth{opt.address + random_() % 70000, opt.rkey, lengths[random_() % std::size(lengths)]}.write(t.data() +
                                                                                                           op.reth);
    }
    if (op.atomic_eth != 0 && !one_in(4))
      wire::AtomicEth{opt.address + random_() % 64 * 4, opt.rkey, random_(), random_()}.write(t.data() + op.atomic_eth);
    if (op.deth != 0 && !one_in(4)) wire::Deth{0x11111111, 0x1234}.write(t.data() + op.deth);
  }

  void damage(Frame& f) {
    static constexpr std::uint8_t kEdges[] = {0, 1, 0x7F, 0x80, 0xFF};
    switch (random_() % 8) {
      case 0:
      case 1:
        f[position(f)] ^= static_cast<std::uint8_t>(1u << random_() % 8);
        break;
      case 2:
        f[position(f)] = kEdges[random_() % std::size(kEdges)];
        break;
      case 3:  // in the headers
        f[14 + random_() % 60 % (f.size() - 14)] = static_cast<std::uint8_t>(random_());
        break;
      case 4:
        f.resize(std::max<std::size_t>(15, position(f)));
        break;
      case 5:
        f.resize(std::min(kLongest, f.size() + random_() % 300), static_cast<std::uint8_t>(random_()));
        break;
      case 6: {  // the end of another one
        const Frame& other = corpus_.pick(random_);
        const std::size_t at = std::max<std::size_t>(14, position(f));
        f.resize(at);
        if (at < other.size()) f.insert(f.end(), other.begin() + static_cast<std::ptrdiff_t>(at), other.end());
        if (f.size() < 15) f.push_back(0);
        break;
      }
      case 7: {  // a number of two bytes, such as a length
        const std::size_t at = 14 + random_() % 40 % (f.size() - 14);
        if (at + 2 <= f.size()) store_be16(f.data() + at, static_cast<std::uint16_t>(one_in(2) ? random_() : f.size()));
        break;
      }
    }
  }

  // Checksums and ICRC as they should be, so that what is wrong gets further.
  void repair(Frame& f) {
    const Layers l = layers_of(f);
    std::uint8_t* p = f.data() + l.at;
    const std::size_t left = f.size() - l.at;
    if (l.ethertype == wire::kEthertypeIpv4 && left >= 20) {
      const std::size_t header = (p[0] & 15u) * 4u, total = load_be16(p + 2);
      if (header < 20 || header > left) return;
      store_be16(p + 10, 0);
      store_be16(p + 10, static_cast<std::uint16_t>(~wire::inet_fold(wire::inet_sum(p, header))));
      if ((p[9] == 1 || p[9] == 2) && total >= header + 8 && total <= left)
        wire::icmp_store_checksum(p + header, total - header);
    } else if (l.ethertype == wire::kEthertypeIpv6 && left >= 48) {
      const std::size_t payload = load_be16(p + 4);
      const std::size_t skip = p[6] == 0 ? 8u + 8u * p[41] : 0;
      if (payload > left - 40 || payload < skip + 8) return;
      const wire::Ipv6View ip(p);
      if (p[6] == 58 || (p[6] == 0 && p[40] == 58))
        wire::icmpv6_store_checksum(ip.src(), ip.dst(), p + 40 + skip, payload - skip);
    }
    roce::RxFrame rx;
    if (roce::parse(f, &rx) != roce::FrameError::none) return;
    const std::size_t end = static_cast<std::size_t>(rx.transport.data() - f.data()) + rx.transport.size();
    wire::icrc_store(f.data() + end, roce::icrc_of(rx));
  }

  // A frame that a bystander's peer could have sent itself, and one that takes over its address, may do harm, and to
  // any NIC.
  static bool harms_bystanders(const Frame& f) {
    const auto spared = [](const Gid& gid) {
      return std::find(opt.spared.begin(), opt.spared.end(), gid) != opt.spared.end();
    };
    roce::RxFrame rx;
    if (roce::parse(f, &rx) == roce::FrameError::none) {
      const std::uint32_t qpn = wire::BthView(rx.transport.data()).dest_qpn();
      return spared(rx.sgid) && roce::icrc_ok(rx) &&
             std::find(opt.bystanders.begin(), opt.bystanders.end(), qpn) != opt.bystanders.end();
    }
    return std::any_of(opt.spared.begin(), opt.spared.end(), [&](const Gid& gid) {
      const Bytes raw(gid.raw, sizeof gid.raw);
      return contains(f, roce::is_ipv4_mapped(gid) ? raw.subspan(12) : raw);
    });
  }

  const Corpus& corpus_;
  std::mt19937_64 random_;
};

// ---- the last frames, for the one who looks for the cause -----
class Last {
 public:
  void add(const Frame& f) {
    frames_.push_back(f);
    if (frames_.size() > kKept) frames_.pop_front();
  }
  void write(const std::string& path) const {
    pcap_t* p = ::pcap_open_dead(DLT_EN10MB, 65535);
    pcap_dumper_t* d = ::pcap_dump_open(p, path.c_str());
    if (d == nullptr) die(::pcap_geterr(p));
    for (const Frame& f : frames_) {
      pcap_pkthdr h{};
      h.caplen = h.len = static_cast<bpf_u_int32>(f.size());
      ::pcap_dump(reinterpret_cast<u_char*>(d), &h, f.data());
    }
    ::pcap_dump_close(d);
    ::pcap_close(p);
  }

 private:
  std::deque<Frame> frames_;
};

class Wire {
 public:
  explicit Wire(const std::string& interface) : fd_(::socket(AF_PACKET, SOCK_RAW, 0)) {
    sockaddr_ll at{};
    at.sll_family = AF_PACKET;
    at.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
    if (fd_ < 0 || at.sll_ifindex == 0 || ::bind(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0)
      die(interface + ": " + std::strerror(errno));
  }
  void send(const Frame& f) const {
    while (::send(fd_, f.data(), f.size(), 0) < 0) {
      if (errno != ENOBUFS && errno != EAGAIN && errno != EINTR) die(std::string("send: ") + std::strerror(errno));
      ::usleep(100);
    }
  }

 private:
  int fd_;
};

Gid gid_of(const char* text) {
  Gid gid{};
  if (::inet_pton(AF_INET6, text, gid.raw) != 1) die(std::string(text) + " is no address");
  return gid;
}
template <class F>
void each_word(char* text, F&& f) {
  for (char* word = std::strtok(text, ","); word != nullptr; word = std::strtok(nullptr, ",")) f(word);
}
std::uint32_t number(const char* text) { return static_cast<std::uint32_t>(std::strtoul(text, nullptr, 0)); }

void parse_options(int argc, char** argv) {
  for (int c = 0; (c = ::getopt(argc, argv, "i:m:g:x:v:l:p:k:b:n:r:s:t:w:")) != -1;) {
    switch (c) {
      case 'i':
        opt.interface = optarg;
        break;
      case 'm':
        for (std::size_t i = 0; i < 6; ++i)
          opt.mac[i] = static_cast<std::uint8_t>(std::strtoul(optarg + 3 * i, nullptr, 16));
        break;
      case 'g':
        opt.own = gid_of(optarg);
        break;
      case 'x':
        opt.attacker = gid_of(optarg);
        break;
      case 'v':
        each_word(optarg, [](const char* w) { opt.victims.push_back(number(w)); });
        break;
      case 'l':
        each_word(optarg, [](const char* w) { opt.bystanders.push_back(number(w)); });
        break;
      case 'p':
        each_word(optarg, [](const char* w) { opt.spared.push_back(gid_of(w)); });
        break;
      case 'k':
        opt.rkey = number(optarg);
        break;
      case 'b':
        opt.address = std::strtoull(optarg, nullptr, 0);
        break;
      case 'n':
        opt.frames = std::strtoull(optarg, nullptr, 0);
        break;
      case 'r':
        opt.rate = std::strtoull(optarg, nullptr, 0);
        break;
      case 's':
        opt.seed = std::strtoull(optarg, nullptr, 0);
        break;
      case 't':
        opt.seconds = std::strtoull(optarg, nullptr, 0);
        break;
      case 'w':
        opt.last = optarg;
        break;
      default:
        std::exit(2);
    }
  }
}

// Waits until the next burst is due. Who was late does not make up for it: the station loses frames that come too fast.
void keep_pace(timespec* due) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  if (now.tv_sec > due->tv_sec || (now.tv_sec == due->tv_sec && now.tv_nsec > due->tv_nsec)) *due = now;
  const auto ns = static_cast<std::uint64_t>(due->tv_nsec) + kBurst * 1'000'000'000u / opt.rate;
  *due = {due->tv_sec + static_cast<time_t>(ns / 1'000'000'000u), static_cast<long>(ns % 1'000'000'000u)};
  ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, due, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  parse_options(argc, argv);
  Corpus corpus;
  for (int i = optind; i < argc; ++i) corpus.load(argv[i]);
  if (corpus.kinds() == 0) die("no frames");
  std::signal(SIGTERM, [](int) { stopped = 1; });
  std::signal(SIGALRM, [](int) { stopped = 1; });
  ::alarm(static_cast<unsigned>(opt.seconds));
  const Wire wire(opt.interface);
  Mutator mutator(corpus, opt.seed);
  Last last;
  timespec due{};
  std::uint64_t sent = 0;
  while (sent < opt.frames && stopped == 0) {
    const Frame f = mutator.next();
    last.add(f);
    wire.send(f);
    if (++sent % kBurst == 0) keep_pace(&due);
  }
  if (!opt.last.empty()) last.write(opt.last);
  std::printf("seed %llu: %llu frames of %zu kinds\n", static_cast<unsigned long long>(opt.seed),
              static_cast<unsigned long long>(sent), corpus.kinds());
  return 0;
}
