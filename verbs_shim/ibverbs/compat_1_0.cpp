// The symbols of libibverbs 1.0 (2006), whose structs differ from today's. No program built since imports them; they
// exist so that the library is a complete replacement, and fail cleanly: the device list is empty.
#include "verbs_shim/ibverbs/abi.h"

SOFTRNIC_ABI ibv_device** softrnic_compat_get_device_list(int* num_devices) {
  if (num_devices) *num_devices = 0;
  errno = EOPNOTSUPP;
  return nullptr;
}
SOFTRNIC_ABI void* softrnic_compat_null() {
  errno = EOPNOTSUPP;
  return nullptr;
}
SOFTRNIC_ABI int softrnic_compat_unsupported() {
  errno = EOPNOTSUPP;
  return EOPNOTSUPP;
}
SOFTRNIC_ABI int softrnic_compat_minus_one() {
  errno = EOPNOTSUPP;
  return -1;
}
// Registration of providers before the providers had versions.
SOFTRNIC_ABI void softrnic_compat_nothing() {}

#define AT_1_0(stub, name) asm(".symver " #stub ", " #name "@IBVERBS_1.0");
#define RETURNS_NULL(name) AT_1_0(softrnic_compat_null, name)
#define RETURNS_ERRNO(name) AT_1_0(softrnic_compat_unsupported, name)
#define RETURNS_MINUS_ONE(name) AT_1_0(softrnic_compat_minus_one, name)
#define RETURNS_NOTHING(name) AT_1_0(softrnic_compat_nothing, name)

AT_1_0(softrnic_compat_get_device_list, ibv_get_device_list)
RETURNS_NULL(ibv_get_device_name)
RETURNS_NULL(ibv_get_device_guid)
RETURNS_NULL(ibv_open_device)
RETURNS_NULL(ibv_alloc_pd)
RETURNS_NULL(ibv_reg_mr)
RETURNS_NULL(ibv_create_cq)
RETURNS_NULL(ibv_create_srq)
RETURNS_NULL(ibv_create_qp)
RETURNS_NULL(ibv_create_ah)
RETURNS_ERRNO(ibv_close_device)
RETURNS_ERRNO(ibv_query_device)
RETURNS_ERRNO(ibv_query_port)
RETURNS_ERRNO(ibv_dealloc_pd)
RETURNS_ERRNO(ibv_dereg_mr)
RETURNS_ERRNO(ibv_resize_cq)
RETURNS_ERRNO(ibv_destroy_cq)
RETURNS_ERRNO(ibv_modify_srq)
RETURNS_ERRNO(ibv_query_srq)
RETURNS_ERRNO(ibv_destroy_srq)
RETURNS_ERRNO(ibv_query_qp)
RETURNS_ERRNO(ibv_modify_qp)
RETURNS_ERRNO(ibv_destroy_qp)
RETURNS_ERRNO(ibv_destroy_ah)
RETURNS_ERRNO(ibv_attach_mcast)
RETURNS_ERRNO(ibv_detach_mcast)
RETURNS_MINUS_ONE(ibv_get_async_event)
RETURNS_MINUS_ONE(ibv_query_gid)
RETURNS_MINUS_ONE(ibv_query_pkey)
RETURNS_MINUS_ONE(ibv_get_cq_event)
RETURNS_NOTHING(ibv_free_device_list)
RETURNS_NOTHING(ibv_ack_async_event)
RETURNS_NOTHING(ibv_ack_cq_events)

asm(".symver softrnic_compat_nothing, ibv_register_driver@IBVERBS_1.1");
