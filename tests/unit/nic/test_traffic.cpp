// Traffic between two attached processes and within one, every operation.
#include <numeric>

#include "nic_fixture.h"

using namespace softrnic;
using namespace softrnic::nic;
using namespace softrnic::nic::test;

namespace {

void fill(std::vector<std::uint8_t>& m, std::uint8_t seed) {
  for (std::size_t i = 0; i < m.size(); ++i) m[i] = static_cast<std::uint8_t>(i * 31 + (i >> 8) + seed);
}

// SEND, WRITE, READ and atomics from `a` to `b` (which may be the same process).
void exercise(Party& pa, Party& pb, QueuePair* a, QueuePair* b) {
  const bool rc = a->type() == ib::QpType::rc;
  fill(pa.memory, 1);
  for (std::uint32_t n : {0u, 1u, 3u, 8u, 511u, 1024u, 1025u, 5000u, 20000u}) {
    CAPTURE(n);
    std::fill_n(pb.memory.begin() + 30000, n + 1, std::uint8_t{0});
    REQUIRE(recv(b, 7, sge(pb, 30000, n + 1)) == 0);
    REQUIRE(post(a, {.wr_id = 6, .sges = {sge(pa, 100, n)}}) == 0);
    std::vector<Completion> got;
    if (&pa == &pb) {
      got = pa.wait(2);
    } else {
      got = pb.wait(1);
      got.push_back(pa.wait(1)[0]);
    }
    std::ranges::sort(got, {}, &Completion::wr_id);
    CHECK(got[0].status == WcStatus::success);
    CHECK(got[0].opcode == WcOpcode::send);
    CHECK(got[0].qp_num == a->qpn());
    CHECK(got[1].status == WcStatus::success);
    CHECK(got[1].opcode == WcOpcode::recv);
    CHECK(got[1].byte_len == n);
    CHECK(got[1].qp_num == b->qpn());
    CHECK(std::equal(pa.memory.begin() + 100, pa.memory.begin() + 100 + n, pb.memory.begin() + 30000));
    CHECK(pb.memory[30000 + n] == 0);
  }
  REQUIRE(post(a, {.opcode = WrOpcode::rdma_write,
                   .wr_id = 1,
                   .sges = {sge(pa, 0, 9000), sge(pa, 9001, 33)},
                   .remote_addr = pb.base() + 40001,
                   .rkey = pb.mr->rkey}) == 0);
  CHECK(pa.wait(1)[0].opcode == WcOpcode::rdma_write);
  REQUIRE(eventually([&] {  // UC: completed when sent
    pb.quiet(1);
    return std::equal(pa.memory.begin(), pa.memory.begin() + 9000, pb.memory.begin() + 40001) &&
           std::equal(pa.memory.begin() + 9001, pa.memory.begin() + 9034, pb.memory.begin() + 49001);
  }));
  if (!rc) return;
  REQUIRE(post(a, {.opcode = WrOpcode::rdma_read,
                   .wr_id = 2,
                   .sges = {sge(pa, 50000, 9034)},
                   .remote_addr = pb.base() + 40001,
                   .rkey = pb.mr->rkey}) == 0);
  CHECK(pa.wait(1)[0].status == WcStatus::success);
  CHECK(std::equal(pa.memory.begin() + 50000, pa.memory.begin() + 59034, pb.memory.begin() + 40001));

  const std::uint64_t forty = 40;
  std::memcpy(pb.memory.data() + 60000, &forty, 8);
  const auto word = [](const Party& p, std::size_t at) {
    std::uint64_t v;
    std::memcpy(&v, p.memory.data() + at, 8);
    return v;
  };
  REQUIRE(post(a, {.opcode = WrOpcode::atomic_fetch_and_add,
                   .wr_id = 3,
                   .sges = {sge(pa, 60008, 8)},
                   .remote_addr = pb.base() + 60000,
                   .rkey = pb.mr->rkey,
                   .swap_or_add = 2}) == 0);
  CHECK(pa.wait(1)[0].status == WcStatus::success);
  CHECK((word(pa, 60008) == 40 && word(pb, 60000) == 42));
  REQUIRE(post(a, {.opcode = WrOpcode::atomic_cmp_and_swp,
                   .wr_id = 4,
                   .sges = {sge(pa, 60008, 8)},
                   .remote_addr = pb.base() + 60000,
                   .rkey = pb.mr->rkey,
                   .compare = 42,
                   .swap_or_add = 99}) == 0);
  CHECK(pa.wait(1)[0].status == WcStatus::success);
  CHECK((word(pa, 60008) == 42 && word(pb, 60000) == 99));
}

// Drives a process from a thread of its own, as its application would by polling.
class Driver {
 public:
  explicit Driver(Party& p)
      : thread_([&p, this] {
          while (!stop_.load(std::memory_order_relaxed)) {
            if (p.vf->progress(64) == 0) std::this_thread::yield();
          }
        }) {}
  ~Driver() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("RC between QPs of one process", "[traffic]") {
  Host host;
  Party p(host);
  Pair qp(p, p);
  exercise(p, p, qp.a, qp.b);
}

TEST_CASE("RC, UC between two processes over RoCE v2 IPv4, IPv6 and RoCE v1", "[traffic]") {
  Host host;
  Party a(host), b(host);
  Driver da(a), db(b);
  SECTION("RC, v2 IPv4") {
    Pair qp(a, b);
    exercise(a, b, qp.a, qp.b);
    exercise(b, a, qp.b, qp.a);
  }
  SECTION("RC, v2 IPv6") {
    Pair qp(a, b, ib::QpType::rc, 1, false);
    exercise(a, b, qp.a, qp.b);
  }
  SECTION("RC, v1") {
    Pair qp(a, b, ib::QpType::rc, 0, true);
    exercise(a, b, qp.a, qp.b);
  }
  SECTION("UC, v2 IPv4") {
    Pair qp(a, b, ib::QpType::uc);
    exercise(a, b, qp.a, qp.b);
  }
}

TEST_CASE("inline data may be changed as soon as it is posted", "[traffic]") {
  Host host;
  Party p(host);
  Pair qp(p, p);
  const std::string text = "some inline data";
  REQUIRE(recv(qp.b, 1, sge(p, 0, 100)) == 0);
  REQUIRE(post(qp.a, {.wr_id = 2, .inline_bytes = text}) == 0);
  p.wait(2);
  CHECK(std::memcmp(p.memory.data(), text.data(), text.size()) == 0);
  CHECK(qp.a->caps().max_inline >= 512);
  CHECK(post(qp.a, {.wr_id = 2, .inline_bytes = std::string(qp.a->caps().max_inline + 1, 'x')}) == EINVAL);
  CHECK(post(qp.a, {.opcode = WrOpcode::rdma_read, .inline_bytes = text}) == EINVAL);
}

TEST_CASE("a receive that comes late is waited for (RNR)", "[traffic]") {
  Host host;
  Party p(host);
  Pair qp(p, p);
  REQUIRE(post(qp.a, {.wr_id = 1, .sges = {sge(p, 0, 8)}}) == 0);
  CHECK(p.quiet());
  REQUIRE(recv(qp.b, 2, sge(p, 100, 8)) == 0);
  for (const Completion& c : p.wait(2)) CHECK(c.status == WcStatus::success);
}

TEST_CASE("a program that polls for few completions gets them in order, and all", "[traffic]") {
  Host host;
  Party a(host), b(host);
  Pair qp(a, b);
  for (std::uint64_t i = 0; i < 64; ++i) REQUIRE(recv(qp.b, i, sge(b, i * 8, 8)) == 0);
  for (std::uint64_t i = 0; i < 64; ++i) REQUIRE(post(qp.a, {.wr_id = 100 + i, .sges = {sge(a, i * 8, 8)}}) == 0);
  for (std::uint64_t i = 0; i < 64; ++i) {
    const auto got = b.wait(1);
    REQUIRE(got.size() == 1);
    CHECK(got[0].wr_id == i);
  }
  const auto sent = a.wait(64);
  for (std::uint64_t i = 0; i < 64; ++i) CHECK(sent[i].wr_id == 100 + i);
}

TEST_CASE("a slot of the send queue is free again when its completion was polled", "[traffic]") {
  Host host;
  Party p(host);
  Pair qp(p, p);
  const std::uint32_t depth = qp.a->caps().max_send_wr;
  const auto write = [&](std::uint64_t id) {
    return post(qp.a, {.opcode = WrOpcode::rdma_write,
                       .wr_id = id,
                       .sges = {sge(p, 0, 8)},
                       .remote_addr = p.base() + 100,
                       .rkey = p.mr->rkey});
  };
  for (std::uint32_t i = 0; i < depth; ++i) REQUIRE(write(i) == 0);
  p.vf->progress(1000);
  CHECK(write(0) == ENOMEM);
  p.wait(1);
  CHECK(write(depth) == 0);
  CHECK(write(depth) == ENOMEM);
  p.wait(depth);
}

TEST_CASE("UD between processes and within one: payload behind the 40-byte header area", "[traffic][ud]") {
  Host host;
  Party a(host), b(host);
  Party* const from[] = {&a, &a};
  Party* const to[] = {&b, &a};
  for (int i = 0; i < 2; ++i) {
    QueuePair* s = from[i]->make_qp(ib::QpType::ud);
    QueuePair* r = to[i]->make_qp(ib::QpType::ud);
    to_rts(s, {}, 0);
    to_rts(r, {}, 0);
    fill(from[i]->memory, 9);
    const std::uint8_t gid = from[i]->gid_index();
    AddressHandle* ah = nullptr;
    REQUIRE(from[i]->ctx->create_ah(from[i]->pd, from[i]->address(gid), &ah) == 0);
    REQUIRE(recv(r, 5, sge(*to[i], 20000, 2000)) == 0);
    REQUIRE(post(s, {.wr_id = 4, .sges = {sge(*from[i], 10, 1001)}, .ah = ah->number, .remote_qpn = r->qpn()}) == 0);
    CHECK(from[i]->wait(1)[0].wr_id == 4);
    const Completion c = to[i]->wait(1)[0];
    CHECK(c.byte_len == 1041);
    CHECK(c.src_qp == s->qpn());
    CHECK((c.wc_flags & kWcGrh) != 0);
    CHECK(std::equal(from[i]->memory.begin() + 10, from[i]->memory.begin() + 1011, to[i]->memory.begin() + 20040));
    CHECK(to[i]->memory[20020] == 0x45);  // the IPv4 header, IBA A17.9.2
    CHECK(post(s, {.sges = {sge(*from[i], 0, 5000)}, .ah = ah->number, .remote_qpn = r->qpn()}) == EINVAL);
    CHECK(from[i]->ctx->destroy_ah(ah) == 0);
    CHECK(post(s, {.sges = {sge(*from[i], 0, 8)}, .ah = 1, .remote_qpn = r->qpn()}) == EINVAL);
  }
}

TEST_CASE("a datagram comes from the GID that sgid_index names and goes to dgid", "[traffic][ud]") {
  Host host;
  Party a(host), b(host);
  QueuePair* s = a.make_qp(ib::QpType::ud);
  QueuePair* r = b.make_qp(ib::QpType::ud);
  to_rts(s, {}, 0);
  to_rts(r, {}, 0);
  const auto record = [&](std::uint32_t i) {
    control::GidRecord g{};
    REQUIRE(a.ctx->gid(i, &g) == 0);
    return g;
  };
  const std::uint32_t count = a.ctx->device().num_gids;
  for (std::uint32_t from = 0; from < count; ++from) {
    for (std::uint32_t to = 0; to < count; ++to) {
      const control::GidRecord source = record(from), target = record(to);
      const bool ipv4 = roce::is_ipv4_mapped(source.gid);
      if (source.type != target.type || ipv4 != roce::is_ipv4_mapped(target.gid)) continue;
      CAPTURE(from, to);
      AddressVector av = a.address(static_cast<std::uint8_t>(from));
      av.dgid = target.gid;
      AddressHandle* ah = nullptr;
      REQUIRE(a.ctx->create_ah(a.pd, av, &ah) == 0);
      REQUIRE(recv(r, 5, sge(b, 0, 100)) == 0);
      REQUIRE(post(s, {.wr_id = 4, .sges = {sge(a, 0, 8)}, .ah = ah->number, .remote_qpn = r->qpn()}) == 0);
      CHECK(a.wait(1)[0].status == WcStatus::success);
      REQUIRE(b.wait(1)[0].status == WcStatus::success);
      // RoCE v2 over IPv4: the IPv4 header in the last 20 bytes; else an IPv6 header or a GRH.
      const bool short_header = ipv4 && source.type == 1;
      const std::size_t at = short_header ? 32 : 8, size = short_header ? 4 : 16;
      CHECK(std::memcmp(&b.memory[at], source.gid.raw + 16 - size, size) == 0);
      CHECK(std::memcmp(&b.memory[at + size], target.gid.raw + 16 - size, size) == 0);
      CHECK(a.ctx->destroy_ah(ah) == 0);
    }
  }
}

TEST_CASE("IBA 10.5.2.1: a multicast datagram reaches the other attached QPs, not its sender", "[traffic][ud]") {
  Host host;
  Party a(host), b(host);
  Gid group{};
  group.raw[10] = group.raw[11] = 0xFF;
  group.raw[12] = 239;
  group.raw[15] = 7;
  QueuePair* sender = a.make_qp(ib::QpType::ud);
  QueuePair* near = a.make_qp(ib::QpType::ud);
  QueuePair* far = b.make_qp(ib::QpType::ud);
  for (QueuePair* qp : {sender, near, far}) to_rts(qp, {}, 0);
  CHECK(sender->attach_mcast(a.gid_at(a.gid_index()), 0) == EINVAL);
  for (QueuePair* qp : {sender, near, far}) REQUIRE(qp->attach_mcast(group, 0) == 0);
  CHECK(near->destroy() == EBUSY);

  REQUIRE(recv(sender, 1, sge(a, 0, 200)) == 0);
  REQUIRE(recv(near, 2, sge(a, 200, 200)) == 0);
  REQUIRE(recv(far, 3, sge(b, 0, 200)) == 0);
  AddressVector av = a.address(a.gid_index());
  av.dgid = group;
  AddressHandle* ah = nullptr;
  REQUIRE(a.ctx->create_ah(a.pd, av, &ah) == 0);
  REQUIRE(post(sender, {.wr_id = 9, .sges = {sge(a, 1000, 64)}, .ah = ah->number, .remote_qpn = 0xFFFFFF}) == 0);
  std::vector<Completion> got = a.wait(2);
  std::ranges::sort(got, {}, &Completion::wr_id);
  CHECK(got[0].wr_id == 2);
  CHECK(got[1].wr_id == 9);
  CHECK(b.wait(1)[0].wr_id == 3);
  CHECK(a.quiet());

  for (QueuePair* qp : {sender, near, far}) CHECK(qp->detach_mcast(group, 0) == 0);
  CHECK(near->detach_mcast(group, 0) == EINVAL);
  REQUIRE(post(sender, {.wr_id = 10, .sges = {sge(a, 1000, 64)}, .ah = ah->number, .remote_qpn = 0xFFFFFF}) == 0);
  CHECK(a.wait(1)[0].wr_id == 10);
  CHECK(a.ctx->destroy_ah(ah) == 0);
}
