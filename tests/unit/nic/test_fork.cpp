// fork() is an ordinary event (design rule 9).
#include <sys/wait.h>

#include "nic_fixture.h"

using namespace softrnic;
using namespace softrnic::nic;
using namespace softrnic::nic::test;

namespace {

// Runs `body` in a child; its return value is what failed, 0 nothing.
int in_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#define EXPECT(condition) \
  if (!(condition)) return __LINE__ % 250 + 1

}  // namespace

TEST_CASE("fork: objects of the parent give errors in the child and can be destroyed", "[fork]") {
  Host host;
  Party a(host), b(host);
  Pair qp(a, b);
  CompletionChannel* channel = nullptr;
  REQUIRE(CompletionChannel::create(*a.ctx, &channel) == 0);
  SharedReceiveQueue* srq = nullptr;
  REQUIRE(SharedReceiveQueue::create(*a.pd, 4, 1, 0, nullptr, &srq) == 0);
  AddressHandle* ah = nullptr;
  REQUIRE(a.ctx->create_ah(a.pd, a.address(a.gid_index()), &ah) == 0);
  CHECK(in_child([&] {
          EXPECT(post(qp.a, {.wr_id = 1, .sges = {sge(a, 0, 8)}}) == ENODEV);
          EXPECT(recv(qp.a, 1, sge(a, 0, 8)) == ENODEV);
          EXPECT(a.cq->poll(1, [](int, const CqEntry&) {}) == -ENODEV);
          EXPECT(a.cq->request_notify(false) == ENODEV);
          EXPECT(a.cq->resize(10) == ENODEV);
          EXPECT(srq->post(1, {}) == ENODEV);
          EXPECT(srq->modify_limit(1) == ENODEV);
          EXPECT(qp.a->modify(state_only(ib::QpState::err), ib::kAttrState) == ENODEV);
          QpAttrsAll attrs;
          QpCaps caps;
          qp.a->query(&attrs, &caps);
          MemoryRegion* mr = nullptr;
          EXPECT(a.ctx->reg_mr(a.pd, a.memory.data(), 8, 0, 0, &mr) == ENODEV);
          QpCreate c = a.create_attrs();
          QueuePair* none = nullptr;
          EXPECT(QueuePair::create(c, &none) == ENODEV);
          EXPECT(qp.a->destroy() == 0);
          EXPECT(a.cq->destroy() == 0);
          EXPECT(srq->destroy() == 0);
          EXPECT(a.ctx->destroy_ah(ah) == 0);
          EXPECT(a.ctx->dereg_mr(a.mr) == 0);
          EXPECT(a.ctx->dealloc_pd(a.pd) == 0);
          EXPECT(channel->destroy() == 0);
          EXPECT(a.ctx->close() == 0);
          return 0;
        }) == 0);
  // The parent goes on as if nothing had happened.
  REQUIRE(recv(qp.b, 2, sge(b, 0, 8)) == 0);
  REQUIRE(post(qp.a, {.wr_id = 1, .sges = {sge(a, 0, 8)}}) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::success);
  CHECK(b.wait(1)[0].status == WcStatus::success);
  CHECK(srq->destroy() == 0);
  CHECK(a.ctx->destroy_ah(ah) == 0);
  CHECK(channel->destroy() == 0);
}

#ifndef __SANITIZE_THREAD__  // which allows no threads in a child of a process with threads

TEST_CASE("fork: a context of the parent attaches anew in the child, which can talk to the parent", "[fork]") {
  Host host;
  Party a(host), b(host);
  // The parent's end is ready before the fork; what the child has to know travels by memory and pipes.
  QueuePair* end = a.make_qp();
  to_init(end);
  int to_parent[2], to_child[2];
  REQUIRE(pipe(to_parent) == 0);
  REQUIRE(pipe(to_child) == 0);
  const AddressVector av = a.address(a.gid_index());
  const pid_t pid = fork();
  if (pid == 0) {
    const auto child = [&]() -> int {
      Context& ctx = *b.ctx;
      ProtectionDomain* pd = nullptr;
      EXPECT(ctx.alloc_pd(&pd) == 0);
      EXPECT(b.vf->fabric().vf_id() != 0);
      CompletionQueue* cq = nullptr;
      EXPECT(CompletionQueue::create(ctx, 16, nullptr, nullptr, &cq) == 0);
      QpCreate c = b.create_attrs();
      c.pd = pd;
      c.send_cq = c.recv_cq = cq;
      QueuePair* qp = nullptr;
      EXPECT(QueuePair::create(c, &qp) == 0);
      MemoryRegion* mr = nullptr;
      EXPECT(ctx.reg_mr(pd, b.memory.data(), 64, b.base(), kAllAccess, &mr) == 0);
      EXPECT(qp->modify(init_attrs(), kInitMask) == 0);
      EXPECT(qp->modify(rtr_attrs(av, end->qpn()), kRcRtrMask) == 0);
      EXPECT(qp->modify(rts_attrs(), kRcRtsMask) == 0);
      const Sge s{b.base(), 64, mr->lkey};
      EXPECT(qp->post_recv(1, {&s, 1}) == 0);
      std::uint32_t qpn = qp->qpn();
      EXPECT(write(to_parent[1], &qpn, sizeof qpn) == sizeof qpn);
      int n = 0;
      EXPECT(eventually([&] {
        n += cq->poll(1, [](int, const CqEntry& e) {
          if (e.wc.status != WcStatus::success) _exit(251);
        });
        return n == 1;
      }));
      EXPECT(b.memory[5] == 0x42);
      char byte;
      EXPECT(read(to_child[0], &byte, 1) == 1);  // the parent has its completion
      return 0;
    };
    _exit(child());
  }
  close(to_parent[1]);
  std::uint32_t qpn = 0;
  REQUIRE(read(to_parent[0], &qpn, sizeof qpn) == sizeof qpn);
  REQUIRE(end->modify(rtr_attrs(av, qpn), kRcRtrMask) == 0);
  REQUIRE(end->modify(rts_attrs(), kRcRtsMask) == 0);
  std::fill_n(a.memory.begin(), 64, std::uint8_t{0x42});
  REQUIRE(post(end, {.wr_id = 1, .sges = {sge(a, 0, 64)}}) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::success);
  REQUIRE(write(to_child[1], "x", 1) == 1);
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  for (int fd : {to_parent[0], to_child[0], to_child[1]}) close(fd);
}

TEST_CASE("fork while other threads are at it", "[fork]") {
  Host host;
  Party a(host), b(host);
  Pair qp(a, b);
  std::atomic<bool> stop{false};
  std::atomic<int> done{0};
  std::thread traffic([&] {
    while (!stop) {
      if (recv(qp.b, 1, sge(b, 0, 8)) != 0 || post(qp.a, {.wr_id = 1, .sges = {sge(a, 0, 8)}}) != 0) break;
      int n = 0;
      while (n < 2) {
        n += a.cq->poll(1, [](int, const CqEntry&) {});
        n += b.cq->poll(1, [](int, const CqEntry&) {});
      }
      ++done;
    }
  });
  for (int i = 0; i < 50; ++i) {
    CHECK(in_child([&] {
            EXPECT(a.cq->poll(1, [](int, const CqEntry&) {}) == -ENODEV);
            EXPECT(qp.a->destroy() == 0);
            EXPECT(qp.b->destroy() == 0);
            ProtectionDomain* pd = nullptr;
            EXPECT(i % 10 != 0 || a.ctx->alloc_pd(&pd) == 0);
            return 0;
          }) == 0);
  }
  stop = true;
  traffic.join();
  CHECK(done > 0);
}

#endif
