// What goes wrong, and what both sides see of it.
#include <fcntl.h>
#include <sys/mman.h>

#include "nic_fixture.h"
#include "protocols/wire/bth.h"

using namespace softrnic;
using namespace softrnic::nic;
using namespace softrnic::nic::test;

namespace {

std::vector<AsyncEvent> events_of(Party& p) {
  std::vector<AsyncEvent> got;
  fcntl(p.ctx->async.fd(), F_SETFL, O_NONBLOCK);
  AsyncEventRecord e;
  while (p.ctx->async.pop(&e) == 0) got.push_back(e.type);
  return got;
}

Send write_to(const Party& from, const Party& to, std::uint32_t rkey, std::uint64_t id = 1) {
  return {.opcode = WrOpcode::rdma_write,
          .wr_id = id,
          .sges = {sge(from, 0, 64)},
          .remote_addr = to.base() + 1024,
          .rkey = rkey};
}

}  // namespace

TEST_CASE("after a remote access error: the request fails, later ones are flushed on both queues", "[errors]") {
  Host host;
  Party a(host), b(host);
  Pair qp(a, b);
  REQUIRE(recv(qp.a, 50, sge(a, 0, 8)) == 0);
  REQUIRE(recv(qp.b, 60, sge(b, 0, 8)) == 0);
  REQUIRE(post(qp.a, write_to(a, b, b.mr->rkey + 1, 1)) == 0);
  REQUIRE(post(qp.a, write_to(a, b, b.mr->rkey, 2)) == 0);
  auto got = a.wait(3);
  std::ranges::sort(got, {}, &Completion::wr_id);
  CHECK(got[0].status == WcStatus::rem_access_err);
  CHECK(got[0].wr_id == 1);
  CHECK(got[1].status == WcStatus::wr_flush_err);
  CHECK(got[1].wr_id == 2);
  CHECK(got[2].status == WcStatus::wr_flush_err);
  CHECK(got[2].wr_id == 50);
  CHECK(qp.a->state() == ib::QpState::err);
  CHECK(b.wait(1)[0].status == WcStatus::wr_flush_err);
  CHECK(qp.b->state() == ib::QpState::err);
  const auto events = events_of(b);
  CHECK(std::ranges::count(events, AsyncEvent::qp_access_err) == 1);
  REQUIRE(recv(qp.b, 61, sge(b, 0, 8)) == 0);
  CHECK(b.wait(1)[0].wr_id == 61);
  REQUIRE(post(qp.a, write_to(a, b, b.mr->rkey, 3)) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::wr_flush_err);
}

TEST_CASE("memory that was unmapped while registered: access errors, no crash", "[errors]") {
  Host host;
  Party a(host), b(host);
  Pair qp(a, b);
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto at = reinterpret_cast<std::uint64_t>(page);
  const auto registered_at = [&](Party& p) {
    MemoryRegion* mr = nullptr;
    REQUIRE(p.ctx->reg_mr(p.pd, page, 4096, at, kAllAccess, &mr) == 0);
    return mr;
  };
  SECTION("source of a SEND") {
    MemoryRegion* mr = registered_at(a);
    mprotect(page, 4096, PROT_NONE);  // unmapped, the address could be somebody else's at once
    REQUIRE(recv(qp.b, 1, sge(b, 0, 64)) == 0);
    REQUIRE(post(qp.a, {.wr_id = 5, .sges = {{at, 64, mr->lkey}}}) == 0);
    const Completion c = a.wait(1)[0];
    CHECK(c.status == WcStatus::loc_prot_err);
    CHECK(c.wr_id == 5);
    a.ctx->dereg_mr(mr);
  }
  SECTION("target of a WRITE") {
    MemoryRegion* mr = registered_at(b);
    mprotect(page, 4096, PROT_NONE);
    REQUIRE(post(qp.a, {.opcode = WrOpcode::rdma_write,
                        .wr_id = 5,
                        .sges = {sge(a, 0, 64)},
                        .remote_addr = at,
                        .rkey = mr->rkey}) == 0);
    REQUIRE(eventually([&] { return b.vf->progress(16) >= 0 && qp.a->state() == ib::QpState::err && a.quiet(0); }) ==
            true);
    b.ctx->dereg_mr(mr);
  }
  SECTION("source of a READ") {
    MemoryRegion* mr = registered_at(b);
    mprotect(page, 4096, PROT_NONE);
    REQUIRE(post(qp.a, {.opcode = WrOpcode::rdma_read,
                        .wr_id = 5,
                        .sges = {sge(a, 0, 64)},
                        .remote_addr = at,
                        .rkey = mr->rkey}) == 0);
    const Completion c = a.wait(1)[0];
    CHECK(c.status != WcStatus::success);
    CHECK(c.wr_id == 5);
    b.ctx->dereg_mr(mr);
  }
  SECTION("read-only target of an atomic") {
    MemoryRegion* mr = registered_at(b);
    mprotect(page, 4096, PROT_READ);
    REQUIRE(post(qp.a, {.opcode = WrOpcode::atomic_fetch_and_add,
                        .wr_id = 5,
                        .sges = {sge(a, 0, 8)},
                        .remote_addr = at,
                        .rkey = mr->rkey,
                        .swap_or_add = 1}) == 0);
    CHECK(a.wait(1)[0].status != WcStatus::success);
    b.ctx->dereg_mr(mr);
    munmap(page, 4096);
  }
}

