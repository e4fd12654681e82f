// Queue pairs, completion queues and shared receive queues: posting, polling, events.
#include "tests/abi/fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

#include <atomic>
#include <ctime>

using namespace abi;

TEST_CASE("RC: send, write, read and atomics by ibv_post_send", "[post]") {
  Device d;
  Pair p(d, d.init_attr(IBV_QPT_RC));
  ibv_send_wr* bad = nullptr;

  memcpy(d.memory.data(), "hello", 5);
  post_recv(p.b, d.sge(4096, 100));
  ibv_sge sge = d.sge(0, 5);
  ibv_send_wr wr = send_wr(&sge, IBV_WR_SEND_WITH_IMM);
  wr.imm_data = 0x11223344;
  REQUIRE(ibv_post_send(p.a, &wr, &bad) == 0);
  for (const ibv_wc& wc : poll_n(d.cq, 2)) {
    CHECK(wc.status == IBV_WC_SUCCESS);
    if (wc.opcode == IBV_WC_RECV) {
      CHECK(wc.wr_id == 7);
      CHECK(wc.byte_len == 5);
      CHECK(wc.wc_flags == IBV_WC_WITH_IMM);
      CHECK(wc.imm_data == 0x11223344);
      CHECK(wc.qp_num == p.b->qp_num);
    } else {
      CHECK(wc.opcode == IBV_WC_SEND);
      CHECK(wc.wr_id == 42);
      CHECK(wc.qp_num == p.a->qp_num);
    }
  }
  CHECK(memcmp(d.memory.data() + 4096, "hello", 5) == 0);

  // Inline data is taken at once, from memory that is not registered.
  char local[] = "inline";
  sge = {reinterpret_cast<std::uint64_t>(local), 6, 0};
  wr = send_wr(&sge, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
  wr.wr.rdma = {d.address(8192), d.mr->rkey};
  REQUIRE(ibv_post_send(p.a, &wr, &bad) == 0);
  memset(local, 0, sizeof local);
  CHECK(poll_n(d.cq, 1)[0].opcode == IBV_WC_RDMA_WRITE);
  CHECK(memcmp(d.memory.data() + 8192, "inline", 6) == 0);

  sge = d.sge(100, 6);
  wr = send_wr(&sge, IBV_WR_RDMA_READ);
  wr.wr.rdma = {d.address(8192), d.mr->rkey};
  REQUIRE(ibv_post_send(p.a, &wr, &bad) == 0);
  CHECK(poll_n(d.cq, 1)[0].opcode == IBV_WC_RDMA_READ);
  CHECK(memcmp(d.memory.data() + 100, "inline", 6) == 0);

  std::uint64_t value = 5;
  memcpy(d.memory.data() + 16384, &value, 8);
  sge = d.sge(200, 8);
  wr = send_wr(&sge, IBV_WR_ATOMIC_FETCH_AND_ADD);
  wr.wr.atomic.remote_addr = d.address(16384);
  wr.wr.atomic.compare_add = 3;
  wr.wr.atomic.rkey = d.mr->rkey;
  REQUIRE(ibv_post_send(p.a, &wr, &bad) == 0);
  CHECK(poll_n(d.cq, 1)[0].opcode == IBV_WC_FETCH_ADD);
  wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  wr.wr.atomic.compare_add = 8;
  wr.wr.atomic.swap = 77;
  REQUIRE(ibv_post_send(p.a, &wr, &bad) == 0);
  CHECK(poll_n(d.cq, 1)[0].opcode == IBV_WC_COMP_SWAP);
  memcpy(&value, d.memory.data() + 200, 8);
  CHECK(value == 8);
  memcpy(&value, d.memory.data() + 16384, 8);
  CHECK(value == 77);
}

TEST_CASE("a list stops at the bad request and names it", "[post]") {
  Device d;
  Pair p(d, d.init_attr(IBV_QPT_RC));
  ibv_sge sge = d.sge(0, 8);
  ibv_send_wr good = send_wr(&sge, IBV_WR_RDMA_WRITE), wrong = good, after = good, *bad = nullptr;
  good.wr.rdma = wrong.wr.rdma = after.wr.rdma = {d.address(4096), d.mr->rkey};
  good.next = &wrong;
  wrong.next = &after;
  SECTION("too many elements") { wrong.num_sge = 1000; }
  SECTION("negative number of elements") { wrong.num_sge = -1; }
  SECTION("unknown operation") { wrong.opcode = static_cast<ibv_wr_opcode>(200); }
  SECTION("an operation of raw packets") { wrong.opcode = IBV_WR_TSO; }
  SECTION("checksum offload") { wrong.send_flags |= IBV_SEND_IP_CSUM; }
  SECTION("too much inline data") {
    static ibv_sge big = d.sge(0, 60000);
    wrong.send_flags |= IBV_SEND_INLINE;
    wrong.sg_list = &big;
  }
  CHECK(ibv_post_send(p.a, &good, &bad) == EINVAL);
  CHECK(bad == &wrong);
  CHECK(poll_n(d.cq, 1)[0].status == IBV_WC_SUCCESS);  // the one before was posted
  ibv_wc wc;
  CHECK(ibv_poll_cq(d.cq, 1, &wc) == 0);

  ibv_recv_wr r{}, *bad_recv = nullptr;
  r.num_sge = 1000;
  r.sg_list = &sge;
  CHECK(ibv_post_recv(p.a, &r, &bad_recv) == EINVAL);
  CHECK(bad_recv == &r);
}

TEST_CASE("a full receive queue is ENOMEM", "[post]") {
  Device d;
  Pair p(d, d.init_attr(IBV_QPT_RC));
  ibv_qp_attr attr;
  ibv_qp_init_attr init;
  REQUIRE(ibv_query_qp(p.a, &attr, IBV_QP_STATE | IBV_QP_CAP, &init) == 0);
  CHECK(attr.qp_state == IBV_QPS_RTS);
  CHECK(init.qp_type == IBV_QPT_RC);
  CHECK(init.send_cq == d.cq);
  ibv_sge sge = d.sge(0, 8);
  ibv_recv_wr r{}, *bad = nullptr;
  r.sg_list = &sge;
  r.num_sge = 1;
  for (std::uint32_t i = 0; i < attr.cap.max_recv_wr; ++i) REQUIRE(ibv_post_recv(p.a, &r, &bad) == 0);
  CHECK(ibv_post_recv(p.a, &r, &bad) == ENOMEM);
  CHECK(bad == &r);
}

TEST_CASE("completion events: request, wait, acknowledge; destruction waits for the acknowledgement", "[events]") {
  Device d;
  ibv_comp_channel* channel = ibv_create_comp_channel(d.ctx);
  REQUIRE(channel != nullptr);
  int tag = 0;
  ibv_cq* cq = ibv_create_cq(d.ctx, 16, &tag, channel, 0);
  REQUIRE(cq != nullptr);
  CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
  ibv_qp_init_attr attr = d.init_attr(IBV_QPT_RC);
  attr.send_cq = cq;
  {
    Pair p(d, attr);
    CHECK(ibv_destroy_cq(cq) == EBUSY);

    int flags = fcntl(channel->fd, F_GETFL);
    REQUIRE(fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) == 0);
    ibv_cq* got = nullptr;
    void* context = nullptr;
    errno = 0;
    CHECK(ibv_get_cq_event(channel, &got, &context) == -1);
    CHECK(errno == EAGAIN);
    REQUIRE(fcntl(channel->fd, F_SETFL, flags) == 0);

    REQUIRE(ibv_req_notify_cq(cq, 0) == 0);
    ibv_sge sge = d.sge(0, 8);
    ibv_send_wr wr = send_wr(&sge, IBV_WR_RDMA_WRITE), *bad = nullptr;
    wr.wr.rdma = {d.address(4096), d.mr->rkey};
    REQUIRE(ibv_post_send(p.a, &wr, &bad) == 0);
    REQUIRE(ibv_get_cq_event(channel, &got, &context) == 0);
    CHECK(got == cq);
    CHECK(context == &tag);
    CHECK(poll_n(cq, 1)[0].status == IBV_WC_SUCCESS);
  }
  std::atomic<bool> acknowledged{false};
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    acknowledged = true;
    ibv_ack_cq_events(cq, 1);
  });
  CHECK(ibv_destroy_cq(cq) == 0);
  CHECK(acknowledged);
  other.join();
  CHECK(ibv_destroy_comp_channel(channel) == 0);
}

