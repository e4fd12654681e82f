// Building SEND and RDMA WRITE packets; the same on RC, UC and UD but for the transport bits.
#pragma once

#include "protocols/ib/opcode.h"
#include "protocols/ib/qp_core.h"

namespace softrnic::ib {

// True for the requests that are a message of data packets.
constexpr bool is_data(WrOpcode op) {
  return op <= WrOpcode::send_with_imm || op == WrOpcode::send_with_inv;
}

// Adds bytes [offset, offset + length) of the message of the request at `index` to `out`, checking
// the L_Key of what is touched. Not success: the status the request fails with.
WcStatus gather_message(QpCore& core, MemoryPort& mem, std::uint32_t index, std::uint32_t offset, std::uint32_t length,
                        PayloadRef* out);

// Packet number `number` of the message of request `w` at `index` in the send queue, sent with `psn`.
// The caller has checked that number < packets(w.length). Not success: see gather_message.
WcStatus build_data_packet(QpCore& core, MemoryPort& mem, std::uint32_t index, const SendWqe& w, std::uint32_t number,
                           std::uint32_t psn, std::uint8_t transport, bool ack_req, TxPacket* out);

}  // namespace softrnic::ib
