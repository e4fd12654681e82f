// Unreliable Datagram (IBA 9.8.3): one packet a message, to any QP that knows the Q_Key.
#pragma once

#include "protocols/ib/opcode.h"
#include "protocols/ib/qp_core.h"

namespace softrnic::ib {

class Ud {
 public:
  // Bytes before the payload in a receive buffer (IBA 11.4.1.2): the GRH, or what stands for it.
  static constexpr std::uint32_t kGrhArea = 40;

  explicit Ud(QpCore& core) : core_(core) {}

  void start_sending() { psn_ = core_.attrs.sq_psn; }
  void reset() { psn_ = 0; }
  void drain(bool notify);

  void on_packet(MemoryPort& mem, const OpcodeInfo& info, const RxPacket& packet, std::uint32_t payload_len);
  bool poll_transmit(MemoryPort& mem, TxPacket* out);
  bool wants_transmit() const {
    return core_.state == QpState::rts && !core_.send.flushing() && core_.send.done() != core_.init.sq->tail();
  }
  void on_gather_fault();

 private:
  QpCore& core_;
  std::uint32_t psn_ = 0;
};

}  // namespace softrnic::ib