TEST_CASE("a thread can be cancelled while it waits for a completion event", "[events]") {
  Device d;
  ibv_comp_channel* channel = ibv_create_comp_channel(d.ctx);
  REQUIRE(channel != nullptr);
  pthread_t thread;
  REQUIRE(pthread_create(
              &thread, nullptr,
              [](void* c) -> void* {
                ibv_cq* cq;
                void* context;
                ibv_get_cq_event(static_cast<ibv_comp_channel*>(c), &cq, &context);
                return nullptr;
              },
              channel) == 0);
  REQUIRE(pthread_cancel(thread) == 0);
  void* result = nullptr;
  REQUIRE(pthread_join(thread, &result) == 0);
  CHECK(result == PTHREAD_CANCELED);
  CHECK(ibv_destroy_comp_channel(channel) == 0);
}

TEST_CASE("extended CQ: fields, order, timestamps", "[cq_ex]") {
  Device d;
  ibv_cq_init_attr_ex init{};
  init.cqe = 32;
  init.wc_flags =
      +IBV_WC_STANDARD_FLAGS | +IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | +IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  SECTION("shared") {}
  SECTION("single-threaded") {
    init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    init.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
  }
  ibv_cq_ex* cq = ibv_create_cq_ex(d.ctx, &init);
  REQUIRE(cq != nullptr);
  ibv_poll_cq_attr poll_attr{};
  CHECK(ibv_start_poll(cq, &poll_attr) == ENOENT);
  ibv_qp_init_attr attr = d.init_attr(IBV_QPT_RC);
  attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(cq);
  {
    Pair p(d, attr);
    for (std::uint64_t i = 0; i < 3; ++i) {
      ibv_sge sge = d.sge(0, 8);
      ibv_send_wr wr = send_wr(&sge, IBV_WR_RDMA_WRITE), *bad = nullptr;
      wr.wr_id = i;
      wr.wr.rdma = {d.address(4096), d.mr->rkey};
      REQUIRE(ibv_post_send(p.a, &wr, &bad) == 0);
    }
    std::uint64_t seen = 0, last = 0;
    while (seen < 3) {
      if (ibv_start_poll(cq, &poll_attr) != 0) continue;
      do {
        CHECK(cq->wr_id == seen++);
        CHECK(cq->status == IBV_WC_SUCCESS);
        CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
        CHECK(ibv_wc_read_qp_num(cq) == p.a->qp_num);
        std::uint64_t ts = ibv_wc_read_completion_ts(cq);
        CHECK(ts >= last);
        last = ts;
        std::uint64_t wall = ibv_wc_read_completion_wallclock_ns(cq) / 1000000000u;
        std::uint64_t now = static_cast<std::uint64_t>(time(nullptr));
        CHECK(wall + 60 >= now);
        CHECK(wall <= now + 60);
      } while (ibv_next_poll(cq) == 0);
      ibv_end_poll(cq);
    }
    ibv_values_ex values{};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    REQUIRE(ibv_query_rt_values_ex(d.ctx, &values) == 0);
    CHECK(static_cast<std::uint64_t>(values.raw_clock.tv_sec) >= last / 1000000000u);
  }
  CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

namespace {

ibv_qp* make_extended(Device& d, std::uint64_t ops) {
  ibv_qp_init_attr_ex a{};
  a.send_cq = a.recv_cq = d.cq;
  a.cap = {4, 16, 4, 4, 64};
  a.qp_type = IBV_QPT_RC;
  a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  a.pd = d.pd;
  a.send_ops_flags = ops;
  return ibv_create_qp_ex(d.ctx, &a);
}

}  // namespace

TEST_CASE("ibv_wr_* builders post a batch, or nothing", "[qp_ex]") {
  Device d;
  const std::uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
                            IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  errno = 0;
  CHECK(make_extended(d, IBV_QP_EX_WITH_TSO) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  Pair p(d, make_extended(d, ops), make_extended(d, ops));
  ibv_qp_ex* x = ibv_qp_to_qp_ex(p.a);
  REQUIRE(x != nullptr);
  ibv_wc wc;

  memcpy(d.memory.data(), "first", 5);
  ibv_wr_start(x);
  x->wr_id = 1;
  x->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(x, d.mr->rkey, d.address(4096));
  ibv_wr_set_sge(x, d.mr->lkey, d.address(0), 5);
  x->wr_id = 2;
  char second[] = "second";
  ibv_wr_rdma_write(x, d.mr->rkey, d.address(5000));
  ibv_data_buf parts[] = {{second, 3}, {second + 3, 3}};
  ibv_wr_set_inline_data_list(x, 2, parts);
  CHECK(ibv_poll_cq(d.cq, 1, &wc) == 0);  // nothing is posted yet
  REQUIRE(ibv_wr_complete(x) == 0);
  auto done = poll_n(d.cq, 2);
  CHECK(done[0].wr_id == 1);
  CHECK(done[1].wr_id == 2);
  CHECK(memcmp(d.memory.data() + 4096, "first", 5) == 0);
  CHECK(memcmp(d.memory.data() + 5000, "second", 6) == 0);

  ibv_wr_start(x);
  ibv_wr_rdma_write(x, d.mr->rkey, d.address(4096));
  ibv_wr_set_sge(x, d.mr->lkey, d.address(0), 5);
  ibv_wr_abort(x);
  CHECK(ibv_poll_cq(d.cq, 1, &wc) == 0);

  SECTION("too many elements") {
    ibv_wr_start(x);
    ibv_wr_rdma_write(x, d.mr->rkey, d.address(4096));
    ibv_wr_set_sge(x, d.mr->lkey, d.address(0), 5);
    ibv_wr_rdma_write(x, d.mr->rkey, d.address(4096));
    std::vector<ibv_sge> many(100, d.sge(0, 1));
    ibv_wr_set_sge_list(x, many.size(), many.data());
    CHECK(ibv_wr_complete(x) == EINVAL);
  }
  SECTION("too much inline data") {
    ibv_wr_start(x);
    ibv_wr_rdma_write(x, d.mr->rkey, d.address(4096));
    ibv_wr_set_inline_data(x, d.memory.data(), 60000);
    CHECK(ibv_wr_complete(x) == EINVAL);
  }
  SECTION("queue full") {
    ibv_wr_start(x);
    for (int i = 0; i < 1000; ++i) {
      ibv_wr_rdma_write(x, d.mr->rkey, d.address(4096));
      ibv_wr_set_sge(x, d.mr->lkey, d.address(0), 5);
    }
    CHECK(ibv_wr_complete(x) == ENOMEM);
  }
  CHECK(ibv_poll_cq(d.cq, 1, &wc) == 0);

  ibv_wr_start(x);
  x->wr_id = 9;
  ibv_wr_rdma_write(x, d.mr->rkey, d.address(4096));
  ibv_wr_set_sge(x, d.mr->lkey, d.address(0), 5);
  REQUIRE(ibv_wr_complete(x) == 0);
  CHECK(poll_n(d.cq, 1)[0].wr_id == 9);
}

TEST_CASE("SRQ: shared receives, limit event, destruction waits for its acknowledgement", "[srq]") {
  Device d;
  ibv_srq_init_attr init{};
  init.attr = {16, 2, 0};
  ibv_srq* srq = ibv_create_srq(d.pd, &init);
  REQUIRE(srq != nullptr);
  CHECK(init.attr.max_wr >= 16);
  ibv_qp_init_attr attr = d.init_attr(IBV_QPT_RC);
  attr.srq = srq;
  {
    Pair p(d, attr);
    CHECK(ibv_destroy_srq(srq) == EBUSY);
    ibv_sge sge = d.sge(4096, 64);
    ibv_recv_wr r{}, *bad_recv = nullptr;
    r.wr_id = 11;
    r.sg_list = &sge;
    r.num_sge = 1;
    for (int i = 0; i < 4; ++i) REQUIRE(ibv_post_srq_recv(srq, &r, &bad_recv) == 0);
    CHECK(ibv_post_recv(p.a, &r, &bad_recv) == EINVAL);
    ibv_srq_attr limit{0, 0, 4};
    REQUIRE(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    ibv_srq_attr now{};
    REQUIRE(ibv_query_srq(srq, &now) == 0);
    CHECK(now.srq_limit == 4);

    ibv_sge out = d.sge(0, 8);
    ibv_send_wr wr = send_wr(&out, IBV_WR_SEND), *bad = nullptr;
    REQUIRE(ibv_post_send(p.a, &wr, &bad) == 0);
    poll_n(d.cq, 2);
    ibv_async_event event{};
    REQUIRE(ibv_get_async_event(d.ctx, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
    CHECK(event.element.srq == srq);
  }
  std::atomic<bool> acknowledged{false};
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    acknowledged = true;
    ibv_async_event event{};
    event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
    event.element.srq = srq;
    ibv_ack_async_event(&event);
  });
  CHECK(ibv_destroy_srq(srq) == 0);
  CHECK(acknowledged);
  other.join();
  pollfd fd{d.ctx->async_fd, POLLIN, 0};
  CHECK(poll(&fd, 1, 0) == 0);  // the events of destroyed QPs (LAST_WQE_REACHED) are gone with them
}

TEST_CASE("UD: address handles, and the reply's from the completion", "[ud]") {
  Device d;
  ibv_port_attr port;
  REQUIRE(ibv_query_port(d.ctx, 1, &port) == 0);
  for (int index = 0; index < port.gid_tbl_len; ++index) {
    CAPTURE(index);
    d.gid_index = index;
    Pair p(d, d.init_attr(IBV_QPT_UD));
    ibv_ah_attr to{};
    to.is_global = 1;
    to.grh.dgid = d.gid();
    to.grh.sgid_index = static_cast<std::uint8_t>(index);
    to.grh.hop_limit = 33;
    to.grh.traffic_class = 8;
    to.port_num = 1;
    ibv_ah* ah = ibv_create_ah(d.pd, &to);
    REQUIRE(ah != nullptr);
    post_recv(p.b, d.sge(4096, 1024));
    ibv_sge sge = d.sge(0, 16);
    ibv_send_wr wr = send_wr(&sge, IBV_WR_SEND), *bad = nullptr;
    wr.wr.ud = {ah, p.b->qp_num, 0x1234};
    REQUIRE(ibv_post_send(p.a, &wr, &bad) == 0);
    for (ibv_wc& wc : poll_n(d.cq, 2)) {
      CHECK(wc.status == IBV_WC_SUCCESS);
      if (wc.opcode != IBV_WC_RECV) continue;
      CHECK(wc.byte_len == 40 + 16);
      CHECK(wc.src_qp == p.a->qp_num);
      CHECK((wc.wc_flags & IBV_WC_GRH) != 0);
      auto* grh = reinterpret_cast<ibv_grh*>(d.memory.data() + 4096);
      ibv_ah_attr reply;
      REQUIRE(ibv_init_ah_from_wc(d.ctx, 1, &wc, grh, &reply) == 0);
      CHECK(memcmp(&reply.grh.dgid, &to.grh.dgid, 16) == 0);
      CHECK(reply.grh.sgid_index == index);
      CHECK(reply.grh.traffic_class == 8);
      ibv_ah* back = ibv_create_ah_from_wc(d.pd, &wc, grh, 1);
      REQUIRE(back != nullptr);
      CHECK(ibv_destroy_ah(back) == 0);
    }
    std::uint8_t mac[6];
    std::uint16_t vlan;
    CHECK(ibv_resolve_eth_l2_from_gid(d.ctx, &to, mac, &vlan) == 0);
    CHECK(ibv_destroy_ah(ah) == 0);
  }
}
