// The engine's numbers are those of the verbs ABI: conversions are casts.
#include "protocols/common/work.h"
#include "protocols/ib/qp_state.h"
#include "verbs_shim/ibverbs/abi.h"

namespace softrnic {

template <class A, class B>
constexpr bool same(A a, B b) {
  return static_cast<unsigned long>(a) == static_cast<unsigned long>(b);
}

static_assert(offsetof(Sge, addr) == offsetof(ibv_sge, addr) && offsetof(Sge, length) == offsetof(ibv_sge, length) &&
              offsetof(Sge, lkey) == offsetof(ibv_sge, lkey) && sizeof(Sge) == sizeof(ibv_sge));

static_assert(same(WrOpcode::rdma_write, IBV_WR_RDMA_WRITE));
static_assert(same(WrOpcode::rdma_write_with_imm, IBV_WR_RDMA_WRITE_WITH_IMM));
static_assert(same(WrOpcode::send, IBV_WR_SEND));
static_assert(same(WrOpcode::send_with_imm, IBV_WR_SEND_WITH_IMM));
static_assert(same(WrOpcode::rdma_read, IBV_WR_RDMA_READ));
static_assert(same(WrOpcode::atomic_cmp_and_swp, IBV_WR_ATOMIC_CMP_AND_SWP));
static_assert(same(WrOpcode::atomic_fetch_and_add, IBV_WR_ATOMIC_FETCH_AND_ADD));
static_assert(same(WrOpcode::local_inv, IBV_WR_LOCAL_INV));
static_assert(same(WrOpcode::bind_mw, IBV_WR_BIND_MW));
static_assert(same(WrOpcode::send_with_inv, IBV_WR_SEND_WITH_INV));

static_assert(same(kSendFence, IBV_SEND_FENCE) && same(kSendSignaled, IBV_SEND_SIGNALED) &&
              same(kSendSolicited, IBV_SEND_SOLICITED) && same(kSendInline, IBV_SEND_INLINE));

static_assert(same(kAccessLocalWrite, IBV_ACCESS_LOCAL_WRITE) && same(kAccessRemoteWrite, IBV_ACCESS_REMOTE_WRITE) &&
              same(kAccessRemoteRead, IBV_ACCESS_REMOTE_READ) && same(kAccessRemoteAtomic, IBV_ACCESS_REMOTE_ATOMIC) &&
              same(kAccessMwBind, IBV_ACCESS_MW_BIND) && same(kAccessZeroBased, IBV_ACCESS_ZERO_BASED));

static_assert(same(WcStatus::success, IBV_WC_SUCCESS) && same(WcStatus::loc_len_err, IBV_WC_LOC_LEN_ERR) &&
              same(WcStatus::loc_qp_op_err, IBV_WC_LOC_QP_OP_ERR) &&
              same(WcStatus::loc_eec_op_err, IBV_WC_LOC_EEC_OP_ERR) &&
              same(WcStatus::loc_prot_err, IBV_WC_LOC_PROT_ERR) && same(WcStatus::wr_flush_err, IBV_WC_WR_FLUSH_ERR) &&
              same(WcStatus::mw_bind_err, IBV_WC_MW_BIND_ERR) && same(WcStatus::bad_resp_err, IBV_WC_BAD_RESP_ERR) &&
              same(WcStatus::loc_access_err, IBV_WC_LOC_ACCESS_ERR) &&
              same(WcStatus::rem_inv_req_err, IBV_WC_REM_INV_REQ_ERR) &&
              same(WcStatus::rem_access_err, IBV_WC_REM_ACCESS_ERR) && same(WcStatus::rem_op_err, IBV_WC_REM_OP_ERR) &&
              same(WcStatus::retry_exc_err, IBV_WC_RETRY_EXC_ERR) &&
              same(WcStatus::rnr_retry_exc_err, IBV_WC_RNR_RETRY_EXC_ERR) &&
              same(WcStatus::fatal_err, IBV_WC_FATAL_ERR) && same(WcStatus::general_err, IBV_WC_GENERAL_ERR));

static_assert(same(WcOpcode::send, IBV_WC_SEND) && same(WcOpcode::rdma_write, IBV_WC_RDMA_WRITE) &&
              same(WcOpcode::rdma_read, IBV_WC_RDMA_READ) && same(WcOpcode::comp_swap, IBV_WC_COMP_SWAP) &&
              same(WcOpcode::fetch_add, IBV_WC_FETCH_ADD) && same(WcOpcode::bind_mw, IBV_WC_BIND_MW) &&
              same(WcOpcode::local_inv, IBV_WC_LOCAL_INV) && same(WcOpcode::recv, IBV_WC_RECV) &&
              same(WcOpcode::recv_rdma_with_imm, IBV_WC_RECV_RDMA_WITH_IMM));

static_assert(same(kWcGrh, IBV_WC_GRH) && same(kWcWithImm, IBV_WC_WITH_IMM) && same(kWcWithInv, IBV_WC_WITH_INV));

static_assert(same(AsyncEvent::cq_err, IBV_EVENT_CQ_ERR) && same(AsyncEvent::qp_fatal, IBV_EVENT_QP_FATAL) &&
              same(AsyncEvent::qp_req_err, IBV_EVENT_QP_REQ_ERR) &&
              same(AsyncEvent::qp_access_err, IBV_EVENT_QP_ACCESS_ERR) &&
              same(AsyncEvent::comm_est, IBV_EVENT_COMM_EST) && same(AsyncEvent::sq_drained, IBV_EVENT_SQ_DRAINED) &&
              same(AsyncEvent::device_fatal, IBV_EVENT_DEVICE_FATAL) &&
              same(AsyncEvent::port_active, IBV_EVENT_PORT_ACTIVE) && same(AsyncEvent::port_err, IBV_EVENT_PORT_ERR) &&
              same(AsyncEvent::srq_err, IBV_EVENT_SRQ_ERR) &&
              same(AsyncEvent::srq_limit_reached, IBV_EVENT_SRQ_LIMIT_REACHED) &&
              same(AsyncEvent::qp_last_wqe_reached, IBV_EVENT_QP_LAST_WQE_REACHED) &&
              same(AsyncEvent::gid_change, IBV_EVENT_GID_CHANGE) && same(AsyncEvent::wq_fatal, IBV_EVENT_WQ_FATAL));

static_assert(same(ib::QpType::rc, IBV_QPT_RC) && same(ib::QpType::uc, IBV_QPT_UC) && same(ib::QpType::ud, IBV_QPT_UD));
static_assert(same(ib::QpState::reset, IBV_QPS_RESET) && same(ib::QpState::init, IBV_QPS_INIT) &&
              same(ib::QpState::rtr, IBV_QPS_RTR) && same(ib::QpState::rts, IBV_QPS_RTS) &&
              same(ib::QpState::sqd, IBV_QPS_SQD) && same(ib::QpState::sqe, IBV_QPS_SQE) &&
              same(ib::QpState::err, IBV_QPS_ERR));

static_assert(same(ib::kAttrState, IBV_QP_STATE) && same(ib::kAttrCurState, IBV_QP_CUR_STATE) &&
              same(ib::kAttrEnSqdAsyncNotify, IBV_QP_EN_SQD_ASYNC_NOTIFY) &&
              same(ib::kAttrAccessFlags, IBV_QP_ACCESS_FLAGS) && same(ib::kAttrPkeyIndex, IBV_QP_PKEY_INDEX) &&
              same(ib::kAttrPort, IBV_QP_PORT) && same(ib::kAttrQkey, IBV_QP_QKEY) && same(ib::kAttrAv, IBV_QP_AV) &&
              same(ib::kAttrPathMtu, IBV_QP_PATH_MTU) && same(ib::kAttrTimeout, IBV_QP_TIMEOUT) &&
              same(ib::kAttrRetryCnt, IBV_QP_RETRY_CNT) && same(ib::kAttrRnrRetry, IBV_QP_RNR_RETRY) &&
              same(ib::kAttrRqPsn, IBV_QP_RQ_PSN) && same(ib::kAttrMaxQpRdAtomic, IBV_QP_MAX_QP_RD_ATOMIC) &&
              same(ib::kAttrAltPath, IBV_QP_ALT_PATH) && same(ib::kAttrMinRnrTimer, IBV_QP_MIN_RNR_TIMER) &&
              same(ib::kAttrSqPsn, IBV_QP_SQ_PSN) && same(ib::kAttrMaxDestRdAtomic, IBV_QP_MAX_DEST_RD_ATOMIC) &&
              same(ib::kAttrPathMigState, IBV_QP_PATH_MIG_STATE) && same(ib::kAttrCap, IBV_QP_CAP) &&
              same(ib::kAttrDestQpn, IBV_QP_DEST_QPN) && same(ib::kAttrRateLimit, IBV_QP_RATE_LIMIT));

}  // namespace softrnic
