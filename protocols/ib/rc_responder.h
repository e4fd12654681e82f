// The responder half of an RC QP (IBA 9.7.3, 9.7.4, 9.7.5.1). What it owes the requester is bounded
// state that poll_transmit takes from, in PSN order: responses of READs and atomics, then one
// acknowledgement for everything executed, then a NAK.
#pragma once

#include <memory>

#include "protocols/ib/opcode.h"
#include "protocols/ib/qp_core.h"
#include "protocols/wire/eths.h"

namespace softrnic::ib {

class RcResponder {
 public:
  explicit RcResponder(QpCore& core) : core_(core) {}

  // INIT -> RTR: expects attrs.rq_psn, has attrs.max_dest_rd_atomic resources.
  void start();
  // attrs.max_dest_rd_atomic may have changed.
  void resize();
  void reset();

  void on_request(Nanos now, MemoryPort& mem, const OpcodeInfo& info, const RxPacket& packet,
                  std::uint32_t payload_len);
  bool poll_transmit(MemoryPort& mem, TxPacket* out);
  bool owes() const { return (pending_ != 0 || ack_owed_ || nak_ != 0) && (core_.receives() || core_.nak_draining); }
  // The packet just handed out could not be read. False when it was none of the responder's.
  bool on_gather_fault();

 private:
  enum class Message : std::uint8_t { none, send, write };

  // A READ or atomic request, kept so that a duplicate can be answered again (IBA 9.7.4.4.1).
  struct Resource {
    std::uint32_t first_psn = 0, last_psn = 0;
    std::uint32_t rkey = 0;
    std::uint32_t length = 0;
    std::uint64_t va = 0;
    std::uint64_t original = 0;  // atomic: the value before the operation
    std::uint32_t msn = 0;       // after the request
    std::uint8_t op = 0;         // Op of the request
    bool pending = false;        // a response is to be sent, from tx_* on
    bool answered = false;       // the whole response has been sent once
    bool tx_first = false;       // the next packet begins the response
    std::uint32_t tx_psn = 0;
    std::uint32_t tx_left = 0;
    std::uint64_t tx_va = 0;
  };

  // A request in sequence, taken apart.
  struct Request {
    const OpcodeInfo& info;
    const std::uint8_t* bytes;
    const std::uint8_t* payload;
    std::uint32_t payload_len;
    std::uint32_t psn;
    std::uint8_t opcode;
    bool ack_req;
    bool solicited;
  };

  void execute(MemoryPort& mem, const Request& r);
  bool sequence_ok(const OpcodeInfo& info) const;
  bool length_ok(const Request& r) const;
  void on_send(MemoryPort& mem, const Request& r);
  void on_write(MemoryPort& mem, const Request& r);
  bool place_write(MemoryPort& mem, const Request& r);
  void on_read(MemoryPort& mem, const Request& r);
  void on_atomic(MemoryPort& mem, const Request& r);
  void complete_recv(const Request& r, WcOpcode opcode, std::uint32_t byte_len);
  void accept(const Request& r, std::uint32_t packets);

  void on_duplicate(const OpcodeInfo& info, const std::uint8_t* bytes, std::uint32_t psn);
  bool prepare_replay(Resource& res, const OpcodeInfo& info, const std::uint8_t* bytes, std::uint32_t psn);
  static void begin_read(Resource& res, std::uint32_t psn, const wire::Reth& reth);
  bool find_resource(std::uint32_t psn, std::uint32_t* index);
  Resource* new_resource();
  void set_pending(std::uint32_t index);

  void rnr();
  // Ends the QP: NAK `syndrome` for `psn`. The receive request in progress completes with
  // `recv_status`; when there is none, `event` is raised.
  void fatal(std::uint8_t syndrome, std::uint32_t psn, WcStatus recv_status, AsyncEvent event);

  bool send_response(MemoryPort& mem, TxPacket* out);
  bool send_read_response(MemoryPort& mem, Resource& res, TxPacket* out);
  void send_atomic_ack(Resource& res, TxPacket* out);
  void send_ack(std::uint8_t syndrome, std::uint32_t psn, TxPacket* out);
  std::uint8_t credits() const;
  Resource& resource(std::uint32_t index) { return resources_[index & resource_mask_]; }

  QpCore& core_;
  std::uint32_t epsn_ = 0;  // expected PSN
  std::uint32_t msn_ = 0;   // messages completed, 24 bits
  Message message_ = Message::none;
  // RDMA WRITE in progress.
  std::uint32_t write_rkey_ = 0, write_left_ = 0, write_total_ = 0;
  std::uint64_t write_va_ = 0;
  // A NAK or RNR NAK for epsn_ was made; later packets are dropped until epsn_ arrives.
  bool nak_sent_ = false;
  // Owed.
  bool ack_owed_ = false;
  std::uint8_t nak_ = 0;  // syndrome of the NAK owed, 0: none
  std::uint32_t nak_psn_ = 0;
  AsyncEvent fatal_event_ = AsyncEvent::qp_fatal;
  bool fatal_event_due_ = false;
  // Ring of resources; counters run freely.
  std::unique_ptr<Resource[]> resources_;
  std::uint32_t resource_mask_ = 0;
  std::uint32_t resource_head_ = 0;  // requests accepted so far
  std::uint32_t tx_cursor_ = 0;      // no resource before it is pending
  std::uint32_t pending_ = 0;        // number of pending resources
  std::uint32_t last_response_psn_ = 0;
  bool last_was_response_ = false;
};

}  // namespace softrnic::ib
