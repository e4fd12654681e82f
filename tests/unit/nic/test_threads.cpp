// Many threads at once: what the thread sanitizer looks at.
#include "nic_fixture.h"

using namespace softrnic;
using namespace softrnic::nic;
using namespace softrnic::nic::test;

namespace {

// Random operations of one pair, each checked when it completes; a thread of its own.
void hammer(Party& pa, Party& pb, Pair& qp, CompletionQueue* cq_a, CompletionQueue* cq_b, std::uint64_t at,
            int rounds) {
  const auto wait = [](CompletionQueue* cq, int n) {
    while (n > 0) {
      const int got = cq->poll(n, [](int, const CqEntry& e) {
        if (e.wc.status != WcStatus::success) std::abort();
      });
      n -= got;
      if (got == 0) std::this_thread::yield();
    }
  };
  for (int i = 0; i < rounds; ++i) {
    const auto length = static_cast<std::uint32_t>(1 + i * 37 % 3000);
    bool ok = recv(qp.b, 1, sge(pb, at, 3000)) == 0;
    ok = ok && post(qp.a, {.wr_id = 2, .sges = {sge(pa, at, length)}}) == 0;
    ok = ok && post(qp.a, {.opcode = WrOpcode::rdma_write,
                           .wr_id = 3,
                           .sges = {sge(pa, at, length)},
                           .remote_addr = pb.base() + at + 3000,
                           .rkey = pb.mr->rkey}) == 0;
    ok = ok && post(qp.a, {.opcode = WrOpcode::rdma_read,
                           .wr_id = 4,
                           .sges = {sge(pa, at + 3000, length)},
                           .remote_addr = pb.base() + at,
                           .rkey = pb.mr->rkey}) == 0;
    ok = ok && post(qp.a, {.opcode = WrOpcode::atomic_fetch_and_add,
                           .wr_id = 5,
                           .sges = {sge(pa, at + 6000, 8)},
                           .remote_addr = pb.base() + 65528,
                           .rkey = pb.mr->rkey,
                           .swap_or_add = 1}) == 0;
    if (!ok) std::abort();
    wait(cq_b, 1);
    wait(cq_a, 4);
  }
}

}  // namespace

TEST_CASE("two processes, several threads each with a QP and a CQ of its own", "[threads]") {
  Host host;
  Party a(host), b(host);
  constexpr int kThreads = 3, kRounds = 150;
  std::vector<CompletionQueue*> cqs;
  std::vector<std::unique_ptr<Pair>> pairs;
  for (int i = 0; i < kThreads; ++i) {
    Party* parties[] = {&a, &b};
    QueuePair* ends[2];
    for (int k = 0; k < 2; ++k) {
      CompletionQueue* cq = nullptr;
      REQUIRE(CompletionQueue::create(*parties[k]->ctx, 64, nullptr, nullptr, &cq) == 0);
      QpCreate c = parties[k]->create_attrs();
      c.send_cq = c.recv_cq = cq;
      ends[k] = parties[k]->make_qp(c);
      cqs.push_back(cq);
    }
    const AddressVector av = a.address(a.gid_index());
    to_rts(ends[0], av, ends[1]->qpn());
    to_rts(ends[1], av, ends[0]->qpn());
    pairs.push_back(std::make_unique<Pair>(Pair{ends[0], ends[1]}));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      hammer(a, b, *pairs[static_cast<std::size_t>(i)], cqs[static_cast<std::size_t>(2 * i)],
             cqs[static_cast<std::size_t>(2 * i + 1)], static_cast<std::uint64_t>(i) * 8192, kRounds);
    });
  }
  // Control calls meanwhile.
  for (int i = 0; i < 100; ++i) {
    MemoryRegion* mr = nullptr;
    REQUIRE(a.ctx->reg_mr(a.pd, a.memory.data(), 4096, a.base(), kAllAccess, &mr) == 0);
    QueuePair* qp = a.make_qp();
    to_rts(qp, a.address(a.gid_index()), qp->qpn());
    a.forget(qp);
    CHECK(qp->destroy() == 0);
    CHECK(a.ctx->dereg_mr(mr) == 0);
  }
  for (auto& t : threads) t.join();
  std::uint64_t sum;
  std::memcpy(&sum, b.memory.data() + 65528, 8);
  CHECK(sum == kThreads * kRounds);
  for (auto* qp : a.qps) qp->destroy();
  for (auto* qp : b.qps) qp->destroy();
  a.qps.clear();
  b.qps.clear();
  for (auto* cq : cqs) CHECK(cq->destroy() == 0);
}

TEST_CASE("threads that share a QP and a CQ lose nothing", "[threads]") {
  Host host;
  Party a(host), b(host);
  Pair qp(a, b);
  constexpr int kThreads = 3, kEach = 400;
  std::atomic<int> completed{0}, received{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach;) {
        const int rc = post(qp.a, {.wr_id = 1, .sges = {sge(a, 0, 16)}});
        if (rc == 0) ++i;
        completed += a.cq->poll(4, [](int, const CqEntry& e) {
          if (e.wc.status != WcStatus::success) std::abort();
        });
        if (rc != 0) std::this_thread::yield();
      }
    });
    threads.emplace_back([&] {
      while (received < kThreads * kEach) {
        recv(qp.b, 1, sge(b, 0, 16));
        const int n = b.cq->poll(4, [](int, const CqEntry& e) {
          if (e.wc.status != WcStatus::success) std::abort();
        });
        received += n;
        if (n == 0) std::this_thread::yield();
      }
    });
  }
  CHECK(eventually([&] {
    completed += a.cq->poll(4, [](int, const CqEntry&) {});
    return completed == kThreads * kEach;
  }));
  for (auto& t : threads) t.join();
  CHECK(received == kThreads * kEach);
}
