// Two ends of queue pairs that check every byte they get. Runs on any verbs device, so that one end can be on softrnic
// and the other one on Linux's rxe.
//
//   verbs_pair [options]             server: responds, and receives what is sent
//   verbs_pair [options] HOST        client: requests
//
// Both ends get the same -o, -t, -s, -q, -n, -r; device, GID index and MTU may differ. With -R they repeat
// everything until the client gets SIGTERM.
#include <arpa/inet.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/interop/progs/open_device.h"

namespace {

struct Options {
  std::string device, host, operation = "send", type = "rc", port = "18600";
  std::vector<std::uint32_t> sizes{1, 2, 3, 4, 5, 1023, 1024, 1025, 4096, 4099, 65536};
  int gid = 0, mtu = 0, qps = 1, slots = 8, timeout = 15;
  bool srq = false, repeat = false;
} opt;

volatile std::sig_atomic_t stopped = 0;

[[noreturn]] void die(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::fprintf(stderr, "verbs_pair: ");
  std::vfprintf(stderr, format, args);
  std::fprintf(stderr, "\n");
  va_end(args);
  std::exit(1);
}
void must(int result, const char* what) {
  if (result != 0) die("%s: %s", what, std::strerror(result > 0 ? result : errno));
}
template <class T>
T* must_have(T* pointer, const char* what) {
  if (pointer == nullptr) die("%s: %s", what, std::strerror(errno));
  return pointer;
}

// ---- the connection on the side, by which the ends exchange addresses and keep in step -----
class Side {
 public:
  void open() {
    addrinfo hints{}, *list = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (opt.host.empty()) hints.ai_flags = AI_PASSIVE, hints.ai_family = AF_INET;
    if (::getaddrinfo(opt.host.empty() ? nullptr : opt.host.c_str(), opt.port.c_str(), &hints, &list) != 0)
      die("no such host");
    fd_ = ::socket(list->ai_family, SOCK_STREAM, 0);
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (opt.host.empty()) {
      must(::bind(fd_, list->ai_addr, list->ai_addrlen), "bind");
      must(::listen(fd_, 1), "listen");
      std::printf("listening\n");
      std::fflush(stdout);
      fd_ = ::accept(fd_, nullptr, nullptr);
      if (fd_ < 0) die("accept: %s", std::strerror(errno));
    } else {
      must(::connect(fd_, list->ai_addr, list->ai_addrlen), "connect");
    }
    ::freeaddrinfo(list);
  }
  void put(const void* data, std::size_t size) {
    if (::send(fd_, data, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) die("the other end is gone");
  }
  void get(void* data, std::size_t size) {
    if (::recv(fd_, data, size, MSG_WAITALL) != static_cast<ssize_t>(size)) die("the other end has failed");
  }
  // The client's `what`, on both ends.
  bool client_says(bool what) {
    opt.host.empty() ? get(&what, sizeof what) : put(&what, sizeof what);
    return what;
  }
  // Both ends have come to `step`.
  void meet(char step) {
    put(&step, 1);
    char other = 0;
    get(&other, 1);
    if (other != step) die("out of step: %c here, %c there", step, other);
  }

 private:
  int fd_ = -1;
};

struct Peer {
  std::uint32_t qpn, psn, rkey, mtu;
  std::uint64_t address;
  ibv_gid gid;
};

// ---- memory: slots of data with guards between them -----
constexpr std::uint8_t kGuard = 0xA5;
constexpr std::uint32_t kGrh = 40;
constexpr std::uint32_t kGuardSize = 64;

struct Memory {
  std::uint32_t stride = 0;
  std::vector<std::uint8_t> bytes;
  ibv_mr* mr = nullptr;

