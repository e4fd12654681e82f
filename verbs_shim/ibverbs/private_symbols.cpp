// The interface between rdma-core's libibverbs and its providers, under the names and versions that providers'
// libraries import. Nothing here drives a provider, so every one of these fails cleanly: the functions that return a
// pointer give null, all others EOPNOTSUPP (those without a result do nothing, which is right for provider
// registration).
#include <cerrno>

#include "verbs_shim/ibverbs/abi.h"

// Node 34 is the default: it is the one in use longest. (rdma-core 23 to 56; 57, 59 and 64 are later ones.)
#define IN_34(stub, name) asm(".symver " #stub ", " #name "@@IBVERBS_PRIVATE_34");
#define IN_57(stub, name) asm(".symver " #stub ", " #name "@IBVERBS_PRIVATE_57");
#define IN_59(stub, name) asm(".symver " #stub ", " #name "@IBVERBS_PRIVATE_59");
#define IN_64(stub, name) asm(".symver " #stub ", " #name "@IBVERBS_PRIVATE_64");
#define IN_65(stub, name) asm(".symver " #stub ", " #name "@IBVERBS_PRIVATE_65");
#define SINCE_34(stub, name) IN_34(stub, name) IN_57(stub, name) SINCE_59(stub, name)
#define SINCE_59(stub, name) IN_59(stub, name) SINCE_64(stub, name)
#define SINCE_64(stub, name) IN_64(stub, name) SINCE_65(stub, name)
#define SINCE_65(stub, name) IN_65(stub, name)

SOFTRNIC_ABI int softrnic_private_unsupported() {
  errno = EOPNOTSUPP;
  return EOPNOTSUPP;
}
SOFTRNIC_ABI void* softrnic_private_null() {
  errno = EOPNOTSUPP;
  return nullptr;
}
// int ibv_read_ibdev_sysfs_file(...): a length, or -1.
SOFTRNIC_ABI int softrnic_private_minus_one() {
  errno = EOPNOTSUPP;
  return -1;
}
// A flag that providers set: whether destroying objects of a vanished device succeeds.
extern "C" {
extern __attribute__((visibility("default"))) bool softrnic_private_flag;
bool softrnic_private_flag = false;
}

SINCE_34(softrnic_private_flag, verbs_allow_disassociate_destroy)
SINCE_34(softrnic_private_minus_one, ibv_read_ibdev_sysfs_file)

#define NULL_34(name) SINCE_34(softrnic_private_null, name)
NULL_34(_verbs_init_and_alloc_context)
NULL_34(verbs_open_device)
SINCE_64(softrnic_private_null, ibv_dmabuf_heap_alloc)

IN_34(softrnic_private_unsupported, verbs_register_driver_34)
IN_57(softrnic_private_unsupported, verbs_register_driver_57)
IN_59(softrnic_private_unsupported, verbs_register_driver_59)
IN_64(softrnic_private_unsupported, verbs_register_driver_64)
IN_65(softrnic_private_unsupported, verbs_register_driver_65)

// Lists without separators:
// clang-format off
#define U34(name) SINCE_34(softrnic_private_unsupported, name)
U34(__ioctl_final_num_attrs) U34(__verbs_log) U34(execute_ioctl) U34(ibv_cmd_advise_mr) U34(ibv_cmd_alloc_dm)
U34(ibv_cmd_alloc_mw) U34(ibv_cmd_alloc_pd) U34(ibv_cmd_attach_mcast) U34(ibv_cmd_close_xrcd) U34(ibv_cmd_create_ah)
U34(ibv_cmd_create_counters) U34(ibv_cmd_create_cq) U34(ibv_cmd_create_cq_ex) U34(ibv_cmd_create_cq_ex2)
U34(ibv_cmd_create_flow) U34(ibv_cmd_create_flow_action_esp) U34(ibv_cmd_create_qp) U34(ibv_cmd_create_qp_ex)
U34(ibv_cmd_create_qp_ex2) U34(ibv_cmd_create_rwq_ind_table) U34(ibv_cmd_create_srq) U34(ibv_cmd_create_srq_ex)
U34(ibv_cmd_create_wq) U34(ibv_cmd_dealloc_mw) U34(ibv_cmd_dealloc_pd) U34(ibv_cmd_dereg_mr) U34(ibv_cmd_destroy_ah)
U34(ibv_cmd_destroy_counters) U34(ibv_cmd_destroy_cq) U34(ibv_cmd_destroy_flow) U34(ibv_cmd_destroy_flow_action)
U34(ibv_cmd_destroy_qp) U34(ibv_cmd_destroy_rwq_ind_table) U34(ibv_cmd_destroy_srq) U34(ibv_cmd_destroy_wq)
U34(ibv_cmd_detach_mcast) U34(ibv_cmd_free_dm) U34(ibv_cmd_get_context) U34(ibv_cmd_modify_cq)
U34(ibv_cmd_modify_flow_action_esp) U34(ibv_cmd_modify_qp) U34(ibv_cmd_modify_qp_ex) U34(ibv_cmd_modify_srq)
U34(ibv_cmd_modify_wq) U34(ibv_cmd_open_qp) U34(ibv_cmd_open_xrcd) U34(ibv_cmd_poll_cq) U34(ibv_cmd_post_recv)
U34(ibv_cmd_post_send) U34(ibv_cmd_post_srq_recv) U34(ibv_cmd_query_context) U34(ibv_cmd_query_device_any)
U34(ibv_cmd_query_mr) U34(ibv_cmd_query_port) U34(ibv_cmd_query_qp) U34(ibv_cmd_query_srq) U34(ibv_cmd_read_counters)
U34(ibv_cmd_reg_dm_mr) U34(ibv_cmd_reg_dmabuf_mr) U34(ibv_cmd_reg_mr) U34(ibv_cmd_req_notify_cq) U34(ibv_cmd_rereg_mr)
U34(ibv_cmd_resize_cq) U34(verbs_init_cq) U34(verbs_set_ops) U34(verbs_uninit_context)

#define U59(name) SINCE_59(softrnic_private_unsupported, name)
U59(ibv_cmd_alloc_dmah) U59(ibv_cmd_export_dmabuf_fd) U59(ibv_cmd_free_dmah) U59(ibv_cmd_query_port_speed)
U59(ibv_cmd_reg_mr_ex)

#define U64(name) SINCE_64(softrnic_private_unsupported, name)
U64(ibv_dmabuf_heap_cc_shared_init) U64(ibv_dmabuf_heap_destroy) U64(ibv_dmabuf_heap_free)

#define U65(name) SINCE_65(softrnic_private_unsupported, name)
U65(ibv_cmd_create_comp_cntr) U65(ibv_cmd_destroy_comp_cntr) U65(ibv_cmd_inc_comp_cntr) U65(ibv_cmd_inc_err_comp_cntr)
U65(ibv_cmd_qp_attach_comp_cntr) U65(ibv_cmd_query_comp_cntr_caps) U65(ibv_cmd_read_comp_cntr)
U65(ibv_cmd_read_err_comp_cntr) U65(ibv_cmd_set_comp_cntr) U65(ibv_cmd_set_err_comp_cntr)
    // clang-format on
