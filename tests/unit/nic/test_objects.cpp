// Creation, limits, busy checks and queries of the objects without a state machine.
#include <sys/mman.h>

#include "nic_fixture.h"

using namespace softrnic;
using namespace softrnic::nic;
using namespace softrnic::nic::test;

namespace {
constexpr std::size_t kPage = 4096;

struct Pages {
  explicit Pages(std::size_t count) : n(count) {
    void* m = mmap(nullptr, n * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(m != MAP_FAILED);
    p = static_cast<std::uint8_t*>(m);
  }
  ~Pages() { munmap(p, n * kPage); }
  std::uint8_t* p;
  std::size_t n;
};
}  // namespace

TEST_CASE("ibv_reg_mr: EFAULT for memory that is not there or read-only", "[objects]") {
  Host host;
  Party p(host);
  Pages m(4);
  const auto reg = [&](std::size_t page, std::size_t pages, std::uint32_t access) {
    MemoryRegion* mr = nullptr;
    std::uint8_t* at = m.p + page * kPage;
    const int rc = p.ctx->reg_mr(p.pd, at, pages * kPage, reinterpret_cast<std::uint64_t>(at), access, &mr);
    if (rc == 0) CHECK(p.ctx->dereg_mr(mr) == 0);
    return rc;
  };
  CHECK(reg(0, 4, kAllAccess) == 0);
  mprotect(m.p + kPage, kPage, PROT_READ);
  CHECK(reg(0, 4, kAccessLocalWrite) == EFAULT);
  CHECK(reg(0, 4, kAccessRemoteRead) == 0);
  mprotect(m.p + kPage, kPage, PROT_NONE);
  CHECK(reg(0, 4, 0) == EFAULT);
  munmap(m.p + 3 * kPage, kPage);
  CHECK(reg(2, 2, 0) == EFAULT);
  CHECK(reg(2, 1, kAllAccess) == 0);
}

TEST_CASE("ibv_reg_mr: EINVAL for flags and ranges that make no sense", "[objects]") {
  Host host;
  Party p(host);
  Pages m(1);
  struct Row {
    std::uint64_t length, iova;
    std::uint32_t access;
    int want;
  };
  const auto a = reinterpret_cast<std::uint64_t>(m.p);
  const Row rows[] = {
      {8, a, kAccessRemoteWrite, EINVAL},  // remote write requires local write (IBA 10.6.3.1)
      {8, a, kAccessRemoteAtomic, EINVAL},
      {8, a, kAccessRemoteAtomic | kAccessRemoteRead, EINVAL},
      {8, a, kAccessRemoteRead, 0},
      {8, a, 0, 0},
      {0, a, 0, EINVAL},
      {8, a, 64, EOPNOTSUPP},  // on-demand paging
      {8, a, 1u << 15, EINVAL},
      {8, a, 1u << 20, 0},  // IBV_ACCESS_RELAXED_ORDERING: a hint
      {8, UINT64_MAX - 3, 0, EINVAL},
      {8, UINT64_MAX - 7, 0, 0},
      {UINT64_MAX, a, 0, EINVAL},
  };
  for (const Row& r : rows) {
    CAPTURE(r.length, r.access);
    MemoryRegion* mr = nullptr;
    CHECK(p.ctx->reg_mr(p.pd, m.p, r.length, r.iova, r.access, &mr) == r.want);
    if (mr != nullptr) CHECK(p.ctx->dereg_mr(mr) == 0);
  }
}

TEST_CASE("objects in use cannot be destroyed: EBUSY", "[objects]") {
  Host host;
  Party p(host);
  CHECK(p.ctx->dealloc_pd(p.pd) == EBUSY);  // its MR
  ProtectionDomain* pd = nullptr;
  REQUIRE(p.ctx->alloc_pd(&pd) == 0);
  CompletionChannel* ch = nullptr;
  REQUIRE(CompletionChannel::create(*p.ctx, &ch) == 0);
  CompletionQueue* cq = nullptr;
  REQUIRE(CompletionQueue::create(*p.ctx, 10, ch, nullptr, &cq) == 0);
  SharedReceiveQueue* srq = nullptr;
  REQUIRE(SharedReceiveQueue::create(*pd, 16, 2, 0, nullptr, &srq) == 0);
  QpCreate c = p.create_attrs();
  c.pd = pd;
  c.send_cq = c.recv_cq = cq;
  c.srq = srq;
  QueuePair* qp = nullptr;
  REQUIRE(QueuePair::create(c, &qp) == 0);
  AddressHandle* ah = nullptr;
  REQUIRE(p.ctx->create_ah(pd, p.address(p.gid_index()), &ah) == 0);

  CHECK(ch->destroy() == EBUSY);
  CHECK(cq->destroy() == EBUSY);
  CHECK(srq->destroy() == EBUSY);
  CHECK(p.ctx->dealloc_pd(pd) == EBUSY);
  CHECK(qp->destroy() == 0);
  CHECK(srq->destroy() == 0);
  CHECK(p.ctx->dealloc_pd(pd) == EBUSY);
  CHECK(p.ctx->destroy_ah(ah) == 0);
  CHECK(p.ctx->dealloc_pd(pd) == 0);
  CHECK(cq->destroy() == 0);
  CHECK(ch->destroy() == 0);
}

TEST_CASE("limits of the device record hold, and granted capabilities are written back", "[objects]") {
  Host host;
  Party p(host);
  const control::DeviceRecord& d = p.ctx->device();
  CompletionQueue* cq = nullptr;
  CHECK(CompletionQueue::create(*p.ctx, 0, nullptr, nullptr, &cq) == EINVAL);
  CHECK(CompletionQueue::create(*p.ctx, d.max_cqe + 1, nullptr, nullptr, &cq) == EINVAL);
  SharedReceiveQueue* srq = nullptr;
  CHECK(SharedReceiveQueue::create(*p.pd, d.max_srq_wr + 1, 1, 0, nullptr, &srq) == EINVAL);
  CHECK(SharedReceiveQueue::create(*p.pd, 1, d.max_srq_sge + 1, 0, nullptr, &srq) == EINVAL);

  const auto create = [&](auto change) {
    QpCreate c = p.create_attrs();
    change(c);
    QueuePair* qp = nullptr;
    const int rc = QueuePair::create(c, &qp);
    if (rc == 0) {
      CHECK(qp->caps().max_inline == c.caps.max_inline);
      CHECK(c.caps.max_inline >= 512);
      CHECK(qp->destroy() == 0);
    }
    return rc;
  };
  CHECK(create([](QpCreate&) {}) == 0);
  CHECK(create([&](QpCreate& c) { c.caps.max_send_wr = d.max_qp_wr + 1; }) == EINVAL);
  CHECK(create([&](QpCreate& c) { c.caps.max_recv_wr = d.max_qp_wr + 1; }) == EINVAL);
  CHECK(create([&](QpCreate& c) { c.caps.max_send_sge = d.max_sge + 1; }) == EINVAL);
  CHECK(create([&](QpCreate& c) { c.caps.max_recv_sge = d.max_sge + 1; }) == EINVAL);
  CHECK(create([&](QpCreate& c) { c.caps.max_inline = d.max_inline + 1; }) == EINVAL);
  CHECK(create([&](QpCreate& c) { c.caps = {0, 0, 0, 0, 0}; }) == 0);
  CHECK(create([&](QpCreate& c) { c.send_cq = nullptr; }) == EINVAL);
  CHECK(create([&](QpCreate& c) { c.type = ib::QpType::raw_packet; }) == EOPNOTSUPP);
}

TEST_CASE("the status page counts what exists", "[objects]") {
  Host host;
  Party p(host);
  dp::StatusPage& s = p.vf->fabric().status();
  CHECK(s.contexts == 1);
  CHECK(s.mrs == 1);
  CHECK(s.cqs == 1);
  CHECK(s.qps == 0);
  QueuePair* qp = p.make_qp();
  CHECK(s.qps == 1);
  CHECK(s.qp[0].qpn == qp->qpn());
  to_init(qp);
  CHECK(s.qp[0].state == 1);
  p.forget(qp);
  CHECK(qp->destroy() == 0);
  CHECK(s.qps == 0);
  CHECK(s.qp[0].qpn == 0);
}

TEST_CASE("address handles: what is refused, as the kernel refuses it", "[objects]") {
  Host host;
  Party p(host);
  const std::uint8_t v4 = p.gid_index(1, true), v6 = p.gid_index(1, false), v1 = p.gid_index(0, true);
  const auto create = [&](auto change) {
    AddressVector av = p.address(v4);
    change(av);
    AddressHandle* ah = nullptr;
    const int rc = p.ctx->create_ah(p.pd, av, &ah);
    if (rc == 0) CHECK(p.ctx->destroy_ah(ah) == 0);
    return rc;
  };
  CHECK(create([](AddressVector&) {}) == 0);
  CHECK(create([](AddressVector& av) { av.port_num = 2; }) == EINVAL);
  CHECK(create([](AddressVector& av) { av.port_num = 0; }) == EINVAL);
  CHECK(create([](AddressVector& av) { av.is_global = false; }) == EINVAL);
  CHECK(create([](AddressVector& av) { av.dgid = Gid{}; }) == EINVAL);
  CHECK(create([](AddressVector& av) { av.sgid_index = 255; }) == EINVAL);
  CHECK(create([&](AddressVector& av) { av.dgid = p.gid_at(v6); }) == EINVAL);
  CHECK(create([&](AddressVector& av) { av.sgid_index = v6; }) == EINVAL);
  CHECK(create([&](AddressVector& av) { av.sgid_index = v1; }) == 0);
}
