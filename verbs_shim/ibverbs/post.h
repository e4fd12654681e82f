// Filling a send queue slot from a work request. Shared by ibv_post_send() and the ibv_wr_* builders.
#pragma once

#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {

static_assert(sizeof(ibv_sge) == sizeof(Sge));

inline constexpr unsigned int kSendFlags = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

// Element list of a request: 0 or EINVAL (too many elements). The engine adds up the length.
inline int set_sges(Qp& qp, SendWqe* w, const ibv_sge* list, std::size_t n) {
  if (n > qp.max_send_sge) return EINVAL;
  Sge* d = qp.nic->sges(w);
  for (std::size_t i = 0; i < n; ++i) d[i] = {list[i].addr, list[i].length, list[i].lkey};
  w->num_sge = static_cast<std::uint16_t>(n);
  return 0;
}

// Appends bytes to a request's inline data, of which there are w->length: 0 or EINVAL (more than max_inline_data).
inline int append_inline(Qp& qp, SendWqe* w, const void* data, std::size_t n) {
  if (n > qp.max_inline - w->length) return EINVAL;
  if (n != 0) memcpy(qp.nic->inline_data(w) + w->length, data, n);
  w->length += static_cast<std::uint32_t>(n);
  return 0;
}

// The window binding of a bind request (IBA 10.6.7.2). A length of zero unbinds. As with the kernel's drivers, only
// the low byte of the new R_Key counts, and the local access flag, which is the region's matter, is ignored.
inline void set_bind(SendWqe* w, const ibv_mw* mw, std::uint32_t new_rkey, const ibv_mw_bind_info& info) {
  w->bind.mw_rkey = mw->rkey;
  w->bind.new_rkey = (mw->rkey & ~0xFFu) | (new_rkey & 0xFFu);
  w->bind.mr_lkey = info.mr ? info.mr->lkey : 0;
  w->bind.addr = info.addr;
  w->bind.length = info.length;
  w->bind.access = info.mw_access_flags & ~kAccessLocalWrite;
}

}  // namespace softrnic::shim
