// Verbs that no device here has: exactly EOPNOTSUPP, in the form that each call tells errors. Those that verbs.h
// makes inline need nothing: their places in the context are null.
#include "verbs_shim/ibverbs/abi.h"

using softrnic::shim::made;
using softrnic::shim::status;

// Declared only by later headers than the one this is built with.
struct ibv_buf;
struct ibv_comp_cntr;
struct ibv_comp_cntr_caps;
struct ibv_comp_cntr_init_attr;
struct ibv_dmah;
struct ibv_dmah_init_attr;
struct ibv_mr_init_attr;
struct ibv_qp_attach_comp_cntr_attr;

namespace {
int minus_one() {
  errno = EOPNOTSUPP;
  return -1;
}
}  // namespace

// --- objects of another process ------------------------------------------------------------------------------------
SOFTRNIC_ABI ibv_context* ibv_import_device(int) { return made<ibv_context>(EOPNOTSUPP, nullptr); }
SOFTRNIC_ABI ibv_pd* ibv_import_pd(ibv_context*, uint32_t) { return made<ibv_pd>(EOPNOTSUPP, nullptr); }
SOFTRNIC_ABI void ibv_unimport_pd(ibv_pd*) {}
SOFTRNIC_ABI ibv_mr* ibv_import_mr(ibv_pd*, uint32_t) { return made<ibv_mr>(EOPNOTSUPP, nullptr); }
SOFTRNIC_ABI void ibv_unimport_mr(ibv_mr*) {}
SOFTRNIC_ABI ibv_dm* ibv_import_dm(ibv_context*, uint32_t) { return made<ibv_dm>(EOPNOTSUPP, nullptr); }
SOFTRNIC_ABI void ibv_unimport_dm(ibv_dm*) {}

// --- enhanced connection establishment: no options to offer --------------------------------------------------------
SOFTRNIC_ABI int ibv_set_ece(ibv_qp*, ibv_ece*) { return status(EOPNOTSUPP); }
SOFTRNIC_ABI int ibv_query_ece(ibv_qp*, ibv_ece*) { return status(EOPNOTSUPP); }

// --- DMA handles, buffers for confidential computing (1.15 to 1.17) ------------------------------------------------
SOFTRNIC_ABI ibv_dmah* ibv_alloc_dmah(ibv_context*, ibv_dmah_init_attr*) { return made<ibv_dmah>(EOPNOTSUPP, nullptr); }
SOFTRNIC_ABI int ibv_dealloc_dmah(ibv_dmah*) { return status(EOPNOTSUPP); }
SOFTRNIC_ABI ibv_mr* ibv_reg_mr_ex(ibv_pd*, ibv_mr_init_attr*) { return made<ibv_mr>(EOPNOTSUPP, nullptr); }
SOFTRNIC_ABI int ibv_dm_export_dmabuf_fd(ibv_dm*) { return minus_one(); }
SOFTRNIC_ABI void* ibv_alloc_buf(ibv_pd*, size_t, ibv_buf**) { return made<void>(EOPNOTSUPP, nullptr); }
SOFTRNIC_ABI void ibv_free_buf(ibv_buf*) {}
SOFTRNIC_ABI ibv_mr* ibv_reg_buf_mr(ibv_pd*, ibv_buf*, void*, size_t, int) { return made<ibv_mr>(EOPNOTSUPP, nullptr); }
SOFTRNIC_ABI int ibv_export_buf_dmabuf_fd(ibv_buf*) { return minus_one(); }

// --- completion counters (1.18)
// ----------------------------------------------------------------------------------------
SOFTRNIC_ABI int _ibv_query_comp_cntr_caps(ibv_context*, ibv_comp_cntr_caps*, size_t) { return status(EOPNOTSUPP); }
SOFTRNIC_ABI ibv_comp_cntr* ibv_create_comp_cntr(ibv_context*, ibv_comp_cntr_init_attr*) {
  return made<ibv_comp_cntr>(EOPNOTSUPP, nullptr);
}
SOFTRNIC_ABI int ibv_destroy_comp_cntr(ibv_comp_cntr*) { return status(EOPNOTSUPP); }
SOFTRNIC_ABI int ibv_set_comp_cntr(ibv_comp_cntr*, uint64_t) { return status(EOPNOTSUPP); }
SOFTRNIC_ABI int ibv_set_err_comp_cntr(ibv_comp_cntr*, uint64_t) { return status(EOPNOTSUPP); }
SOFTRNIC_ABI int ibv_inc_comp_cntr(ibv_comp_cntr*, uint64_t) { return status(EOPNOTSUPP); }
SOFTRNIC_ABI int ibv_inc_err_comp_cntr(ibv_comp_cntr*, uint64_t) { return status(EOPNOTSUPP); }
SOFTRNIC_ABI int ibv_read_comp_cntr(ibv_comp_cntr*, uint64_t*) { return status(EOPNOTSUPP); }
SOFTRNIC_ABI int ibv_read_err_comp_cntr(ibv_comp_cntr*, uint64_t*) { return status(EOPNOTSUPP); }
SOFTRNIC_ABI int ibv_qp_attach_comp_cntr(ibv_qp*, ibv_comp_cntr*, ibv_qp_attach_comp_cntr_attr*) {
  return status(EOPNOTSUPP);
}