TEST_CASE("a passive target that calls no verbs is served by its helper thread", "[errors]") {
  Host host;
  Party a(host), target(host);
  Pair qp(a, target);
  std::fill_n(a.memory.begin(), 64, std::uint8_t{0xAB});
  REQUIRE(post(qp.a, write_to(a, target, target.mr->rkey)) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::success);
  CHECK(target.memory[1024 + 63] == 0xAB);
  REQUIRE(post(qp.a, {.opcode = WrOpcode::rdma_read,
                      .wr_id = 2,
                      .sges = {sge(a, 4096, 30000)},
                      .remote_addr = target.base(),
                      .rkey = target.mr->rkey}) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::success);
  CHECK(a.memory[4096 + 1024] == 0xAB);
}

TEST_CASE("a requester that posts and then only looks at memory gets its READ", "[errors]") {
  Host host;
  Party a(host), target(host);
  Pair qp(a, target);
  std::fill_n(target.memory.begin(), 20000, std::uint8_t{0x77});
  REQUIRE(post(qp.a, {.opcode = WrOpcode::rdma_read,
                      .wr_id = 2,
                      .sges = {sge(a, 0, 20000)},
                      .remote_addr = target.base(),
                      .rkey = target.mr->rkey}) == 0);
  volatile std::uint8_t* last = &a.memory[19999];
  CHECK(eventually([&] { return *last == 0x77; }));
}

TEST_CASE("a QPN that nobody has: RTR succeeds, requests run into the retry limit", "[errors]") {
  Host host;
  Party a(host);
  QueuePair* qp = a.make_qp();
  to_init(qp);
  REQUIRE(qp->modify(rtr_attrs(a.address(a.gid_index()), 0xABC123), kRcRtrMask) == 0);
  QpAttrsAll rts = rts_attrs();
  rts.ib.timeout = 8;  // about a millisecond
  rts.ib.retry_cnt = 2;
  REQUIRE(qp->modify(rts, kRcRtsMask) == 0);
  REQUIRE(post(qp, write_to(a, a, a.mr->rkey)) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::retry_exc_err);
}

TEST_CASE("a peer that destroyed its QP: RETRY_EXC_ERR", "[errors]") {
  Host host;
  Party a(host), b(host);
  Pair qp(a, b);
  QpAttrsAll slow = rts_attrs();
  QueuePair* impatient = a.make_qp();
  QueuePair* gone = b.make_qp();
  const AddressVector av = a.address(a.gid_index());
  to_rts(gone, av, impatient->qpn());
  to_init(impatient);
  REQUIRE(impatient->modify(rtr_attrs(av, gone->qpn()), kRcRtrMask) == 0);
  slow.ib.timeout = 8;
  slow.ib.retry_cnt = 1;
  REQUIRE(impatient->modify(slow, kRcRtsMask) == 0);
  b.forget(gone);
  REQUIRE(gone->destroy() == 0);
  REQUIRE(post(impatient, write_to(a, b, b.mr->rkey)) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::retry_exc_err);
  REQUIRE(post(qp.a, write_to(a, b, b.mr->rkey)) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::success);
}

