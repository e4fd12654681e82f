#include "case.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace vc {

void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: process %d: %s (errno %s)\n", file, line, getpid(), what.c_str(), strerror(errno));
  std::fflush(stderr);
  _exit(1);
}

std::string format(const char* fmt, ...) {
  char text[512];
  va_list ap;
  va_start(ap, fmt);
  std::vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  return text;
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

// ---- processes ---------------------------------------------------------------------------------------------------
void Peer::send(const void* data, size_t length) {
  const auto* p = static_cast<const char*>(data);
  while (length > 0) {
    const ssize_t n = ::send(fd_, p, length, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    CHECK(n > 0);
    p += n;
    length -= static_cast<size_t>(n);
  }
}

void Peer::receive(void* data, size_t length) {
  auto* p = static_cast<char*>(data);
  while (length > 0) {
    const ssize_t n = ::recv(fd_, p, length, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(__FILE__, __LINE__, "the other process ended early");
    p += n;
    length -= static_cast<size_t>(n);
  }
}

void Peer::barrier() {
  send<char>('b');
  CHECK_EQ(receive<char>(), 'b');
}

void Child::stop() {
  CHECK_EQ(::kill(pid, SIGSTOP), 0);
  int status = 0;
  CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
  CHECK(WIFSTOPPED(status));
}

void Child::resume() { CHECK_EQ(::kill(pid, SIGCONT), 0); }

void Child::kill() {
  killed = true;
  CHECK_EQ(::kill(pid, SIGKILL), 0);
  CHECK_EQ(waitpid(pid, nullptr, 0), pid);
}

void run_roles(const std::vector<Role>& roles, const std::function<void(std::vector<Child>&)>& parent) {
  std::vector<Child> children;
  int partner[2] = {-1, -1};
  for (size_t i = 0; i < roles.size(); ++i) {
    if (i % 2 == 0) CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, partner), 0);
    int up[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, up), 0);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(up[0]);
      if (partner[1 - i % 2] >= 0) close(partner[1 - i % 2]);
      Peer p(partner[i % 2]), q(up[1]);
      roles[i](p, q);
      _exit(0);
    }
    close(up[1]);
    close(partner[i % 2]);
    partner[i % 2] = -1;
    children.push_back({pid, Peer(up[0])});
  }
  if (parent) parent(children);
  bool ok = true;
  for (size_t left = children.size(); left > 0; --left) {
    bool any = false;
    for (const Child& c : children) any = any || !c.killed;
    if (!any) break;
    int status = 0;
    const pid_t pid = wait(&status);
    if (pid < 0) break;
    for (Child& c : children) {
      if (c.pid == pid) c.killed = true;
    }
    if (status == 0) continue;
    ok = false;
    std::fprintf(stderr, "process %d: %s %d\n", pid, WIFSIGNALED(status) ? "signal" : "exit",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    for (Child& c : children) {
      if (!c.killed) ::kill(c.pid, SIGKILL);
    }
  }
  if (!ok) _exit(1);
}

// ---- verbs objects -------------------------------------------------------------------------------------------------
static bool ipv4_mapped(const ibv_gid& g) {
  static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(g.raw, prefix, sizeof(prefix)) == 0;
}

Device::Device() {
  int n = 0;
  ibv_device** list = ibv_get_device_list(&n);
  CHECK(list != nullptr && n > 0);
  ctx = ibv_open_device(list[0]);
  CHECK(ctx != nullptr);
  ibv_free_device_list(list);
  pd = ibv_alloc_pd(ctx);
  CHECK(pd != nullptr);
  CHECK_EQ(ibv_query_device(ctx, &attr), 0);
  CHECK_EQ(ibv_query_port(ctx, 1, &port), 0);
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    ibv_gid_entry e{};
    if (ibv_query_gid_ex(ctx, 1, static_cast<uint32_t>(i), &e, 0) != 0) continue;
    const bool wanted = e.gid_type == IBV_GID_TYPE_ROCE_V2 && ipv4_mapped(e.gid);
    if (gid_index >= 0 && !wanted) continue;
    gid = e.gid;
    gid_index = i;
    if (wanted) break;
  }
  CHECK(gid_index >= 0);
}

Device::~Device() {
  ibv_dealloc_pd(pd);
  ibv_close_device(ctx);
}

uint8_t pattern(uint32_t seed, size_t position) {
  uint32_t x = seed * 0x9E3779B1u + static_cast<uint32_t>(position) * 0x85EBCA6Bu;
  x ^= x >> 15;
  x *= 0xC2B2AE35u;
  return static_cast<uint8_t>(x >> 24);
}

