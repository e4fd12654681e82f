// Devices, ports, GIDs, protection domains, memory regions; calls that are not supported.
#include "tests/abi/fixture.h"

#include <infiniband/verbs.h>
#include <unistd.h>

using namespace abi;

TEST_CASE("the device list names devices that open", "[device]") {
  int n = 0;
  ibv_device** list = ibv_get_device_list(&n);
  REQUIRE(list != nullptr);
  REQUIRE(n > 0);
  REQUIRE(list[n] == nullptr);
  for (int i = 0; i < n; ++i) {
    CHECK(std::string(ibv_get_device_name(list[i])) == list[i]->name);
    CHECK(ibv_get_device_guid(list[i]) != 0);
    CHECK(ibv_get_device_index(list[i]) >= 0);
    CHECK(std::string(list[i]->dev_name).rfind("uverbs", 0) == 0);
    CHECK(std::string(list[i]->ibdev_path).find(list[i]->name) != std::string::npos);
    ibv_context* ctx = ibv_open_device(list[i]);
    REQUIRE(ctx != nullptr);
    CHECK(ctx->device == list[i]);
    CHECK(ctx->num_comp_vectors >= 1);
    CHECK(ctx->cmd_fd >= 0);
    CHECK(ctx->async_fd >= 0);
    CHECK(ctx->cmd_fd != ctx->async_fd);
    CHECK(ibv_close_device(ctx) == 0);
  }
  // The same device is the same pointer in every list.
  ibv_device** again = ibv_get_device_list(nullptr);
  REQUIRE(again != nullptr);
  CHECK(again[0] == list[0]);
  ibv_free_device_list(again);
  ibv_free_device_list(list);
}

TEST_CASE("device attributes are plausible and extended ones respect the caller's size", "[device]") {
  ibv_context* ctx = open_first();
  ibv_device_attr a;
  REQUIRE(ibv_query_device(ctx, &a) == 0);
  CHECK(a.node_guid != 0);
  CHECK(a.sys_image_guid != 0);
  CHECK(a.vendor_id != 0);
  CHECK(a.vendor_id != 0xFFFFFF);
  CHECK(a.phys_port_cnt == 1);
  CHECK(a.max_qp > 0);
  CHECK(a.max_qp_wr > 0);
  CHECK(a.max_cqe > 0);
  CHECK(a.max_sge > 0);
  CHECK(a.fw_ver[0] != '\0');

  ibv_device_attr_ex ex;
  REQUIRE(ibv_query_device_ex(ctx, nullptr, &ex) == 0);
  CHECK(memcmp(&ex.orig_attr, &a, sizeof a) == 0);
  CHECK(ex.completion_timestamp_mask == UINT64_MAX);
  CHECK(ex.hca_core_clock == 1000000);
  ibv_query_device_ex_input input{1};
  CHECK(ibv_query_device_ex(ctx, &input, &ex) == EINVAL);

  // A program with the headers of rdma-core 1.2 passes a shorter struct.
  std::vector<char> small(sizeof ex, char(0x5A));
  std::size_t size = offsetof(ibv_device_attr_ex, hca_core_clock);
  REQUIRE(verbs_get_ctx(ctx)->query_device_ex(ctx, nullptr, reinterpret_cast<ibv_device_attr_ex*>(small.data()),
                                              size) == 0);
  CHECK(small[size] == char(0x5A));
  CHECK(ibv_close_device(ctx) == 0);
}

extern "C" int (*const query_port_symbol)(ibv_context*, std::uint8_t, _compat_ibv_port_attr*) = (ibv_query_port);

TEST_CASE("port attributes by the inline call and by the symbol", "[device]") {
  ibv_context* ctx = open_first();
  ibv_port_attr p;
  REQUIRE(ibv_query_port(ctx, 1, &p) == 0);
  CHECK(p.state == IBV_PORT_ACTIVE);
  CHECK(p.phys_state == 5);
  CHECK(p.active_mtu >= IBV_MTU_1024);
  CHECK(p.max_msg_sz >= 1u << 30);
  CHECK(p.gid_tbl_len > 0);
  CHECK(p.pkey_tbl_len == 1);
  CHECK(ibv_query_port(ctx, 2, &p) == EINVAL);
  CHECK(ibv_query_port(ctx, 0, &p) == EINVAL);

  ibv_port_attr old;
  memset(&old, 0x5A, sizeof old);
  REQUIRE(query_port_symbol(ctx, 1, reinterpret_cast<_compat_ibv_port_attr*>(&old)) == 0);
  CHECK(old.gid_tbl_len == p.gid_tbl_len);
  CHECK(old.port_cap_flags2 == 0x5A5A);  // not part of the old struct
  CHECK(ibv_close_device(ctx) == 0);
}

