// Work requests, completions and asynchronous events as values. The numbers are those of the verbs
// interface (infiniband/verbs.h), so the ABI layer converts by a cast; a test compares them.
#pragma once

#include "protocols/common/types.h"

namespace softrnic {

// One scatter/gather element. Same layout as struct ibv_sge.
struct Sge {
  std::uint64_t addr;    // bytes; process virtual address, or offset for a zero-based region
  std::uint32_t length;  // bytes; 0 is an empty element
  std::uint32_t lkey;
};
static_assert(sizeof(Sge) == 16);

enum class WrOpcode : std::uint8_t {
  rdma_write = 0,
  rdma_write_with_imm = 1,
  send = 2,
  send_with_imm = 3,
  rdma_read = 4,
  atomic_cmp_and_swp = 5,
  atomic_fetch_and_add = 6,
  local_inv = 7,
  bind_mw = 8,
  send_with_inv = 9,
};

// Flags of a send work request (enum ibv_send_flags).
inline constexpr std::uint8_t kSendFence = 1;
inline constexpr std::uint8_t kSendSignaled = 2;
inline constexpr std::uint8_t kSendSolicited = 4;
inline constexpr std::uint8_t kSendInline = 8;

// Access flags of memory regions, windows and queue pairs (enum ibv_access_flags).
inline constexpr std::uint32_t kAccessLocalWrite = 1;
inline constexpr std::uint32_t kAccessRemoteWrite = 2;
inline constexpr std::uint32_t kAccessRemoteRead = 4;
inline constexpr std::uint32_t kAccessRemoteAtomic = 8;
inline constexpr std::uint32_t kAccessMwBind = 16;
inline constexpr std::uint32_t kAccessZeroBased = 32;

enum class WcStatus : std::uint8_t {
  success = 0,
  loc_len_err = 1,
  loc_qp_op_err = 2,
  loc_eec_op_err = 3,
  loc_prot_err = 4,
  wr_flush_err = 5,
  mw_bind_err = 6,
  bad_resp_err = 7,
  loc_access_err = 8,
  rem_inv_req_err = 9,
  rem_access_err = 10,
  rem_op_err = 11,
  retry_exc_err = 12,
  rnr_retry_exc_err = 13,
  fatal_err = 19,
  general_err = 21,
};

enum class WcOpcode : std::uint8_t {
  send = 0,
  rdma_write = 1,
  rdma_read = 2,
  comp_swap = 3,
  fetch_add = 4,
  bind_mw = 5,
  local_inv = 6,
  recv = 128,
  recv_rdma_with_imm = 129,
};

// enum ibv_wc_flags.
inline constexpr std::uint8_t kWcGrh = 1;
inline constexpr std::uint8_t kWcWithImm = 2;
inline constexpr std::uint8_t kWcWithInv = 8;

// A completion. On an error only wr_id, status, qp_num and vendor_err are meaningful (IBA 11.4.2.1).
struct Completion {
  std::uint64_t wr_id = 0;
  WcStatus status = WcStatus::success;
  WcOpcode opcode = WcOpcode::send;
  std::uint8_t wc_flags = 0;
  std::uint8_t sl = 0;
  std::uint32_t vendor_err = 0;
  std::uint32_t byte_len = 0;
  std::uint32_t imm_or_rkey = 0;  // immediate data as on the wire (big-endian), or the invalidated R_Key
  std::uint32_t qp_num = 0;
  std::uint32_t src_qp = 0;  // UD receive completions
  std::uint16_t pkey_index = 0;
  std::uint16_t slid = 0;
  bool solicited = false;  // arms for solicited_only: SE bit, or an error (IBA 11.4.2.2)
};

// enum ibv_event_type.
enum class AsyncEvent : std::uint8_t {
  cq_err = 0,
  qp_fatal = 1,
  qp_req_err = 2,
  qp_access_err = 3,
  comm_est = 4,
  sq_drained = 5,
  path_mig = 6,
  path_mig_err = 7,
  device_fatal = 8,
  port_active = 9,
  port_err = 10,
  lid_change = 11,
  pkey_change = 12,
  sm_change = 13,
  srq_err = 14,
  srq_limit_reached = 15,
  qp_last_wqe_reached = 16,
  client_reregister = 17,
  gid_change = 18,
  wq_fatal = 19,
};

}  // namespace softrnic
