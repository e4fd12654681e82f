// A queue pair of the InfiniBand transports RC, UC or UD: requester, responder and completer behind the
// five calls of a sans-IO protocol object. Not thread-safe: the caller holds the engine's progress
// lock, except where a function says otherwise.
//
//   on_packet(now, packet)      a packet for this QP arrived
//   poll_transmit(now, out)     the next packet to send, ACKs and READ responses first
//   next_timeout()              when on_timeout wants to be called
//   on_timeout(now)             retransmission and RNR timers
//   poll_event(out)             completions and asynchronous events, in order
//
// on_packet never needs output space: what it owes (ACK, NAK, READ response) is bounded state of the
// QP that poll_transmit takes from.
#pragma once

#include <cstdint>
#include <memory>

#include "protocols/common/memory_port.h"
#include "protocols/common/work.h"
#include "protocols/common/work_queue.h"
#include "protocols/ib/packet.h"
#include "protocols/ib/qp_state.h"

namespace softrnic::ib {

// What does not change in a QP's life.
struct QpInit {
  QpType type = QpType::rc;
  std::uint32_t qpn = 0;
  PdHandle pd = 0;
  SendQueue* sq = nullptr;
  RecvQueue* rq = nullptr;  // own receive queue or the SRQ's
  bool has_srq = false;
  bool sq_sig_all = false;
  std::uint32_t max_inline = 0;
};

// The transport's share of the QP attributes (struct ibv_qp_attr); values, no masks.
struct QpAttrs {
  std::uint32_t dest_qpn = 0;
  std::uint32_t sq_psn = 0;
  std::uint32_t rq_psn = 0;
  std::uint32_t path_mtu = 1024;  // bytes: 256, 512, 1024, 2048, 4096. UD: the port's active MTU
  std::uint32_t qkey = 0;
  std::uint32_t access_flags = 0;  // kAccessRemote*: operations the responder accepts
  std::uint16_t pkey = 0xFFFF;
  std::uint8_t timeout = 0;             // 4.096 us * 2^timeout; 0 = no timer (IBA 11.2.5.2); at most 31
  std::uint8_t retry_cnt = 0;           // 0..7, 7 means seven
  std::uint8_t rnr_retry = 0;           // 0..7, 7 means for ever (IBA 9.7.5.2.8)
  std::uint8_t min_rnr_timer = 0;       // 0..31, code of IBA table 45
  std::uint8_t max_rd_atomic = 0;       // as requester
  std::uint8_t max_dest_rd_atomic = 0;  // as responder
  bool sq_draining = false;             // query: SQD entered, started requests still open
};

// One thing that happened, taken by poll_event. Completions of one queue come in order.
struct QpEvent {
  enum class Kind : std::uint8_t {
    send_completion,  // `wc`; all send slots before `sq_free_to` are free once it is polled
    recv_completion,  // `wc`; one receive slot is free once it is polled
    async,            // `async`
  };
  Kind kind = Kind::async;
  AsyncEvent async = AsyncEvent::qp_fatal;
  std::uint32_t sq_free_to = 0;
  Completion wc;
};

// Counters, named as in Linux's hw_counters where that has the notion.
struct QpCounters {
  std::uint64_t sent_pkts = 0, rcvd_pkts = 0, sent_bytes = 0, rcvd_bytes = 0;
  std::uint64_t duplicate_request = 0, out_of_seq_request = 0, rcvd_rnr_err = 0, send_rnr_err = 0, rcvd_seq_err = 0;
  std::uint64_t retry_exceeded_err = 0, retry_rnr_exceeded_err = 0,
                completer_retry_err = 0;  // last: retransmissions started
  std::uint64_t local_ack_timeout_err = 0;
  std::uint64_t drops = 0;  // packets this QP discarded silently
};

class Qp {
 public:
  explicit Qp(const QpInit& init);
  ~Qp();
  Qp(const Qp&) = delete;
  Qp& operator=(const Qp&) = delete;

  const QpInit& init() const;
  QpState state() const;
  // Current attributes; the requester and responder read them through this.
  const QpAttrs& attrs() const;
  const QpCounters& counters() const;

  // Applies a transition already checked by transition_allowed(). `attrs` is the full new set (old
  // values with the modified ones replaced). to == state() changes attributes only.
  //   ->RTR  responder starts at attrs.rq_psn;   ->RTS from RTR  requester starts at attrs.sq_psn
  //   ->ERR  every posted and later request is flushed through poll_event
  //   ->SQD  nothing new is started; `notify_sqd` asks for a SQ_DRAINED event when open ones are done
  //   ->RESET empties everything without completions (also resets the own queues, not an SRQ)
  void modify(Nanos now, QpState to, const QpAttrs& attrs, bool notify_sqd = false);

  // A packet whose BTH names this QP. Wrong opcode class, short headers, bad P_Key or Q_Key: dropped
  // and counted. In a state that does not receive: dropped.
  void on_packet(Nanos now, MemoryPort& mem, const RxPacket& packet);

  // Fills `out` with the next packet, or returns false when there is nothing to send now. A returned
  // packet counts as sent: make sure of room first. Requests of a local kind (bind, invalidate) are
  // executed on the way. UD and UC requests complete when their last packet was returned here.
  bool poll_transmit(Nanos now, MemoryPort& mem, TxPacket* out);

  // True when poll_transmit would have something to do now (a cheap test for the scheduler; may say
  // true and then have nothing).
  bool wants_transmit(Nanos now) const;

  // The payload of the packet just returned by poll_transmit could not be read (MemStatus::fault):
  // treats it as a failed L_Key check (requester), or as a remote operational error (READ response).
  void on_gather_fault(Nanos now);

  // Deadline of the earliest timer, kNever when none runs.
  Nanos next_timeout() const;
  // Call when now >= next_timeout(). The engine may postpone it while packets of this QP still wait in
  // a channel (the wire begins at the consumer): postpone_timeout() then restarts the running
  // acknowledgement timer from `now` and leaves an RNR wait alone.
  void on_timeout(Nanos now);
  void postpone_timeout(Nanos now);

  // The next completion or asynchronous event; false when there is none. In ERR it also flushes what
  // was posted since: call it after every post to a QP in ERR.
  bool poll_event(QpEvent* out);

  // The engine found an error that is fatal for this QP (its CQ overflowed): to ERR with `event`.
  void fail(Nanos now, AsyncEvent event);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace softrnic::ib