TEST_CASE("every GID of the table is usable and none is zero", "[device]") {
  ibv_context* ctx = open_first();
  ibv_port_attr p;
  REQUIRE(ibv_query_port(ctx, 1, &p) == 0);
  const ibv_gid zero{};
  for (int i = 0; i < p.gid_tbl_len; ++i) {
    ibv_gid g;
    REQUIRE(ibv_query_gid(ctx, 1, i, &g) == 0);
    CHECK(memcmp(&g, &zero, sizeof g) != 0);
    ibv_gid_entry e;
    REQUIRE(ibv_query_gid_ex(ctx, 1, static_cast<std::uint32_t>(i), &e, 0) == 0);
    CHECK(memcmp(&g, &e.gid, sizeof g) == 0);
    CHECK(e.gid_index == static_cast<std::uint32_t>(i));
    CHECK(e.port_num == 1);
  }
  ibv_gid g;
  errno = 0;
  CHECK(ibv_query_gid(ctx, 1, p.gid_tbl_len, &g) == -1);
  CHECK(errno == EINVAL);
  CHECK(ibv_query_gid(ctx, 1, -1, &g) == -1);
  CHECK(ibv_query_gid(ctx, 2, 0, &g) == -1);

  std::vector<ibv_gid_entry> table(static_cast<std::size_t>(p.gid_tbl_len) + 1);
  CHECK(ibv_query_gid_table(ctx, table.data(), table.size(), 0) == p.gid_tbl_len);
  CHECK(ibv_query_gid_table(ctx, table.data(), 0, 0) == -EINVAL);

  __be16 pkey = 0;
  CHECK(ibv_query_pkey(ctx, 1, 0, &pkey) == 0);
  CHECK(pkey == 0xFFFF);
  CHECK(ibv_query_pkey(ctx, 1, 1, &pkey) == -1);
  CHECK(ibv_get_pkey_index(ctx, 1, 0xFFFF) == 0);
  CHECK(ibv_get_pkey_index(ctx, 1, 0x1234) == -1);
  CHECK(ibv_close_device(ctx) == 0);
}

TEST_CASE("memory registration: flags as ibv_reg_mr(3) says", "[mr]") {
  ibv_context* ctx = open_first();
  ibv_pd* pd = ibv_alloc_pd(ctx);
  REQUIRE(pd != nullptr);
  std::vector<char> m(8192);

  ibv_mr* mr = ibv_reg_mr(pd, m.data(), m.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
  REQUIRE(mr != nullptr);
  CHECK(mr->addr == m.data());
  CHECK(mr->length == m.size());
  CHECK(mr->pd == pd);
  CHECK(mr->context == ctx);
  CHECK(ibv_dealloc_pd(pd) == EBUSY);

  errno = 0;
  CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, pd, m.data(), m.size(), 0) == IBV_REREG_MR_ERR_INPUT);
  CHECK(errno == EOPNOTSUPP);
  CHECK(ibv_dereg_mr(mr) == 0);

  unsigned all_optional = IBV_ACCESS_OPTIONAL_RANGE;
  mr = ibv_reg_mr_iova2(pd, m.data(), m.size(), 0x10000, all_optional);
  REQUIRE(mr != nullptr);
  CHECK(ibv_dereg_mr(mr) == 0);

  errno = 0;
  CHECK(ibv_reg_mr(pd, m.data(), m.size(), IBV_ACCESS_REMOTE_WRITE) == nullptr);
  CHECK(errno == EINVAL);
  errno = 0;
  CHECK(ibv_reg_mr(pd, m.data(), m.size(), 1 << 15) == nullptr);
  CHECK(errno == EINVAL);
  errno = 0;
  CHECK(ibv_reg_mr(pd, m.data(), m.size(), IBV_ACCESS_ON_DEMAND) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  errno = 0;
  CHECK(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0) == nullptr);
  CHECK(errno == EOPNOTSUPP);

  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  REQUIRE(mw != nullptr);
  CHECK(mw->type == IBV_MW_TYPE_2);
  CHECK(ibv_dealloc_mw(mw) == 0);
  CHECK(ibv_dealloc_pd(pd) == 0);
  CHECK(ibv_close_device(ctx) == 0);
}

#define UNSUPPORTED(call)       \
  do {                          \
    errno = 0;                  \
    CHECK((call) == nullptr);   \
    CHECK(errno == EOPNOTSUPP); \
  } while (0)

