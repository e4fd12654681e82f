#include "protocols/ib/data_packet.h"

namespace softrnic::ib {

WcStatus gather_list(const QpCore& core, MemoryPort& mem, const Sge* s, std::uint32_t num_sge, std::uint32_t offset,
                     std::uint32_t length, PayloadRef* out) {
  const Sge* end = s + num_sge;
  while (length != 0) {
    while (s != end && offset >= s->length) offset -= s++->length;
    if (s == end || out->count == PayloadRef::kMaxPieces) return WcStatus::loc_qp_op_err;
    const std::uint32_t room = s->length - offset;
    const std::uint32_t n = length < room ? length : room;
    std::uint8_t* src = nullptr;
    if (mem.resolve_local(core.init.pd, s->lkey, s->addr + offset, n, 0, &src) != MemStatus::ok) {
      return WcStatus::loc_prot_err;
    }
    out->add(src, n, true);
    offset += n;
    length -= n;
  }
  return WcStatus::success;
}

}  // namespace softrnic::ib
