// What the tests of the verbs calls share: an open device, and connected pairs of queue pairs within the process.
#pragma once

#include <infiniband/verbs.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace abi {

inline ibv_context* open_first() {
  int n = 0;
  ibv_device** list = ibv_get_device_list(&n);
  REQUIRE(list != nullptr);
  REQUIRE(n > 0);
  ibv_context* ctx = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  REQUIRE(ctx != nullptr);
  return ctx;
}

// Polls until `n` completions came; fails the test after ten seconds.
inline std::vector<ibv_wc> poll_n(ibv_cq* cq, int n) {
  std::vector<ibv_wc> out;
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (static_cast<int>(out.size()) < n) {
    ibv_wc wc[8];
    int got = ibv_poll_cq(cq, 8, wc);
    REQUIRE(got >= 0);
    out.insert(out.end(), wc, wc + got);
    if (got == 0) REQUIRE(std::chrono::steady_clock::now() < end);
  }
  REQUIRE(static_cast<int>(out.size()) == n);
  return out;
}

// A device, a PD, a CQ and 64 KiB of registered memory.
struct Device {
  ibv_context* ctx;
  bool owns_context;
  ibv_pd* pd = ibv_alloc_pd(ctx);
  ibv_cq* cq = ibv_create_cq(ctx, 256, nullptr, nullptr, 0);
  std::vector<char> memory = std::vector<char>(65536);
  ibv_mr* mr = nullptr;
  int gid_index = 0;

  // `opened`: a context to use; null: one of its own.
  explicit Device(ibv_context* opened = nullptr)
      : ctx(opened ? opened : open_first()), owns_context(opened == nullptr) {
    REQUIRE(pd != nullptr);
    REQUIRE(cq != nullptr);
    mr = ibv_reg_mr(pd, memory.data(), memory.size(),
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
    REQUIRE(mr != nullptr);
  }
  ~Device() {
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0);
    if (owns_context) CHECK(ibv_close_device(ctx) == 0);
  }
  ibv_sge sge(std::size_t offset, std::uint32_t length) const {
    return {reinterpret_cast<std::uint64_t>(memory.data() + offset), length, mr->lkey};
  }
  std::uint64_t address(std::size_t offset) const { return reinterpret_cast<std::uint64_t>(memory.data() + offset); }
  ibv_gid gid() const {
    ibv_gid g;
    REQUIRE(ibv_query_gid(ctx, 1, gid_index, &g) == 0);
    return g;
  }
  ibv_qp_init_attr init_attr(ibv_qp_type type) const {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq;
    a.cap = {16, 16, 4, 4, 256};
    a.qp_type = type;
    return a;
  }
};

inline void to_init(ibv_qp* qp) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (qp->qp_type == IBV_QPT_UD) {
    a.qkey = 0x1234;
    mask |= IBV_QP_QKEY;
  } else {
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    mask |= IBV_QP_ACCESS_FLAGS;
  }
  REQUIRE(ibv_modify_qp(qp, &a, mask) == 0);
}

inline void to_rts(ibv_qp* qp, const Device& d, std::uint32_t dest) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = IBV_MTU_1024;
  a.dest_qp_num = dest;
  a.rq_psn = 100;
  a.max_dest_rd_atomic = 4;
  a.min_rnr_timer = 12;
  a.ah_attr.is_global = 1;
  a.ah_attr.grh.dgid = d.gid();
  a.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(d.gid_index);
  a.ah_attr.grh.hop_limit = 64;
  a.ah_attr.port_num = 1;
  int rtr = IBV_QP_STATE, rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (qp->qp_type != IBV_QPT_UD) rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (qp->qp_type == IBV_QPT_RC) {
    rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  REQUIRE(ibv_modify_qp(qp, &a, rtr) == 0);
  a = {};
  a.qp_state = IBV_QPS_RTS;
  a.sq_psn = 100;
  a.timeout = 14;
  a.retry_cnt = 7;
  a.rnr_retry = 7;
  a.max_rd_atomic = 4;
  REQUIRE(ibv_modify_qp(qp, &a, rts) == 0);
}

// Two QPs of one type connected to each other, `a` created by the caller.
struct Pair {
  ibv_qp *a, *b;
  Pair(Device& d, ibv_qp* first, ibv_qp* second) : a(first), b(second) {
    REQUIRE(a != nullptr);
    REQUIRE(b != nullptr);
    to_init(a);
    to_init(b);
    to_rts(a, d, b->qp_num);
    to_rts(b, d, a->qp_num);
  }
  Pair(Device& d, ibv_qp_init_attr attr) : Pair(d, make(d, attr), make(d, attr)) {}
  ~Pair() {
    CHECK(ibv_destroy_qp(a) == 0);
    CHECK(ibv_destroy_qp(b) == 0);
  }
  static ibv_qp* make(Device& d, ibv_qp_init_attr attr) { return ibv_create_qp(d.pd, &attr); }
};

inline ibv_send_wr send_wr(ibv_sge* sge, ibv_wr_opcode opcode, unsigned flags = IBV_SEND_SIGNALED) {
  ibv_send_wr wr{};
  wr.wr_id = 42;
  wr.sg_list = sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = flags;
  return wr;
}

inline void post_recv(ibv_qp* qp, ibv_sge sge, std::uint64_t wr_id = 7) {
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.wr_id = wr_id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  REQUIRE(ibv_post_recv(qp, &wr, &bad) == 0);
}

}  // namespace abi