TEST_CASE("a packet is taken only from the process and address that the QP is connected to", "[errors]") {
  Host host;
  Party a(host), b(host), intruder(host);
  Pair qp(a, b);
  // The intruder connects to b's QP as if it were a's.
  QueuePair* liar = intruder.make_qp();
  to_init(liar);
  QpAttrsAll rtr = rtr_attrs(a.address(a.gid_index()), qp.b->qpn());
  REQUIRE(liar->modify(rtr, kRcRtrMask) == 0);
  QpAttrsAll rts = rts_attrs();
  rts.ib.timeout = 8;
  rts.ib.retry_cnt = 1;
  REQUIRE(liar->modify(rts, kRcRtsMask) == 0);
  REQUIRE(post(liar, write_to(intruder, b, b.mr->rkey)) == 0);
  CHECK(intruder.wait(1)[0].status == WcStatus::retry_exc_err);
  CHECK(b.memory[1024] == 0);
  std::fill_n(a.memory.begin(), 64, std::uint8_t{0x11});
  REQUIRE(post(qp.a, write_to(a, b, b.mr->rkey)) == 0);  // b's QP has not noticed
  CHECK(a.wait(1)[0].status == WcStatus::success);
  CHECK(b.memory[1024] == 0x11);
}

TEST_CASE("memory windows by work request: bind, use, invalidate", "[errors]") {
  Host host;
  Party a(host), b(host);
  Pair qp(a, b);
  MemoryWindow* mw = nullptr;
  REQUIRE(b.ctx->alloc_mw(b.pd, 2, &mw) == 0);
  const std::uint32_t rkey = mw->rkey + 1;
  REQUIRE(post(qp.b, {.opcode = WrOpcode::bind_mw,
                      .wr_id = 1,
                      .bind = {mw->rkey, rkey, b.mr->lkey, b.base() + 1024, 64, kAccessRemoteWrite}}) == 0);
  const Completion bound = b.wait(1)[0];
  CHECK(bound.status == WcStatus::success);
  CHECK(bound.opcode == WcOpcode::bind_mw);
  CHECK(b.ctx->dereg_mr(b.mr) == EBUSY);
  REQUIRE(post(qp.a, write_to(a, b, rkey)) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::success);
  REQUIRE(recv(qp.b, 2, sge(b, 0, 8)) == 0);
  REQUIRE(post(qp.a, {.opcode = WrOpcode::send_with_inv, .wr_id = 3, .sges = {sge(a, 0, 8)}, .imm_or_inv = rkey}) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::success);
  const Completion c = b.wait(1)[0];
  CHECK((c.wc_flags & kWcWithInv) != 0);
  CHECK(c.imm_or_rkey == rkey);
  REQUIRE(post(qp.a, write_to(a, b, rkey)) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::rem_access_err);
  CHECK(b.ctx->dealloc_mw(mw) == 0);
}

TEST_CASE("when the NIC process dies: DEVICE_FATAL, flushes, clean errors", "[errors]") {
  Host host;
  Party a(host), b(host);
  Pair qp(a, b);
  REQUIRE(recv(qp.a, 7, sge(a, 0, 8)) == 0);
  host.kill();
  std::vector<AsyncEvent> events;
  REQUIRE(eventually([&] {
    for (AsyncEvent e : events_of(a)) events.push_back(e);
    return !events.empty();  // found by the helper thread
  }));
  CHECK(events == std::vector<AsyncEvent>{AsyncEvent::device_fatal});
  CHECK(a.wait(1)[0].status == WcStatus::wr_flush_err);
  CHECK(qp.a->state() == ib::QpState::err);
  REQUIRE(post(qp.a, write_to(a, b, b.mr->rkey)) == 0);
  CHECK(a.wait(1)[0].status == WcStatus::wr_flush_err);
  QpCreate c = a.create_attrs();
  QueuePair* none = nullptr;
  CHECK(QueuePair::create(c, &none) == EIO);
  ProtectionDomain* pd = nullptr;
  CHECK(a.ctx->alloc_pd(&pd) == EIO);
}
