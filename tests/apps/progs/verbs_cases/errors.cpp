// Errors: who learns what, in which order, with which fields.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "case.h"

namespace vc {

namespace {

constexpr size_t kSize = 1 << 20;

// Every completion that is left is a flush with valid fields, `count` of them, in order from `first`.
void expect_flushed(Endpoint& ep, ibv_cq* cq, uint64_t first, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) ep.expect(cq, first + i, IBV_WC_WR_FLUSH_ERR);
}

// The next event of the wanted type, whatever other events come before it.
bool event_arrives(ibv_context* ctx, ibv_event_type type, double seconds) {
  const double end = now() + seconds;
  ibv_async_event e{};
  while (next_async(ctx, &e, end - now())) {
    if (e.event_type == type) return true;
  }
  return false;
}

// Two connected queue pairs in one process.
struct Loopback {
  Device d;
  Buffer local{d, kSize}, remote{d, kSize};
  Endpoint a, b;
  explicit Loopback(const QpOptions& qo = {}, const ConnectOptions& o = {}) : a(d, qo), b(d, qo) {
    a.connect(b.address(), o);
    b.connect(a.address(), o);
  }
  Address target() const { return b.address(&remote); }
};

}  // namespace

VERBS_CASE(remote_access_error,
           "REM_ACCESS_ERR for the bad request, flushes for all others; QP_ACCESS_ERR at the responder") {
  run_roles({[](Peer& peer, Peer&) {
               Device d;
               Buffer data(d, 65536);
               Endpoint ep(d);
               Address a;
               for (uint64_t i = 0; i < 5; ++i) {
                 if (i == 0) ep.to_init(IBV_ACCESS_REMOTE_WRITE);
                 ep.post_recv(100 + i, data, 0, 4096);
               }
               peer.send(ep.address(&data));
               a = peer.receive<Address>();
               ConnectOptions o;
               ep.to_rtr(a, o);
               ep.to_rts(o);
               peer.barrier();
               CHECK(event_arrives(d.ctx, IBV_EVENT_QP_ACCESS_ERR, 60));
               expect_flushed(ep, ep.rcq, 100, 5);
               CHECK_EQ(ep.state(), IBV_QPS_ERR);
               peer.barrier();
             },
             [](Peer& peer, Peer&) {
               Device d;
               Buffer local(d, 65536);
               Endpoint ep(d);
               Address target;
               ep.connect(peer, &local, &target);
               for (uint64_t i = 0; i < 5; ++i) ep.post_recv(200 + i, local, 0, 4096);
               ep.write(0, local, 0, 4096, target);
               Address bad = target;
               bad.rkey ^= 0x5500;
               ep.write(1, local, 0, 4096, bad);
               for (uint64_t i = 2; i < 20; ++i) ep.write(i, local, 0, 4096, target);
               ep.expect(ep.scq, 0);
               ep.expect(ep.scq, 1, IBV_WC_REM_ACCESS_ERR);
               expect_flushed(ep, ep.scq, 2, 18);
               expect_flushed(ep, ep.rcq, 200, 5);
               CHECK_EQ(ep.state(), IBV_QPS_ERR);
               // What is posted from now on is flushed too.
               ep.write(50, local, 0, 4096, target);
               ep.post_recv(51, local, 0, 4096);
               ep.expect(ep.scq, 50, IBV_WC_WR_FLUSH_ERR);
               ep.expect(ep.rcq, 51, IBV_WC_WR_FLUSH_ERR);
               peer.barrier();
             }});
}