  // Data of slot i begins at every alignment.
  std::uint8_t* slot(int i) { return bytes.data() + static_cast<std::size_t>(i) * stride + kGuardSize + (i & 7); }
  void clear() { std::fill(bytes.begin(), bytes.end(), kGuard); }
};

std::uint8_t pattern(int slot, std::uint32_t size, std::uint32_t at) {
  return static_cast<std::uint8_t>((at * 167 + (at >> 8) * 13 + size * 31 + static_cast<std::uint32_t>(slot) * 71) ^
                                   0x5C);
}
void fill(std::uint8_t* p, int slot, std::uint32_t size) {
  for (std::uint32_t at = 0; at < size; ++at) p[at] = pattern(slot, size, at);
}
// All of the slot's data, and nothing around it.
void check(Memory& m, int slot, std::uint32_t size, std::uint32_t before = 0) {
  const std::uint8_t* p = m.slot(slot) + before;
  for (std::uint32_t at = 0; at < size; ++at)
    if (p[at] != pattern(slot, size, at))
      die("size %u, slot %d: byte %u is %02x, not %02x", size, slot, at, p[at], pattern(slot, size, at));
  for (std::uint32_t k = 0; k < 16; ++k)
    if (p[size + k] != kGuard || m.slot(slot)[-1 - static_cast<int>(k)] != kGuard)
      die("size %u, slot %d: bytes around the data were written", size, slot);
}

// ---- verbs -----
class Ends {
 public:
  explicit Ends(Side& side) : side_(side) {}

  void open() {
    context_ = must_have(open_device(opt.device), ("device " + opt.device).c_str());
    must(ibv_query_port(context_, 1, &port_), "query port");
    must(ibv_query_gid(context_, 1, opt.gid, &gid_), "query GID");
    pd_ = must_have(ibv_alloc_pd(context_), "PD");
    cq_ = must_have(ibv_create_cq(context_, 4 * opt.slots + 16, nullptr, nullptr, 0), "CQ");
    memory_.stride = *std::max_element(opt.sizes.begin(), opt.sizes.end()) + kGrh + 2 * kGuardSize + 8;
    memory_.bytes.resize(static_cast<std::size_t>(memory_.stride) * static_cast<std::size_t>(opt.slots));
    memory_.mr = must_have(ibv_reg_mr(pd_, memory_.bytes.data(), memory_.bytes.size(),
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                          IBV_ACCESS_REMOTE_ATOMIC),
                           "MR");
    if (opt.srq) {
      ibv_srq_init_attr attr{};
      attr.attr.max_wr = static_cast<std::uint32_t>(opt.slots);
      attr.attr.max_sge = 1;
      srq_ = must_have(ibv_create_srq(pd_, &attr), "SRQ");
    }
    for (int i = 0; i < opt.qps; ++i) create_qp();
  }

  void connect() {
    const int mtu = opt.mtu != 0 ? opt.mtu : port_.active_mtu;
    for (std::size_t i = 0; i < qps_.size(); ++i) {
      Peer mine{qps_[i]->qp_num,
                static_cast<std::uint32_t>(::rand()) & 0xFFFFFF,
                memory_.mr->rkey,
                static_cast<std::uint32_t>(mtu),
                reinterpret_cast<std::uint64_t>(memory_.bytes.data()),
                gid_};
      Peer theirs{};
      side_.put(&mine, sizeof(mine));
      side_.get(&theirs, sizeof(theirs));
      peers_.push_back(theirs);
      ready(qps_[i], mine, theirs);
    }
    side_.meet('c');
  }

  // One round of `size` bytes in every slot.
  void round(std::uint32_t size) {
    memory_.clear();
    const bool client = !opt.host.empty();
    if (opt.operation == "atomic") return atomics(client);
    const bool sends = opt.operation == "send" || opt.operation == "send_imm" || opt.operation == "write_imm";
    if (client && opt.operation != "read") fill_all(size);
    if (!client && opt.operation == "read") fill_all(size);
    if (!client && sends)
      for (int i = 0; i < opt.slots; ++i) post_recv(i, size);
    side_.meet('r');
    if (client) {
      for (int i = 0; i < opt.slots; ++i) post(i, size);
      complete(opt.slots, nullptr, size);
      if (opt.operation == "read")
        for (int i = 0; i < opt.slots; ++i) check(memory_, i, size);
    } else if (sends) {
      std::vector<int> order;
      complete(opt.slots, &order, size);
      check_received(order, size);
    }
    side_.meet('d');
    if (!client && opt.operation == "write")
      for (int i = 0; i < opt.slots; ++i) check(memory_, i, size);
  }