Buffer::Buffer(Device& d, size_t n, int access) : size(n) {
  void* p = mmap(nullptr, (n + 4095) & ~size_t{4095}, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED);
  data = static_cast<uint8_t*>(p);
  mr = ibv_reg_mr(d.pd, data, n, access);
  CHECK(mr != nullptr);
}

Buffer::~Buffer() {
  ibv_dereg_mr(mr);
  munmap(data, (size + 4095) & ~size_t{4095});
}

void Buffer::fill(uint32_t seed) {
  for (size_t i = 0; i < size; ++i) data[i] = pattern(seed, i);
}

long Buffer::mismatch(uint32_t seed, size_t offset, size_t length, size_t pattern_offset) const {
  for (size_t i = 0; i < length; ++i) {
    if (data[offset + i] != pattern(seed, pattern_offset + i)) return static_cast<long>(i);
  }
  return -1;
}

Endpoint::Endpoint(Device& d, const QpOptions& o)
    : dev(d), opt(o), psn_(0x100 + static_cast<uint32_t>(getpid()) % 0xF00) {
  scq = ibv_create_cq(d.ctx, o.cqe, this, o.channel, 0);
  rcq = ibv_create_cq(d.ctx, o.cqe, this, o.channel, 0);
  CHECK(scq != nullptr && rcq != nullptr);
  ibv_qp_init_attr init{};
  init.qp_context = this;
  init.send_cq = scq;
  init.recv_cq = rcq;
  init.srq = o.srq;
  init.qp_type = o.type;
  init.cap = {o.send_wr, o.srq ? 0 : o.recv_wr, o.sge, o.srq ? 0 : o.sge, o.inline_size};
  qp = ibv_create_qp(d.pd, &init);
  CHECK(qp != nullptr);
  cap = init.cap;
}

Endpoint::~Endpoint() {
  ibv_destroy_qp(qp);
  ibv_destroy_cq(scq);
  ibv_destroy_cq(rcq);
}

Address Endpoint::address(const Buffer* b) const {
  return {qp->qp_num, psn_, b ? b->mr->rkey : 0, b ? reinterpret_cast<uint64_t>(b->data) : 0, dev.gid};
}

void Endpoint::to_init(int access) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  a.qp_access_flags = static_cast<unsigned>(access);
  a.qkey = 0x11111111;
  CHECK_EQ(ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                             (opt.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
           0);
}

void Endpoint::to_rtr(const Address& remote, const ConnectOptions& o) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  int mask = IBV_QP_STATE;
  if (opt.type != IBV_QPT_UD) {
    a.path_mtu = o.mtu;
    a.dest_qp_num = remote.qpn;
    a.rq_psn = remote.psn;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = remote.gid;
    a.ah_attr.grh.sgid_index = static_cast<uint8_t>(dev.gid_index);
    a.ah_attr.grh.hop_limit = 64;
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  }
  if (opt.type == IBV_QPT_RC) {
    a.max_dest_rd_atomic = o.rd_atomic;
    a.min_rnr_timer = o.min_rnr_timer;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  CHECK_EQ(ibv_modify_qp(qp, &a, mask), 0);
}

void Endpoint::to_rts(const ConnectOptions& o) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTS;
  a.sq_psn = psn_;
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (opt.type == IBV_QPT_RC) {
    a.timeout = o.timeout;
    a.retry_cnt = o.retry_cnt;
    a.rnr_retry = o.rnr_retry;
    a.max_rd_atomic = o.rd_atomic;
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  CHECK_EQ(ibv_modify_qp(qp, &a, mask), 0);
}

void Endpoint::connect(const Address& remote, const ConnectOptions& o) {
  to_init(o.access);
  to_rtr(remote, o);
  to_rts(o);
}

void Endpoint::connect(Peer& peer, const Buffer* b, Address* remote, const ConnectOptions& o) {
  peer.send(address(b));
  *remote = peer.receive<Address>();
  connect(*remote, o);
  peer.barrier();
}

void Endpoint::to_error() {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  CHECK_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
}

ibv_qp_state Endpoint::state() const {
  ibv_qp_attr a{};
  ibv_qp_init_attr init{};
  CHECK_EQ(ibv_query_qp(qp, &a, IBV_QP_STATE, &init), 0);
  return a.qp_state;
}

void Endpoint::post_recv(uint64_t wr_id, const Buffer& b, size_t offset, size_t length) {
  ibv_sge sge{reinterpret_cast<uint64_t>(b.data + offset), static_cast<uint32_t>(length), b.mr->lkey};
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.wr_id = wr_id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  CHECK_EQ(opt.srq ? ibv_post_srq_recv(opt.srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad), 0);
}

