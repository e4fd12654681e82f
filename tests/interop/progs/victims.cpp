// Queue pairs of every kind that frames from a network may do anything to: whoever sends to them is to find as much
// code behind them as there is. They are connected to nobody, start over all the time, and have requests open.
//
//   victims -d DEVICE -g GID_INDEX -x GID        until SIGTERM
//     -x  where their peer seems to be
//
// Prints `victims QPN,QPN,... R_KEY ADDRESS`, and at the end what happened.
#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/interop/progs/open_device.h"

namespace {

constexpr std::size_t kMemory = 1 << 16;
constexpr int kReceives = 64;  // of a queue pair, and of the SRQ
constexpr std::uint32_t kReceiveSize = 2048;
constexpr std::uint32_t kPeerQpn = 0x1234, kQkey = 0x11111111;
constexpr auto kLife = std::chrono::milliseconds(50);  // of a connected queue pair until it starts over

volatile std::sig_atomic_t stopped = 0, quiet = 0;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "victims: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}
void must(int result, const char* what) {
  if (result == 0) return;
  if (result > 0) errno = result;
  die(what);
}
template <class T>
T* must_have(T* pointer, const char* what) {
  if (pointer == nullptr) die(what);
  return pointer;
}

class Victims {
 public:
  Victims(const std::string& device, int gid_index, const ibv_gid& peer) : gid_index_(gid_index), peer_(peer) {
    context_ = must_have(open_device(device), "device");
    must(::fcntl(context_->async_fd, F_SETFL, O_NONBLOCK), "async descriptor");
    pd_ = must_have(ibv_alloc_pd(context_), "PD");
    cq_ = must_have(ibv_create_cq(context_, 8192, nullptr, nullptr, 0), "CQ");
    memory_.resize(kMemory);
    mr_ = must_have(ibv_reg_mr(pd_, memory_.data(), memory_.size(),
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                   IBV_ACCESS_REMOTE_ATOMIC),
                    "MR");
    ibv_srq_init_attr attr{};
    attr.attr = {kReceives, 1, 0};
    srq_ = must_have(ibv_create_srq(pd_, &attr), "SRQ");
    for (int i = 0; i < kReceives; ++i) post_recv(nullptr);
    for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD})
      for (const bool shared : {false, true})
        for (int n = 0; n < 2; ++n) create(type, shared && type != IBV_QPT_UC);
    join();
  }

  void announce() const {
    std::printf("victims ");
    for (std::size_t i = 0; i < qps_.size(); ++i) std::printf("%s0x%x", i != 0 ? "," : "", qps_[i]->qp_num);
    std::printf(" 0x%x %p\n", mr_->rkey, static_cast<const void*>(memory_.data()));
    std::fflush(stdout);
  }

  void run() {
    auto next = std::chrono::steady_clock::now() + kLife;
    std::size_t turn = 0;
    while (stopped == 0) {
      const bool idle = !poll();
      take_events();
      if (quiet == 0 && std::chrono::steady_clock::now() >= next) {
        start_over(qps_[turn++ % qps_.size()]);
        next += kLife / static_cast<int>(qps_.size());
      }
      if (idle) ::usleep(200);
    }
    std::printf("ok: %llu messages, %llu errors, %llu events, %zu new beginnings\n",
                static_cast<unsigned long long>(messages_), static_cast<unsigned long long>(errors_),
                static_cast<unsigned long long>(events_), turn);
  }

 private:
  void create(ibv_qp_type type, bool shared) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.srq = shared ? srq_ : nullptr;
    init.cap = {16, shared ? 0u : kReceives, 1, 1, 0};
    init.qp_type = type;
    ibv_qp* qp = must_have(ibv_create_qp(pd_, &init), "QP");
    qps_.push_back(qp);
    start(qp);
  }

  // One of them is in a group: the number of packets stays the number of frames.
  void join() {
    ibv_gid group{};
    must(::inet_pton(AF_INET6, "::ffff:239.1.2.3", group.raw) == 1 ? 0 : EINVAL, "group");
    must(ibv_attach_mcast(qps_.back(), &group, 0), "attach to a group");
  }

  void start_over(ibv_qp* qp) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    must(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "to RESET");
    start(qp);
  }

  void start(ibv_qp* qp) {
    const bool rc = qp->qp_type == IBV_QPT_RC, ud = qp->qp_type == IBV_QPT_UD;
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qkey = kQkey;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (rc) a.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    must(ibv_modify_qp(qp, &a,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
         "to INIT");
    for (int i = 0; qp->srq == nullptr && i < kReceives; ++i) post_recv(qp);
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = kPeerQpn;
    a.max_dest_rd_atomic = 4;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = peer_;
    a.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
    a.ah_attr.grh.hop_limit = 64;
    int mask = IBV_QP_STATE;
    if (!ud) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (rc) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    must(ibv_modify_qp(qp, &a, mask), "to RTR");
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 8;
    a.retry_cnt = a.rnr_retry = 1;
    a.max_rd_atomic = 4;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (rc) mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    must(ibv_modify_qp(qp, &a, mask), "to RTS");
    if (rc) post_requests(qp);
  }

  // Open requests, so that responses find somebody who waits for them.
  void post_requests(ibv_qp* qp) {
    for (const ibv_wr_opcode opcode :
         {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
      ibv_sge s{reinterpret_cast<std::uint64_t>(memory_.data()), opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8u : 3000u,
                mr_->lkey};
      ibv_send_wr wr{}, *bad = nullptr;
      wr.sg_list = &s;
      wr.num_sge = 1;
      wr.opcode = opcode;
      wr.send_flags = IBV_SEND_SIGNALED;
      if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) wr.wr.atomic.remote_addr = 8;
      const int result = ibv_post_send(qp, &wr, &bad);
      if (result != EINVAL) must(result, "post");  // it may have failed already
    }
  }

  void post_recv(ibv_qp* qp) {
    ibv_sge s{reinterpret_cast<std::uint64_t>(memory_.data() + kMemory / 2), kReceiveSize, mr_->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = reinterpret_cast<std::uint64_t>(qp);
    wr.sg_list = &s;
    wr.num_sge = 1;
    // A queue that is full was filled anew meanwhile.
    const int result = qp != nullptr ? ibv_post_recv(qp, &wr, &bad) : ibv_post_srq_recv(srq_, &wr, &bad);
    if (result != ENOMEM) must(result, "post receive");
  }

  bool poll() {
    ibv_wc wc[16];
    const int n = ibv_poll_cq(cq_, 16, wc);
    if (n < 0) die("poll CQ");
    for (int i = 0; i < n; ++i) {
      (wc[i].status == IBV_WC_SUCCESS ? messages_ : errors_) += 1;
      // An error names no opcode; requests have no name of their own here.
      auto* qp = reinterpret_cast<ibv_qp*>(wc[i].wr_id);
      if (wc[i].status == IBV_WC_SUCCESS && (wc[i].opcode & IBV_WC_RECV) != 0) post_recv(qp);
    }
    // Receives of the SRQ that ended with an error are missed: as many again as there is room for.
    if (n == 0) post_recv(nullptr);
    return n != 0;
  }

  void take_events() {
    ibv_async_event event{};
    while (ibv_get_async_event(context_, &event) == 0) {
      ++events_;
      if (event.event_type == IBV_EVENT_DEVICE_FATAL) die("device fatal");
      ibv_ack_async_event(&event);
    }
  }

  const int gid_index_;
  const ibv_gid peer_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  std::vector<std::uint8_t> memory_;
  std::vector<ibv_qp*> qps_;
  unsigned long long messages_ = 0, errors_ = 0, events_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::string device;
  int gid_index = 0;
  ibv_gid peer{};
  for (int c = 0; (c = ::getopt(argc, argv, "d:g:x:")) != -1;) {
    if (c == 'd') device = optarg;
    if (c == 'g') gid_index = std::atoi(optarg);
    if (c == 'x' && ::inet_pton(AF_INET6, optarg, peer.raw) != 1) return 2;
    if (c == '?') return 2;
  }
  std::signal(SIGTERM, [](int) { stopped = 1; });
  std::signal(SIGUSR1, [](int) { quiet = 1; });
  Victims victims(device, gid_index, peer);
  victims.announce();
  victims.run();
  return 0;
}
