// Unreliable Connection (IBA 9.8.2): SEND and RDMA WRITE without acknowledgements. What is lost makes
// its message disappear; the next First or Only packet starts anew.
#pragma once

#include "protocols/ib/opcode.h"
#include "protocols/ib/qp_core.h"

namespace softrnic::ib {

class Uc {
 public:
  explicit Uc(QpCore& core) : core_(core) {}

  void start_receiving() { epsn_ = core_.attrs.rq_psn; }
  void start_sending() { psn_ = core_.attrs.sq_psn; }
  void drain(bool notify);
  void reset();

  void on_packet(MemoryPort& mem, const OpcodeInfo& info, const RxPacket& packet, std::uint32_t payload_len);
  bool poll_transmit(MemoryPort& mem, TxPacket* out);
  bool wants_transmit() const;
  void on_gather_fault();

 private:
  enum class Message : std::uint8_t { none, send, write };

  bool payload_ok(const OpcodeInfo& info, std::uint32_t payload_len, std::uint8_t pad) const;
  void on_send(MemoryPort& mem, const OpcodeInfo& info, const std::uint8_t* p, std::uint32_t payload_len);
  bool on_write(MemoryPort& mem, const OpcodeInfo& info, const std::uint8_t* p, std::uint32_t payload_len);
  void complete_recv(const OpcodeInfo& info, const std::uint8_t* p, WcOpcode opcode, std::uint32_t byte_len);
  void drop_message();
  void reject_send(WcStatus status);
  void receive_fault();
  bool build(MemoryPort& mem, SendWqe& w, TxPacket* out);

  QpCore& core_;
  // Sending.
  std::uint32_t psn_ = 0;
  std::uint32_t number_ = 0;  // packets of the request at send.done() already sent
  bool notify_drained_ = false;
  // Receiving.
  std::uint32_t epsn_ = 0;
  Message message_ = Message::none;
  std::uint32_t write_rkey_ = 0, write_left_ = 0, write_total_ = 0;
  std::uint64_t write_va_ = 0;
};

}  // namespace softrnic::ib