VERBS_CASE(access_rights, "each access right is checked: region flags, bounds, queue pair flags, keys") {
  struct Attempt {
    const char* what;
    int region, qp;
    ibv_wr_opcode op;
    int64_t offset;
    bool allowed;
    ibv_wc_status error;
  };
  constexpr int kAll =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  const Attempt attempts[] = {
      {"write allowed", kAll, kAll, IBV_WR_RDMA_WRITE, 0, true, {}},
      {"write, region not writable", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, kAll, IBV_WR_RDMA_WRITE, 0, false,
       IBV_WC_REM_ACCESS_ERR},
      {"read, region not readable", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, kAll, IBV_WR_RDMA_READ, 0, false,
       IBV_WC_REM_ACCESS_ERR},
      {"atomic, region without atomics", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
       kAll, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, false, IBV_WC_REM_ACCESS_ERR},
      {"write behind the end", kAll, kAll, IBV_WR_RDMA_WRITE, 65536 - 4, false, IBV_WC_REM_ACCESS_ERR},
      {"write before the start", kAll, kAll, IBV_WR_RDMA_WRITE, -1, false, IBV_WC_REM_ACCESS_ERR},
      {"read behind the end", kAll, kAll, IBV_WR_RDMA_READ, 65536 - 4, false, IBV_WC_REM_ACCESS_ERR},
      {"misaligned atomic", kAll, kAll, IBV_WR_ATOMIC_FETCH_AND_ADD, 4, false, IBV_WC_REM_INV_REQ_ERR},
      {"write, queue pair refuses", kAll, IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_WRITE, 0, false, IBV_WC_REM_INV_REQ_ERR},
      {"read, queue pair refuses", kAll, IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_READ, 0, false, IBV_WC_REM_INV_REQ_ERR},
      {"atomic, queue pair refuses", kAll, IBV_ACCESS_REMOTE_WRITE, IBV_WR_ATOMIC_CMP_AND_SWP, 0, false,
       IBV_WC_REM_INV_REQ_ERR},
  };
  for (const Attempt& t : attempts) {
    Device d;
    Buffer local(d, 65536), remote(d, 65536, t.region);
    Endpoint a(d), b(d);
    ConnectOptions o;
    o.access = t.qp;
    a.connect(b.address(), o);
    b.connect(a.address(), o);
    Address target = b.address(&remote);
    target.va += static_cast<uint64_t>(t.offset);
    if (t.op == IBV_WR_RDMA_WRITE) {
      a.write(7, local, 0, 64, target);
    } else if (t.op == IBV_WR_RDMA_READ) {
      a.read(7, local, 0, 64, target);
    } else {
      a.atomic(t.op, 7, local, 0, target, 0, 1, 1);
    }
    const ibv_wc wc = a.wait_send();
    const ibv_wc_status expected = t.allowed ? IBV_WC_SUCCESS : t.error;
    if (wc.status != expected || wc.wr_id != 7) {
      fail(__FILE__, __LINE__,
           format("%s: \"%s\", expected \"%s\"", t.what, ibv_wc_status_str(wc.status), ibv_wc_status_str(expected)));
    }
  }
}

VERBS_CASE(local_errors,
           "a bad L_Key or a local region without access ends in LOC_PROT_ERR, and only then in flushes") {
  Loopback l;
  auto r = l.a.request(IBV_WR_RDMA_WRITE, 1, l.local, 0, 4096);
  r.sge.lkey ^= 0x7700;
  r.wr.wr.rdma = {l.target().va, l.target().rkey};
  l.a.post(r);
  l.a.write(2, l.local, 0, 64, l.target());
  l.a.expect(l.a.scq, 1, IBV_WC_LOC_PROT_ERR);
  l.a.expect(l.a.scq, 2, IBV_WC_WR_FLUSH_ERR);

  // A receive buffer that is too small: LOC_LEN_ERR here, REM_INV_REQ_ERR there (IBA 9.7.4.1.6, 9.9.3).
  Loopback m;
  m.b.post_recv(10, m.remote, 0, 100);
  m.a.send(11, m.local, 0, 101);
  m.a.expect(m.a.scq, 11, IBV_WC_REM_INV_REQ_ERR);
  m.b.expect(m.b.rcq, 10, IBV_WC_LOC_LEN_ERR);
}

