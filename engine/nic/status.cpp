// The VF's status page: what `softrnic status` shows of this process. Entries are written when a queue pair changed
// state, and for its counters when the engine is idle or a millisecond has passed.
#include <algorithm>
#include <iterator>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {

void Vf::Impl::attach_status(QpImpl& qp) {
  if (!free_status_slots.empty()) {
    qp.status_slot = free_status_slots.back();
    free_status_slots.pop_back();
  } else if (next_status_slot < dp::kStatusQps) {
    qp.status_slot = next_status_slot++;
  } else {
    return;  // the page shows only so many
  }
  qp.has_status_slot = true;
  write_status(qp);
}

void Vf::Impl::detach_status(QpImpl& qp) {
  const std::uint32_t device = qp.self->pd()->context->device_index();
  if (device < dp::kStatusDevices) {
    std::uint64_t counters[sizeof(ib::QpCounters) / sizeof(std::uint64_t)];
    std::memcpy(counters, &qp.ib.counters(), sizeof counters);
    std::uint64_t* sums = fabric->status().retired[device];
    for (std::size_t i = 0; i < std::size(counters); ++i) sums[i] += counters[i];
  }
  if (!qp.has_status_slot) return;
  fabric->status().qp[qp.status_slot].qpn.store(0, std::memory_order_release);
  free_status_slots.push_back(qp.status_slot);
  qp.has_status_slot = false;
}

void Vf::Impl::write_status(QpImpl& qp) {
  if (!qp.has_status_slot) return;
  dp::QpStatus& s = fabric->status().qp[qp.status_slot];
  const ib::QpAttrs& a = qp.ib.attrs();
  s.type = static_cast<std::uint8_t>(qp.type);
  s.state = static_cast<std::uint8_t>(qp.ib.state());
  s.peer_vf = qp.peer;
  s.dest_qpn = a.dest_qpn;
  s.sq_psn = a.sq_psn;
  s.rq_psn = a.rq_psn;
  s.device = qp.self->pd()->context->device_index();
  const ib::QpCounters& c = qp.ib.counters();
  static_assert(sizeof c <= sizeof s.counters && sizeof c % sizeof s.counters[0] == 0);
  std::memcpy(s.counters, &c, sizeof c);
  s.qpn.store(qp.qpn, std::memory_order_release);
}

void Vf::Impl::write_all_dirty() {
  while (QpImpl* qp = dirty.pop_front()) write_status(*qp);
  auto& received = fabric->status().received;
  static_assert(sizeof drops <= sizeof received && sizeof drops % sizeof received[0] == 0);
  std::memcpy(received, &drops, sizeof drops);
  frames_written = drops.frames;
  status_written = now();
}

}  // namespace softrnic::nic