TEST_CASE("unsupported extended calls give exactly EOPNOTSUPP", "[unsupported]") {
  Device d;
  ibv_alloc_dm_attr dm{4096, 0, 0};
  UNSUPPORTED(ibv_alloc_dm(d.ctx, &dm));
  ibv_xrcd_init_attr xrcd{};
  UNSUPPORTED(ibv_open_xrcd(d.ctx, &xrcd));
  ibv_td_init_attr td{};
  UNSUPPORTED(ibv_alloc_td(d.ctx, &td));
  ibv_parent_domain_init_attr parent{};
  UNSUPPORTED(ibv_alloc_parent_domain(d.ctx, &parent));
  UNSUPPORTED(ibv_alloc_null_mr(d.pd));
  ibv_counters_init_attr counters{};
  UNSUPPORTED(ibv_create_counters(d.ctx, &counters));
  ibv_wq_init_attr wq{};
  UNSUPPORTED(ibv_create_wq(d.ctx, &wq));
  ibv_rwq_ind_table_init_attr table{};
  UNSUPPORTED(ibv_create_rwq_ind_table(d.ctx, &table));
  ibv_flow_action_esp_attr esp{};
  UNSUPPORTED(ibv_create_flow_action_esp(d.ctx, &esp));
  ibv_qp_open_attr open{};
  UNSUPPORTED(ibv_open_qp(d.ctx, &open));
  UNSUPPORTED(ibv_import_device(d.ctx->cmd_fd));
  UNSUPPORTED(ibv_import_pd(d.ctx, 0));
  UNSUPPORTED(ibv_import_mr(d.pd, 0));
  UNSUPPORTED(ibv_import_dm(d.ctx, 0));
  ibv_srq_init_attr_ex srq{};
  srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  srq.srq_type = IBV_SRQT_XRC;
  srq.pd = d.pd;
  UNSUPPORTED(ibv_create_srq_ex(d.ctx, &srq));
  ibv_cq_init_attr_ex cq{};
  cq.cqe = 1;
  cq.wc_flags = IBV_WC_EX_WITH_CVLAN;
  UNSUPPORTED(ibv_create_cq_ex(d.ctx, &cq));
  cq.wc_flags = 0;
  cq.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  cq.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  UNSUPPORTED(ibv_create_cq_ex(d.ctx, &cq));
  ibv_qp_init_attr raw = d.init_attr(IBV_QPT_RAW_PACKET);
  UNSUPPORTED(ibv_create_qp(d.pd, &raw));

  CHECK(ibv_advise_mr(d.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, nullptr, 0) == EOPNOTSUPP);
  ibv_modify_cq_attr moderate{};
  CHECK(ibv_modify_cq(d.cq, &moderate) == EOPNOTSUPP);

  ibv_qp_init_attr rc = d.init_attr(IBV_QPT_RC);
  ibv_qp* qp = ibv_create_qp(d.pd, &rc);
  REQUIRE(qp != nullptr);
  ibv_flow_attr flow{};
  UNSUPPORTED(ibv_create_flow(qp, &flow));
  ibv_qp_rate_limit_attr rate{};
  CHECK(ibv_modify_qp_rate_limit(qp, &rate) == EOPNOTSUPP);
  ibv_ece ece{1, 0, 0};
  CHECK(ibv_set_ece(qp, &ece) == EOPNOTSUPP);
  CHECK(ibv_query_ece(qp, &ece) == EOPNOTSUPP);
  CHECK(ibv_qp_to_qp_ex(qp) == nullptr);
  CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0) == 0);
  CHECK(ibv_destroy_qp(qp) == 0);
}

TEST_CASE("names and rates", "[helpers]") {
  CHECK(std::string(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR)) == "transport retry counter exceeded");
  CHECK(std::string(ibv_wc_status_str(static_cast<ibv_wc_status>(999))) == "unknown");
  CHECK(std::string(ibv_event_type_str(IBV_EVENT_GID_CHANGE)) == "GID table change");
  CHECK(std::string(ibv_node_type_str(IBV_NODE_CA)) == "InfiniBand channel adapter");
  CHECK(std::string(ibv_node_type_str(IBV_NODE_UNKNOWN)) == "unknown");
  CHECK(std::string(ibv_port_state_str(IBV_PORT_ACTIVE)) == "active");
  CHECK(ibv_rate_to_mult(IBV_RATE_10_GBPS) == 4);
  CHECK(ibv_rate_to_mult(IBV_RATE_100_GBPS) == -1);
  CHECK(mult_to_ibv_rate(4) == IBV_RATE_10_GBPS);
  CHECK(mult_to_ibv_rate(0) == IBV_RATE_MAX);
  CHECK(ibv_rate_to_mbps(IBV_RATE_100_GBPS) == 103125);
  CHECK(mbps_to_ibv_rate(103125) == IBV_RATE_100_GBPS);
  CHECK(ibv_fork_init() == 0);
  CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
}
