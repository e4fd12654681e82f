// The requester half of an RC QP: segmentation, the window, retransmission, and what comes back
// (IBA 9.7.5, 9.7.7). PSNs are kept as 32-bit counters that run freely; the wire has their low 24 bits.
#pragma once

#include "protocols/common/psn.h"
#include "protocols/ib/opcode.h"
#include "protocols/ib/qp_core.h"

namespace softrnic::ib {

class RcRequester {
 public:
  // At most so many request packets are unacknowledged. IBA allows 2^23; this bounds what a go-back
  // repeats and what sits in the network's queues.
  static constexpr std::int32_t kWindow = 512;
  // AckReq is set on the last packet of every message and on every 16th packet of a long one, so that
  // the window moves. A power of two.
  static constexpr std::uint32_t kAckInterval = 16;

  explicit RcRequester(QpCore& core) : core_(core) {}

  // RTR -> RTS: the first request gets PSN attrs.sq_psn.
  void start();
  void reset();
  // Attributes or state changed: what was blocked may go now.
  void unblock() { blocked_ = false; }
  // RTS -> SQD. `notify`: raise SQ_DRAINED when every started request is complete (IBA 10.3.1.4).
  void drain(bool notify);

  void on_response(Nanos now, MemoryPort& mem, const OpcodeInfo& info, const RxPacket& packet,
                   std::uint32_t payload_len);
  bool poll_transmit(Nanos now, MemoryPort& mem, TxPacket* out);
  bool wants_transmit(Nanos now) const {
    if (!core_.sends()) return false;
    if (rnr_until_ != kNever && now < rnr_until_) return false;
    return !blocked_ && cur_ != core_.init.sq->tail();
  }
  Nanos next_timeout() const { return rnr_until_ < deadline_ ? rnr_until_ : deadline_; }
  void on_timeout(Nanos now);
  void postpone_timeout(Nanos now);
  void on_gather_fault() { local_error(last_sent_, WcStatus::loc_prot_err); }

 private:
  enum class Start : std::uint8_t { go, blocked, executed, failed };
  Start try_start(MemoryPort& mem, SendWqe& w);
  Start start_packets(SendWqe& w);
  Start run_local(MemoryPort& mem, const SendWqe& w);
  bool send_data(MemoryPort& mem, const SendWqe& w, TxPacket* out);
  void send_read(const SendWqe& w, TxPacket* out);
  void send_atomic(const SendWqe& w, TxPacket* out);
  void after_send(Nanos now, bool finished);
  std::int32_t in_flight() const { return static_cast<std::int32_t>(cur_psn_ - una_psn_) - read_extra_; }

  void on_ack(Nanos now, std::uint32_t psn, std::uint8_t syndrome);
  void on_nak(Nanos now, std::uint32_t psn, std::uint8_t syndrome);
  void on_rnr_nak(Nanos now, std::uint32_t psn, std::uint8_t code);
  void on_read_response(Nanos now, MemoryPort& mem, const OpcodeInfo& info, std::uint32_t psn, Bytes payload);
  void on_atomic_ack(Nanos now, MemoryPort& mem, std::uint32_t psn, std::uint64_t original);
  void update_credits(std::uint8_t syndrome, std::uint32_t msn);

  bool acknowledge_below(Nanos now, std::uint32_t psn);
  void progress(Nanos now, std::uint32_t una_psn);
  void complete_requests();
  WcStatus scatter(MemoryPort& mem, std::uint32_t offset, const std::uint8_t* src, std::uint32_t length);
  void retry_from_nak();
  void go_back();
  void local_error(std::uint32_t index, WcStatus status);
  void fail(WcStatus status);
  void check_drained();
  Nanos ack_timeout() const { return core_.attrs.timeout == 0 ? kNever : Nanos{4096} << (core_.attrs.timeout & 31); }
  SendWqe& oldest() { return core_.init.sq->at(core_.send.done()); }

  QpCore& core_;
  // Send queue indices: send.done() <= cur_ <= started_. Requests before started_ have had a
  // packet on the wire, or were executed.
  std::uint32_t cur_ = 0;
  std::uint32_t started_ = 0;
  // PSNs: una_psn_ <= cur_psn_ <= max_psn_.
  std::uint32_t una_psn_ = 0;  // oldest not acknowledged; in a READ the next response expected
  std::uint32_t cur_psn_ = 0;  // of the next packet
  std::uint32_t max_psn_ = 0;  // one past the highest ever used
  // PSNs in [una_psn_, cur_psn_) that stand for responses of READs beyond one each.
  std::int32_t read_extra_ = 0;
  std::uint32_t rd_outstanding_ = 0;  // READs and atomics started and not complete
  bool blocked_ = false;              // the next packet waits for something to come in
  bool nak_retry_ = false;            // a NAK started a retry that has made no progress yet
  bool stalled_ = false;              // the request at stall_index_ fails with stall_status_ in its turn
  WcStatus stall_status_ = WcStatus::success;
  std::uint32_t stall_index_ = 0;
  std::uint32_t last_sent_ = 0;  // index of the request whose packet was handed out last
  bool notify_drained_ = false;
  // End-to-end credits (IBA 9.7.7.2).
  bool unlimited_credits_ = false;
  std::uint32_t lsn_ = 0;  // 24 bits
  std::uint32_t ssn_ = 0;  // 24 bits; messages started
  // Retries.
  std::uint8_t retries_left_ = 0;
  std::uint8_t rnr_retries_left_ = 0;
  Nanos deadline_ = kNever;   // acknowledgement timer
  Nanos rnr_until_ = kNever;  // end of an RNR wait; kNever: none
};

}  // namespace softrnic::ib