 private:
  bool ud() const { return opt.type == "ud"; }

  void create_qp() {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.srq = srq_;
    init.cap.max_send_wr = static_cast<std::uint32_t>(opt.slots);
    init.cap.max_recv_wr = srq_ != nullptr ? 0 : static_cast<std::uint32_t>(opt.slots);
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.qp_type = ud() ? IBV_QPT_UD : opt.type == "uc" ? IBV_QPT_UC : IBV_QPT_RC;
    ibv_qp* qp = must_have(ibv_create_qp(pd_, &init), "QP");
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = 0x11111111;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (init.qp_type == IBV_QPT_RC) attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud() ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
         "to INIT");
    qps_.push_back(qp);
  }

  void ready(ibv_qp* qp, const Peer& mine, const Peer& theirs) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = theirs.gid;
    a.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(opt.gid);
    a.ah_attr.grh.hop_limit = 64;
    if (ud()) {
      must(ibv_modify_qp(qp, &a, IBV_QP_STATE), "to RTR");
      a.qp_state = IBV_QPS_RTS;
      a.sq_psn = mine.psn;
      must(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN), "to RTS");
      handles_.push_back(must_have(ibv_create_ah(pd_, &a.ah_attr), "AH"));
      return;
    }
    a.path_mtu = static_cast<ibv_mtu>(std::min(mine.mtu, theirs.mtu));
    a.dest_qp_num = theirs.qpn;
    a.rq_psn = theirs.psn;
    a.max_dest_rd_atomic = 4;
    a.min_rnr_timer = 12;
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    const bool rc = opt.type == "rc";
    if (rc) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    must(ibv_modify_qp(qp, &a, mask), "to RTR");
    a.qp_state = IBV_QPS_RTS;
    a.sq_psn = mine.psn;
    a.timeout = static_cast<std::uint8_t>(opt.timeout);
    a.retry_cnt = a.rnr_retry = 7;
    a.max_rd_atomic = 4;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (rc) mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    must(ibv_modify_qp(qp, &a, mask), "to RTS");
  }

  std::size_t qp_of(int slot) const { return static_cast<std::size_t>(slot) % qps_.size(); }
  void fill_all(std::uint32_t size) {
    for (int i = 0; i < opt.slots; ++i) fill(memory_.slot(i), i, size);
  }
  ibv_sge sge(int slot, std::uint32_t size) {
    return {reinterpret_cast<std::uint64_t>(memory_.slot(slot)), size, memory_.mr->lkey};
  }

  void post_recv(int slot, std::uint32_t size) {
    ibv_sge s = sge(slot, size + (ud() ? kGrh : 0));
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = static_cast<std::uint64_t>(slot);
    wr.sg_list = &s;
    wr.num_sge = 1;
    must(srq_ != nullptr ? ibv_post_srq_recv(srq_, &wr, &bad) : ibv_post_recv(qps_[qp_of(slot)], &wr, &bad),
         "post recv");
  }

  void post(int slot, std::uint32_t size) {
    ibv_sge s = sge(slot, size);
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = static_cast<std::uint64_t>(slot);
    wr.sg_list = &s;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = htonl(static_cast<std::uint32_t>(slot));
    const std::string& o = opt.operation;
    wr.opcode = o == "send"       ? IBV_WR_SEND
                : o == "send_imm" ? IBV_WR_SEND_WITH_IMM
                : o == "write"    ? IBV_WR_RDMA_WRITE
                : o == "read"     ? IBV_WR_RDMA_READ
                                  : IBV_WR_RDMA_WRITE_WITH_IMM;
    const Peer& peer = peers_[qp_of(slot)];
    wr.wr.rdma.remote_addr = peer.address + static_cast<std::uint64_t>(memory_.slot(slot) - memory_.bytes.data());
    wr.wr.rdma.rkey = peer.rkey;
    if (ud()) {
      wr.wr.ud.ah = handles_[qp_of(slot)];
      wr.wr.ud.remote_qpn = peer.qpn;
      wr.wr.ud.remote_qkey = 0x11111111;
    }
    must(ibv_post_send(qps_[qp_of(slot)], &wr, &bad), "post send");
  }

  // Takes completions; `order`: the slot that each received message went to, by the slot it came from.
  void complete(int count, std::vector<int>* order, std::uint32_t size) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
    if (order != nullptr) order->assign(static_cast<std::size_t>(opt.slots), -1);
    std::vector<int> next(qps_.size());
    while (count > 0) {
      ibv_wc wc{};
      const int n = ibv_poll_cq(cq_, 1, &wc);
      if (n < 0) die("poll CQ");
      if (n == 0) {
        if (std::chrono::steady_clock::now() > end) die("size %u: %d completions are missing", size, count);
        continue;
      }
      if (wc.status != IBV_WC_SUCCESS)
        die("size %u, slot %d: %s", size, static_cast<int>(wc.wr_id), ibv_wc_status_str(wc.status));
      --count;
      if (order == nullptr) continue;
      const bool write = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
      if (!write && wc.byte_len != size + (ud() ? kGrh : 0)) die("size %u: %u bytes received", size, wc.byte_len);
      // Messages of a QP come in order: the k-th one of QP q came from slot q + k * QPs.
      const std::size_t q = static_cast<std::size_t>(
          std::find_if(qps_.begin(), qps_.end(), [&](ibv_qp* p) { return p->qp_num == wc.qp_num; }) - qps_.begin());
      if (q == qps_.size()) die("a completion of an unknown QP");
      int from = static_cast<int>(q) + next[q]++ * opt.qps;
      if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) {
        const int imm = static_cast<int>(ntohl(wc.imm_data));
        if (!ud() && imm != from) die("size %u: immediate data %d, expected %d", size, imm, from);
        from = imm;
      } else if (opt.operation != "send") {
        die("size %u: immediate data is missing", size);
      }
      order->at(static_cast<std::size_t>(from)) = write ? from : static_cast<int>(wc.wr_id);
    }
  }

  void check_received(const std::vector<int>& order, std::uint32_t size) {
    const std::uint32_t before = ud() ? kGrh : 0;
    for (int from = 0; from < opt.slots; ++from) {
      const int to = order[static_cast<std::size_t>(from)];
      if (to < 0) die("size %u: message %d did not come", size, from);
      const std::uint8_t* p = memory_.slot(to) + before;
      for (std::uint32_t at = 0; at < size; ++at)
        if (p[at] != pattern(from, size, at)) die("size %u, message %d: byte %u is wrong", size, from, at);
      for (std::uint32_t k = 0; k < 16; ++k)
        if (p[size + k] != kGuard) die("size %u, message %d: bytes behind the data were written", size, from);
    }
  }

  // Fetch-and-add and compare-and-swap on one number of the server, every result checked.
  void atomics(bool client) {
    const std::size_t offset = kGuardSize;  // aligned, as atomics must be
    auto* number = reinterpret_cast<std::uint64_t*>(memory_.bytes.data() + offset +
                                                    (-reinterpret_cast<std::uintptr_t>(memory_.bytes.data()) & 7));
    const std::uint64_t start = 0x1122334455667788u;
    *number = start;
    side_.meet('r');
    if (client) {
      std::uint64_t expected = start;
      const auto where = static_cast<std::uint64_t>(reinterpret_cast<std::uint8_t*>(number) - memory_.bytes.data());
      if (peers_[0].address % 8 != reinterpret_cast<std::uint64_t>(memory_.bytes.data()) % 8) die("alignments differ");
      for (int i = 0; i < opt.slots; ++i) {
        const bool swap = (i & 1) != 0;
        *number = 0;
        ibv_sge s{reinterpret_cast<std::uint64_t>(number), 8, memory_.mr->lkey};
        ibv_send_wr wr{}, *bad = nullptr;
        wr.sg_list = &s;
        wr.num_sge = 1;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.opcode = swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr.wr.atomic.remote_addr = peers_[qp_of(i)].address + where;
        wr.wr.atomic.rkey = peers_[qp_of(i)].rkey;
        // Every other swap compares with the wrong number and must change nothing.
        const bool miss = (i & 2) != 0;
        wr.wr.atomic.compare_add = swap ? expected + (miss ? 1 : 0) : 0x100000001u * static_cast<unsigned>(i + 1);
        wr.wr.atomic.swap = ~expected;
        must(ibv_post_send(qps_[qp_of(i)], &wr, &bad), "post atomic");
        complete(1, nullptr, 8);
        if (*number != expected)
          die("atomic %d: result %llx, expected %llx", i, static_cast<unsigned long long>(*number),
              static_cast<unsigned long long>(expected));
        if (!swap) expected += wr.wr.atomic.compare_add;
        if (swap && !miss) expected = ~expected;
      }
      side_.put(&expected, sizeof(expected));
    } else {
      std::uint64_t expected = 0;
      side_.get(&expected, sizeof(expected));
      if (*number != expected)
        die("the number is %llx, expected %llx", static_cast<unsigned long long>(*number),
            static_cast<unsigned long long>(expected));
    }
    side_.meet('d');
  }

  Side& side_;
  ibv_context* context_ = nullptr;
  ibv_port_attr port_{};
  ibv_gid gid_{};
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  Memory memory_;
  std::vector<ibv_qp*> qps_;
  std::vector<ibv_ah*> handles_;
  std::vector<Peer> peers_;
};

