// Memory windows of both types.
#include "tests/abi/fixture.h"

using namespace abi;

namespace {

// A remote write of 8 bytes through `rkey`; the completion's status.
ibv_wc_status write_through(Device& d, ibv_qp* qp, std::uint32_t rkey, std::size_t offset) {
  ibv_sge sge = d.sge(0, 8);
  ibv_send_wr wr = send_wr(&sge, IBV_WR_RDMA_WRITE), *bad = nullptr;
  wr.wr.rdma = {d.address(offset), rkey};
  REQUIRE(ibv_post_send(qp, &wr, &bad) == 0);
  return poll_n(d.cq, 1)[0].status;
}

}  // namespace

TEST_CASE("type 1 windows: ibv_bind_mw changes the R_Key and opens the range", "[mw]") {
  Device d;
  Pair p(d, d.init_attr(IBV_QPT_RC));
  ibv_mw* mw = ibv_alloc_mw(d.pd, IBV_MW_TYPE_1);
  REQUIRE(mw != nullptr);
  std::uint32_t first = mw->rkey;
  ibv_mw_bind bind{};
  bind.wr_id = 5;
  bind.send_flags = IBV_SEND_SIGNALED;
  bind.bind_info = {d.mr, d.address(8192), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
  REQUIRE(ibv_bind_mw(p.b, mw, &bind) == 0);
  CHECK(mw->rkey != first);
  ibv_wc wc = poll_n(d.cq, 1)[0];
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_BIND_MW);
  CHECK(wc.wr_id == 5);
  CHECK(write_through(d, p.a, mw->rkey, 8192) == IBV_WC_SUCCESS);
  CHECK(ibv_dereg_mr(d.mr) == EBUSY);
  CHECK(write_through(d, p.a, mw->rkey, 4096) == IBV_WC_REM_ACCESS_ERR);
  CHECK(ibv_dealloc_mw(mw) == 0);
}

TEST_CASE("type 2 windows are bound by work requests and invalidated", "[mw]") {
  Device d;
  Pair p(d, d.init_attr(IBV_QPT_RC));
  ibv_mw* mw = ibv_alloc_mw(d.pd, IBV_MW_TYPE_2);
  REQUIRE(mw != nullptr);
  ibv_mw_bind bind{};
  CHECK(ibv_bind_mw(p.b, mw, &bind) == EINVAL);
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
  wr.bind_mw.bind_info = {d.mr, d.address(8192), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
  REQUIRE(ibv_post_send(p.b, &wr, &bad) == 0);
  CHECK(poll_n(d.cq, 1)[0].status == IBV_WC_SUCCESS);
  CHECK(write_through(d, p.a, wr.bind_mw.rkey, 8192) == IBV_WC_SUCCESS);

  ibv_send_wr inv{};
  inv.opcode = IBV_WR_LOCAL_INV;
  inv.send_flags = IBV_SEND_SIGNALED;
  inv.invalidate_rkey = wr.bind_mw.rkey;
  REQUIRE(ibv_post_send(p.b, &inv, &bad) == 0);
  ibv_wc wc = poll_n(d.cq, 1)[0];
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_LOCAL_INV);
  CHECK(write_through(d, p.a, wr.bind_mw.rkey, 8192) == IBV_WC_REM_ACCESS_ERR);
  CHECK(ibv_dealloc_mw(mw) == 0);
}