VERBS_CASE(flushed_receives, "receives of a QP that never received are flushed when it enters ERROR, in every state") {
  for (int upto = 0; upto < 3; ++upto) {
    Device d;
    Buffer b(d, 65536);
    Endpoint ep(d);
    ConnectOptions o;
    ep.to_init(o.access);
    for (uint64_t i = 0; i < 10; ++i) ep.post_recv(i, b, 0, 64);
    if (upto >= 1) ep.to_rtr(ep.address(), o);
    if (upto >= 2) ep.to_rts(o);
    ep.to_error();
    for (uint64_t i = 0; i < 10; ++i) {
      const ibv_wc wc = ep.expect(ep.rcq, i, IBV_WC_WR_FLUSH_ERR);
      CHECK_EQ(wc.qp_num, ep.qp->qp_num);
    }
    ibv_wc wc;
    CHECK_EQ(ibv_poll_cq(ep.rcq, 1, &wc), 0);
    CHECK_EQ(ibv_poll_cq(ep.scq, 1, &wc), 0);
  }
}

VERBS_CASE(last_wqe_reached, "LAST_WQE_REACHED comes exactly once for a QP with an SRQ that enters ERROR") {
  Device d;
  Buffer b(d, 65536);
  ibv_srq_init_attr si{};
  si.attr = {64, 1, 0};
  ibv_srq* srq = ibv_create_srq(d.pd, &si);
  CHECK(srq != nullptr);
  QpOptions qo;
  qo.srq = srq;
  {
    Endpoint x(d, qo), y(d, qo);
    x.connect(y.address());
    y.connect(x.address());
    for (uint64_t i = 0; i < 8; ++i) x.post_recv(i, b, 0, 4096);
    y.send(1, b, 8192, 64);
    y.expect(y.scq, 1);
    x.expect(x.rcq, 0);
    x.to_error();
    ibv_async_event e{};
    int seen = 0;
    while (next_async(d.ctx, &e, seen ? 0.3 : 60)) {
      if (e.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && e.element.qp == x.qp) ++seen;
    }
    CHECK_EQ(seen, 1);
    x.to_error();
    CHECK(!next_async(d.ctx, &e, 0.3));
  }
  CHECK_EQ(ibv_destroy_srq(srq), 0);
}

