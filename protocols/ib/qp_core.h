// What the halves of a QP share: attributes, state, completions and pending asynchronous events.
#pragma once

#include <bit>

#include "protocols/ib/qp.h"
#include "protocols/ib/recv_side.h"
#include "protocols/ib/send_side.h"

namespace softrnic::ib {

// Longest message (IBA C9-94).
inline constexpr std::uint32_t kMaxMessage = 1u << 31;

struct QpCore {
  explicit QpCore(const QpInit& i) : init(i), recv(init) {}
  QpCore(const QpCore&) = delete;
  QpCore& operator=(const QpCore&) = delete;

  const QpInit init;
  QpState state = QpState::reset;
  QpAttrs attrs;
  std::uint32_t mtu_shift = 10;  // attrs.path_mtu == 1 << mtu_shift
  QpCounters counters;
  SendSide send;
  RecvSide recv;
  std::uint32_t async_pending = 0;  // bit n: AsyncEvent n
  bool comm_est_raised = false;
  // ERR was entered by an error whose NAK is not handed out yet: responses up to it still go out, and
  // nothing of the error is visible to the application before (it might destroy the QP).
  bool nak_draining = false;
  bool last_wqe_raised = false;

  std::uint32_t mtu() const { return 1u << mtu_shift; }
  // Ignores what is not a power of two: the attribute is not set before RTR.
  void set_mtu(std::uint32_t bytes) {
    if (std::has_single_bit(bytes)) mtu_shift = static_cast<std::uint32_t>(std::countr_zero(bytes));
  }
  // Packets of a message or READ response; a zero-length one has one (IBA 9.7.2).
  std::uint32_t packets(std::uint32_t length) const {
    return length == 0 ? 1 : static_cast<std::uint32_t>((std::uint64_t{length} + mtu() - 1) >> mtu_shift);
  }

  bool receives() const {
    return state == QpState::rtr || state == QpState::rts || state == QpState::sqd || state == QpState::sqe;
  }
  bool sends() const { return state == QpState::rts || state == QpState::sqd; }

  void raise(AsyncEvent e) { async_pending |= 1u << static_cast<unsigned>(e); }

  // To ERR; the request at send.done() fails with `status` (IBA 10.3.1.6).
  void enter_error(WcStatus send_status = WcStatus::wr_flush_err) {
    if (state == QpState::err) return;
    state = QpState::err;
    attrs.sq_draining = false;
    send.begin_flush(send_status);
  }
  // UC and UD: to SQE, receiving goes on (IBA 10.3.1.5).
  void enter_send_error(WcStatus status) {
    state = QpState::sqe;
    attrs.sq_draining = false;
    send.begin_flush(status);
  }
};

}  // namespace softrnic::ib