void parse(int argc, char** argv) {
  for (int c = 0; (c = ::getopt(argc, argv, "d:g:m:t:o:s:q:n:p:T:Rr")) != -1;) {
    switch (c) {
      case 'd':
        opt.device = optarg;
        break;
      case 'g':
        opt.gid = std::atoi(optarg);
        break;
      case 'm':  // bytes
        for (int bytes = std::atoi(optarg); bytes > 128; bytes /= 2) ++opt.mtu;
        break;
      case 't':
        opt.type = optarg;
        break;
      case 'o':
        opt.operation = optarg;
        break;
      case 's': {
        opt.sizes.clear();
        for (char* word = std::strtok(optarg, ","); word != nullptr; word = std::strtok(nullptr, ","))
          opt.sizes.push_back(static_cast<std::uint32_t>(std::strtoul(word, nullptr, 10)));
        break;
      }
      case 'q':
        opt.qps = std::atoi(optarg);
        break;
      case 'n':
        opt.slots = std::atoi(optarg);
        break;
      case 'p':
        opt.port = optarg;
        break;
      case 'T':
        opt.timeout = std::atoi(optarg);
        break;
      case 'R':
        opt.repeat = true;
        break;
      case 'r':
        opt.srq = true;
        break;
      default:
        std::exit(2);
    }
  }
  if (optind < argc) opt.host = argv[optind];
}

}  // namespace

int main(int argc, char** argv) {
  parse(argc, argv);
  ::srand(static_cast<unsigned>(::getpid()));
  Side side;
  side.open();
  Ends ends(side);
  ends.open();
  ends.connect();
  if (opt.repeat) std::signal(SIGTERM, [](int) { stopped = 1; });
  do {
    for (const std::uint32_t size : opt.sizes) ends.round(size);
  } while (opt.repeat && side.client_says(stopped == 0));
  std::printf("ok: %s %s, %zu sizes, %d messages each\n", opt.type.c_str(), opt.operation.c_str(), opt.sizes.size(),
              opt.slots);
  return 0;
}