VERBS_CASE(srq_limit, "SRQ_LIMIT_REACHED comes once, when fewer receives than the limit are left, and disarms itself") {
  Device d;
  Buffer b(d, 65536);
  ibv_srq_init_attr si{};
  si.attr = {64, 1, 0};
  ibv_srq* srq = ibv_create_srq(d.pd, &si);
  CHECK(srq != nullptr);
  QpOptions qo;
  qo.srq = srq;
  {
    Endpoint x(d, qo), y(d, qo);
    x.connect(y.address());
    y.connect(x.address());
    for (uint64_t i = 0; i < 8; ++i) x.post_recv(i, b, 0, 4096);
    ibv_srq_attr limit{0, 0, 5};
    CHECK_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
    ibv_async_event e{};
    for (uint64_t i = 0; i < 3; ++i) {
      y.send(i, b, 8192, 64);
      y.expect(y.scq, i);
      x.expect(x.rcq, i);
    }
    CHECK(!next_async(d.ctx, &e, 0.2));
    y.send(3, b, 8192, 64);
    y.expect(y.scq, 3);
    CHECK(next_async(d.ctx, &e, 60));
    CHECK_EQ(e.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    CHECK(e.element.srq == srq);
    ibv_srq_attr q{};
    CHECK_EQ(ibv_query_srq(srq, &q), 0);
    CHECK_EQ(q.srq_limit, 0);
    y.send(4, b, 8192, 64);
    y.expect(y.scq, 4);
    CHECK(!next_async(d.ctx, &e, 0.2));
  }
  CHECK_EQ(ibv_destroy_srq(srq), 0);
}

VERBS_CASE(rnr, "the RNR timer is waited for: at least the advertised time for each retry; 7 retries means for ever") {
  ConnectOptions o;
  o.rnr_retry = 2;
  o.min_rnr_timer = 26;  // 81.92 ms (IBA table 45)
  {
    Loopback l({}, o);
    const double start = now();
    l.a.send(1, l.local, 0, 64);
    l.a.expect(l.a.scq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK(now() - start >= 2 * 0.08192);
  }
  o.rnr_retry = 7;
  o.min_rnr_timer = 14;  // 1.28 ms
  Loopback l({}, o);
  l.local.fill(3);
  l.a.send(1, l.local, 0, 64);
  const double end = now() + 0.5;
  ibv_wc wc;
  while (now() < end) CHECK_EQ(ibv_poll_cq(l.a.scq, 1, &wc), 0);
  l.b.post_recv(2, l.remote, 0, 4096);
  l.a.expect(l.a.scq, 1);
  l.b.expect(l.b.rcq, 2);
  CHECK_EQ(l.remote.mismatch(3, 0, 64), -1);
}

VERBS_CASE(refused_attributes, "attributes outside their range are refused with EINVAL and change nothing") {
  Device d;
  Endpoint ep(d), other(d);
  ConnectOptions o;
  ep.to_init(o.access);
  ep.to_rtr(other.address(), o);
  ibv_qp_attr a{};
  auto attempt = [&](uint8_t timeout, uint8_t retry, uint8_t rnr, uint8_t rd) {
    a = {};
    a.qp_state = IBV_QPS_RTS;
    a.timeout = timeout;
    a.retry_cnt = retry;
    a.rnr_retry = rnr;
    a.max_rd_atomic = rd;
    return ibv_modify_qp(
        ep.qp, &a,
        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  };
  CHECK_EQ(attempt(14, 7, 8, 1), EINVAL);
  CHECK_EQ(attempt(14, 8, 7, 1), EINVAL);
  CHECK_EQ(attempt(32, 7, 7, 1), EINVAL);
  CHECK(attempt(14, 7, 7, 255) != 0);
  CHECK_EQ(ep.state(), IBV_QPS_RTR);
  // RTS straight from RESET is no transition, and a required attribute may not be missing.
  ibv_qp_attr s{};
  s.qp_state = IBV_QPS_RTS;
  CHECK_EQ(ibv_modify_qp(other.qp, &s, IBV_QP_STATE), EINVAL);
  s.qp_state = IBV_QPS_INIT;
  CHECK_EQ(ibv_modify_qp(other.qp, &s, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
  CHECK_EQ(attempt(14, 7, 7, 1), 0);
}

VERBS_CASE(cq_overflow,
           "a completion queue that overflows raises CQ_ERR and stops its queue pair; nothing is lost silently") {
  QpOptions qo;
  qo.cqe = 1;
  qo.send_wr = 4096;
  Loopback l(qo);
  const int capacity = l.a.scq->cqe;
  CHECK(capacity >= 1);
  for (int i = 0; i <= capacity + 8 && i < 4000; ++i) l.a.write(static_cast<uint64_t>(i), l.local, 0, 8, l.target());
  CHECK(event_arrives(l.d.ctx, IBV_EVENT_CQ_ERR, 60));
  CHECK_EQ(l.a.state(), IBV_QPS_ERR);
  ibv_wc wc;
  int got = 0;
  while (ibv_poll_cq(l.a.scq, 1, &wc) == 1) CHECK_EQ(wc.wr_id, got++);
  CHECK(got <= capacity);
}

VERBS_CASE(different_mtus, "a segment larger than the responder's path MTU gets NAK invalid request, never silence") {
  Device d;
  Buffer local(d, 65536), remote(d, 65536);
  Endpoint a(d), b(d);
  ConnectOptions large, small;
  large.mtu = IBV_MTU_4096;
  small.mtu = IBV_MTU_1024;
  a.connect(b.address(), large);
  b.connect(a.address(), small);
  a.write(1, local, 0, 1000, b.address(&remote));
  a.expect(a.scq, 1);
  a.write(2, local, 0, 1025, b.address(&remote));
  a.expect(a.scq, 2, IBV_WC_REM_INV_REQ_ERR);
}

VERBS_CASE(no_such_peer, "a queue pair connected to a QPN that does not exist: RTR works, then retries are exceeded") {
  Device d;
  Buffer local(d, 4096);
  Endpoint a(d);
  ConnectOptions o;
  o.timeout = 12;
  o.retry_cnt = 1;
  Address nobody = a.address(&local);
  nobody.qpn = 0xABC123;
  a.connect(nobody, o);
  const double start = now();
  a.write(1, local, 0, 64, nobody);
  a.expect(a.scq, 1, IBV_WC_RETRY_EXC_ERR);
  CHECK(now() - start >= 2 * 0.0167);
}

VERBS_CASE(refused_registrations, "memory that is not accessible is not registered: EFAULT; bad flags: EINVAL") {
  Device d;
  void* gap = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(gap != MAP_FAILED);
  errno = 0;
  CHECK(ibv_reg_mr(d.pd, gap, 8192, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK_EQ(errno, EFAULT);
  CHECK_EQ(munmap(gap, 8192), 0);
  errno = 0;
  CHECK(ibv_reg_mr(d.pd, gap, 8192, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK_EQ(errno, EFAULT);
  void* constant = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(constant != MAP_FAILED);
  errno = 0;
  CHECK(ibv_reg_mr(d.pd, constant, 8192, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK_EQ(errno, EFAULT);
  ibv_mr* mr = ibv_reg_mr(d.pd, constant, 8192, 0);
  CHECK(mr != nullptr);
  CHECK_EQ(ibv_dereg_mr(mr), 0);
  // Remote write without local write (IBA 11.2.8.2, ibv_reg_mr(3)).
  static char data[4096];
  errno = 0;
  CHECK(ibv_reg_mr(d.pd, data, sizeof(data), IBV_ACCESS_REMOTE_WRITE) == nullptr);
  CHECK_EQ(errno, EINVAL);
  errno = 0;
  CHECK(ibv_reg_mr(d.pd, data, sizeof(data), IBV_ACCESS_REMOTE_ATOMIC) == nullptr);
  CHECK_EQ(errno, EINVAL);
}

VERBS_CASE(busy_objects, "objects in use are not destroyed: EBUSY") {
  Device d;
  auto ep = std::make_unique<Endpoint>(d);
  CHECK_EQ(ibv_destroy_cq(ep->scq), EBUSY);
  CHECK_EQ(ibv_dealloc_pd(d.pd), EBUSY);
  ep.reset();
  ibv_comp_channel* channel = ibv_create_comp_channel(d.ctx);
  CHECK(channel != nullptr);
  ibv_cq* cq = ibv_create_cq(d.ctx, 16, nullptr, channel, 0);
  CHECK(cq != nullptr);
  CHECK_EQ(ibv_destroy_comp_channel(channel), EBUSY);
  CHECK_EQ(ibv_destroy_cq(cq), 0);
  CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
}

VERBS_CASE(device_fatal,
           "the NIC process dies: DEVICE_FATAL, errors instead of waiting; for the harness, which kills it") {
  Device d;
  Buffer local(d, 65536), remote(d, 65536);
  Endpoint a(d), b(d);
  a.connect(b.address());
  b.connect(a.address());
  a.write(1, local, 0, 4096, b.address(&remote));
  a.expect(a.scq, 1);
  std::printf("ready\n");
  std::fflush(stdout);
  CHECK(event_arrives(d.ctx, IBV_EVENT_DEVICE_FATAL, 60));
  // Whatever is posted from now on ends, with an error or refused.
  auto r = a.request(IBV_WR_RDMA_WRITE, 2, local, 0, 64);
  r.wr.wr.rdma = {b.address(&remote).va, b.address(&remote).rkey};
  r.wr.sg_list = &r.sge;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(a.qp, &r.wr, &bad) == 0) {
    const ibv_wc wc = a.wait_send();
    CHECK(wc.status != IBV_WC_SUCCESS);
  }
}

}  // namespace vc
