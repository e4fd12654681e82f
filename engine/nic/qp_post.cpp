// Posting work requests.
#include <cerrno>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {
namespace {

using ib::QpState;
using ib::QpType;

constexpr std::uint32_t bit(WrOpcode op) { return 1u << static_cast<unsigned>(op); }
constexpr std::uint32_t kSends = bit(WrOpcode::send) | bit(WrOpcode::send_with_imm);
constexpr std::uint32_t kWrites = bit(WrOpcode::rdma_write) | bit(WrOpcode::rdma_write_with_imm);
constexpr std::uint32_t kLocal = bit(WrOpcode::local_inv) | bit(WrOpcode::bind_mw);
constexpr std::uint32_t kAtomics = bit(WrOpcode::atomic_cmp_and_swp) | bit(WrOpcode::atomic_fetch_and_add);
constexpr std::uint32_t kInlineOk = kSends | kWrites | bit(WrOpcode::send_with_inv);

// Which requests a service type has (IBA table 56).
constexpr std::uint32_t allowed_opcodes(QpType type) {
  switch (type) {
    case QpType::rc:
      return kSends | kWrites | kLocal | kAtomics | bit(WrOpcode::rdma_read) | bit(WrOpcode::send_with_inv);
    case QpType::uc:
      return kSends | kWrites | kLocal;
    default:
      return kSends;
  }
}

bool can_post_send(QpState s) {
  return s == QpState::rts || s == QpState::sqd || s == QpState::sqe || s == QpState::err;
}

}  // namespace

void QueuePair::begin_post() {
  if (impl_->vf.inherited()) return;
  impl_->sq_lock.lock();
  impl_->accepted = 0;
}

SendWqe* QueuePair::next_slot() {
  SendWqe* w = impl_->sq->reserve(impl_->accepted);
  if (w == nullptr) return nullptr;
  w->flags = 0;
  w->num_sge = 0;
  w->length = 0;
  w->imm_or_inv = 0;
  return w;
}

Sge* QueuePair::sges(const SendWqe* w) { return impl_->sq->sges(w); }
std::uint8_t* QueuePair::inline_data(const SendWqe* w) { return impl_->sq->inline_data(w); }

int QueuePair::accept_slot(SendWqe* w) {
  Impl& q = *impl_;
  if (q.vf.inherited()) return ENODEV;
  if (!can_post_send(q.state.load(std::memory_order_relaxed))) return EINVAL;
  const std::uint32_t op = bit(w->opcode);
  if ((op & allowed_opcodes(q.type)) == 0 || w->num_sge > q.caps.max_send_sge) return EINVAL;
  if ((w->flags & kSendInline) != 0) {
    if ((op & kInlineOk) == 0 || w->num_sge != 0 || w->length > q.caps.max_inline) return EINVAL;
  } else {
    const Sge* s = q.sq->sges(w);
    std::uint64_t total = w->num_sge != 0 ? s[0].length : 0;
    for (std::uint32_t i = 1; i < w->num_sge; ++i) total += s[i].length;
    if (total > q.max_msg) return EINVAL;
    w->length = static_cast<std::uint32_t>(total);
  }
  if ((op & kAtomics) != 0 && w->length != 8) return EINVAL;
  if (q.type == QpType::ud) {
    const AddressEntry* ah = q.vf.addresses.at(w->ah);
    if (ah == nullptr || !ah->live.load(std::memory_order_acquire) || ah->pd != q.pd->handle) return EINVAL;
    if (w->remote_qpn > 0xFFFFFF || w->length > q.pd->context->device().active_mtu) return EINVAL;
    if (ah->local) q.vf.resolve_datagram_peer(q, w->remote_qpn);
  }
  ++q.accepted;
  return 0;
}

void QueuePair::end_post() {
  Impl& q = *impl_;
  if (q.vf.inherited()) return;
  const std::uint32_t n = q.accepted;
  if (n != 0) q.sq->publish(n);
  q.accepted = 0;
  q.sq_lock.unlock();
  if (n != 0) q.vf.ring(q);
}

void QueuePair::abort_post() {
  if (impl_->vf.inherited()) return;
  impl_->accepted = 0;
  impl_->sq_lock.unlock();
}

int QueuePair::post_recv(std::uint64_t wr_id, std::span<const Sge> sges) {
  Impl& q = *impl_;
  if (q.vf.inherited()) return ENODEV;
  if (q.rq == nullptr || sges.size() > q.caps.max_recv_sge) return EINVAL;
  QpState s;
  {
    SpinGuard g(q.rq_lock);
    s = q.state.load(std::memory_order_acquire);
    if (s == QpState::reset) return EINVAL;
    if (!q.rq->post(wr_id, sges)) return ENOMEM;
  }
  if (s == QpState::err) q.vf.ring(q);  // it is flushed at once
  return 0;
}

}  // namespace softrnic::nic
