// A transport packet on its way in or out: everything between the framing's header (UDP, GRH, LRH)
// and the ICRC. The transports know nothing of the framing that carries them.
#pragma once

#include <cstring>

#include "protocols/common/memory_port.h"
#include "protocols/common/types.h"

namespace softrnic::ib {

// A received packet. The framing has checked lengths, ICRC and addresses; the engine has found the QP
// and checked that the packet comes from where the QP is connected to.
struct RxPacket {
  Bytes bth;                          // BTH, extended headers, payload and pad; without the ICRC
  const std::uint8_t* grh = nullptr;  // the 40 bytes a UD receive places before the payload, or null
  std::uint8_t sl = 0;
  bool has_grh = false;    // sets the completion's GRH flag
  bool ce_marked = false;  // ECN congestion experienced
};

// Where the payload of an outgoing packet lies: `length` bytes starting `offset` bytes into the
// elements (already key-checked, addresses resolved) or into `direct` when that is not null.
struct PayloadRef {
  static constexpr int kMaxPieces = 32;
  struct Piece {
    const std::uint8_t* data;
    std::uint32_t length;
    bool app_memory;  // copy with MemoryPort::copy_from_app (may fault); else plain memory of ours
  };
  Piece pieces[kMaxPieces];
  int count = 0;
  std::uint32_t length = 0;  // total bytes, without pad

  void clear() {
    count = 0;
    length = 0;
  }
  void add(const std::uint8_t* data, std::uint32_t len, bool app) {
    pieces[count++] = {data, len, app};
    length += len;
  }
};

// An outgoing packet. The caller writes framing header, header[0..header_len), payload, pad zero bytes
// and ICRC.
struct TxPacket {
  static constexpr int kMaxHeader = 12 + 8 + 28 + 4;
  std::uint8_t header[kMaxHeader];
  std::uint8_t header_len = 0;
  std::uint8_t pad = 0;     // 0..3
  bool is_request = false;  // false: ACK, NAK, READ response, atomic ACK
  bool more = false;        // false: Qp::wants_transmit() says no now
  std::uint32_t dest_qpn = 0;
  std::uint32_t ah = 0;  // UD: the work request's address handle
  PayloadRef payload;
};

// Copies the payload and the pad behind the header. `dst` has payload.length + pad bytes of room.
// False when application memory faulted: the packet must not be sent; tell the QP by
// Qp::on_gather_fault().
inline bool gather(MemoryPort& mem, const TxPacket& p, std::uint8_t* dst) {
  for (int i = 0; i < p.payload.count; ++i) {
    const auto& piece = p.payload.pieces[i];
    if (piece.app_memory) {
      if (!mem.copy_from_app(dst, piece.data, piece.length)) return false;
    } else {
      std::memcpy(dst, piece.data, piece.length);
    }
    dst += piece.length;
  }
  for (int i = 0; i < p.pad; ++i) *dst++ = 0;
  return true;
}

}  // namespace softrnic::ib