Endpoint::Request Endpoint::request(ibv_wr_opcode op, uint64_t wr_id, const Buffer& b, size_t offset,
                                    size_t length) const {
  Request r;
  r.sge = {reinterpret_cast<uint64_t>(b.data + offset), static_cast<uint32_t>(length), b.mr->lkey};
  r.wr.wr_id = wr_id;
  r.wr.num_sge = length > 0 ? 1 : 0;
  r.wr.opcode = op;
  r.wr.send_flags = IBV_SEND_SIGNALED;
  return r;
}

void Endpoint::post(Request& r) {
  ibv_send_wr* bad = nullptr;
  r.wr.sg_list = &r.sge;
  CHECK_EQ(ibv_post_send(qp, &r.wr, &bad), 0);
}

void Endpoint::write(uint64_t wr_id, const Buffer& b, size_t offset, size_t length, const Address& to,
                     uint64_t to_offset, int flags) {
  Request r = request(IBV_WR_RDMA_WRITE, wr_id, b, offset, length);
  r.wr.wr.rdma.remote_addr = to.va + to_offset;
  r.wr.wr.rdma.rkey = to.rkey;
  r.wr.send_flags = static_cast<unsigned>(flags);
  post(r);
}

void Endpoint::read(uint64_t wr_id, const Buffer& b, size_t offset, size_t length, const Address& from,
                    uint64_t from_offset) {
  Request r = request(IBV_WR_RDMA_READ, wr_id, b, offset, length);
  r.wr.wr.rdma.remote_addr = from.va + from_offset;
  r.wr.wr.rdma.rkey = from.rkey;
  post(r);
}

void Endpoint::send(uint64_t wr_id, const Buffer& b, size_t offset, size_t length, int flags) {
  Request r = request(IBV_WR_SEND, wr_id, b, offset, length);
  r.wr.send_flags = static_cast<unsigned>(flags);
  post(r);
}

void Endpoint::atomic(ibv_wr_opcode op, uint64_t wr_id, const Buffer& result, size_t offset, const Address& at,
                      uint64_t at_offset, uint64_t compare_add, uint64_t swap) {
  Request r = request(op, wr_id, result, offset, 8);
  r.wr.wr.atomic.remote_addr = at.va + at_offset;
  r.wr.wr.atomic.rkey = at.rkey;
  r.wr.wr.atomic.compare_add = compare_add;
  r.wr.wr.atomic.swap = swap;
  post(r);
}

ibv_wc Endpoint::wait(ibv_cq* cq, double seconds) {
  const double end = now() + seconds;
  ibv_wc wc{};
  for (unsigned i = 0;; ++i) {
    const int n = ibv_poll_cq(cq, 1, &wc);
    CHECK(n >= 0);
    if (n == 1) return wc;
    if ((i & 0xFFF) == 0 && now() > end) fail(__FILE__, __LINE__, "no completion came");
  }
}

ibv_wc Endpoint::expect(ibv_cq* cq, uint64_t wr_id, ibv_wc_status status) {
  const ibv_wc wc = wait(cq);
  if (wc.status != status || wc.wr_id != wr_id || wc.qp_num != qp->qp_num) {
    fail(__FILE__, __LINE__,
         format("completion of QP 0x%x: wr_id %llu, \"%s\"; expected QP 0x%x, wr_id %llu, \"%s\"", wc.qp_num,
                static_cast<unsigned long long>(wc.wr_id), ibv_wc_status_str(wc.status), qp->qp_num,
                static_cast<unsigned long long>(wr_id), ibv_wc_status_str(status)));
  }
  return wc;
}

bool next_async(ibv_context* ctx, ibv_async_event* out, double seconds) {
  pollfd p{ctx->async_fd, POLLIN, 0};
  const double end = now() + seconds;
  for (;;) {
    const double left = end - now();
    const int n = poll(&p, 1, left > 0 ? static_cast<int>(left * 1000) + 1 : 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    CHECK_EQ(ibv_get_async_event(ctx, out), 0);
    ibv_ack_async_event(out);
    return true;
  }
}

}  // namespace vc

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc == 2 && std::string(argv[1]) == "--list") {
    for (const auto& c : vc::cases()) std::printf("%-36s %s\n", c.name, c.what);
    return 0;
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s --list | CASE [ARG...]\n", argv[0]);
    return 2;
  }
  for (const auto& c : vc::cases()) {
    if (std::string(argv[1]) == c.name) {
      c.run(vc::Args(argv + 2, argv + argc));
      std::printf("%s: passed\n", c.name);
      return 0;
    }
  }
  std::fprintf(stderr, "%s: no case is called %s\n", argv[0], argv[1]);
  return 2;
}
