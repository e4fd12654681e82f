// Attributes and states of queue pairs (IBA 11.2.5.2), and the paths they are connected by.
#include <cerrno>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {
namespace {

using ib::QpState;

// The largest packet around a payload of one MTU.
std::uint32_t frame_room(std::uint32_t headers, std::uint32_t mtu) {
  return headers + ib::TxPacket::kMaxHeader + mtu + 4 /* pad, rounded up */ + 4 /* ICRC */;
}

// Values out of range, as the kernel and its drivers refuse them.
int check_values(const QpAttrsAll& a, std::uint32_t mask, const control::DeviceRecord& dev) {
  const auto bad = [mask](std::uint32_t bit, bool wrong) { return (mask & bit) != 0 && wrong; };
  const std::uint32_t mtu = mtu_bytes(a.path_mtu_enum);
  if (bad(ib::kAttrPort, a.port_num != 1) || bad(ib::kAttrPkeyIndex, a.pkey_index != 0) ||
      bad(ib::kAttrPathMtu, mtu == 0 || mtu > dev.active_mtu) || bad(ib::kAttrTimeout, a.ib.timeout > 31) ||
      bad(ib::kAttrRetryCnt, a.ib.retry_cnt > 7) || bad(ib::kAttrRnrRetry, a.ib.rnr_retry > 7) ||
      bad(ib::kAttrMinRnrTimer, a.ib.min_rnr_timer > 31) ||
      bad(ib::kAttrMaxQpRdAtomic, a.ib.max_rd_atomic > dev.max_qp_init_rd_atom) ||
      bad(ib::kAttrMaxDestRdAtomic, a.ib.max_dest_rd_atomic > dev.max_qp_rd_atom) ||
      bad(ib::kAttrDestQpn, a.ib.dest_qpn > 0xFFFFFF)) {
    return EINVAL;
  }
  // Alternate paths need ports of link layer InfiniBand at both ends.
  return (mask & (ib::kAttrAltPath | ib::kAttrPathMigState)) != 0 ? EINVAL : 0;
}

// The old attributes with those of `mask` replaced.
ib::QpAttrs merge(ib::QpAttrs old, const QpAttrsAll& a, std::uint32_t mask) {
  if (mask & ib::kAttrDestQpn) old.dest_qpn = a.ib.dest_qpn;
  if (mask & ib::kAttrSqPsn) old.sq_psn = a.ib.sq_psn & 0xFFFFFF;
  if (mask & ib::kAttrRqPsn) old.rq_psn = a.ib.rq_psn & 0xFFFFFF;
  if (mask & ib::kAttrPathMtu) old.path_mtu = mtu_bytes(a.path_mtu_enum);
  if (mask & ib::kAttrQkey) old.qkey = a.ib.qkey;
  if (mask & ib::kAttrAccessFlags) old.access_flags = a.ib.access_flags;
  if (mask & ib::kAttrTimeout) old.timeout = a.ib.timeout;
  if (mask & ib::kAttrRetryCnt) old.retry_cnt = a.ib.retry_cnt;
  if (mask & ib::kAttrRnrRetry) old.rnr_retry = a.ib.rnr_retry;
  if (mask & ib::kAttrMinRnrTimer) old.min_rnr_timer = a.ib.min_rnr_timer;
  if (mask & ib::kAttrMaxQpRdAtomic) old.max_rd_atomic = a.ib.max_rd_atomic;
  if (mask & ib::kAttrMaxDestRdAtomic) old.max_dest_rd_atomic = a.ib.max_dest_rd_atomic;
  return old;
}

// What a new address vector means for a connected QP; found without the progress lock.
struct Route {
  ResolvedAddress address;
  dp::Path* path = nullptr;
  dp::VfId peer = dp::kNoVf;
};

int find_route(const QueuePair::Impl& q, const AddressVector& av, std::uint32_t dest_qpn, Route* out) {
  const Context& ctx = *q.pd->context;
  const std::uint32_t flow_label = roce::flow_label_of_qpns(q.qpn, dest_qpn);
  if (const int rc = resolve_address(ctx, av, flow_label, &out->address); rc != 0) return rc;
  if (out->address.multicast) return EINVAL;
  dp::Fabric& fabric = *q.vf.fabric;
  if (out->address.local) {
    out->path = fabric.path_for_qpn(dest_qpn);
    out->peer = fabric.blocks().owner[dest_qpn >> dp::kQpnBlockShift].load(std::memory_order_acquire);
  } else {
    out->path = fabric.switch_path();
  }
  return 0;
}

void connect(Vf::Impl& v, QueuePair::Impl& q, const Route& r, std::uint32_t mtu) {
  q.path = v.path_state(r.path);
  if (r.peer != dp::kNoVf) v.path_by_vf[r.peer] = q.path;
  q.peer = r.peer;
  q.peer_known = true;
  q.rx_headers = {};
  q.version = r.address.params.version;
  q.local_gid = r.address.params.sgid;
  q.remote_gid = r.address.params.dgid;
  q.headers = roce::HeaderTemplate(r.address.params);
  q.frame_room = frame_room(q.headers.size(), mtu);
  q.request_sent = false;
}

void disconnect(Vf::Impl& v, QueuePair::Impl& q) {
  v.stop_waiting(q);
  v.timers.remove(q);
  q.path = nullptr;
  q.peer_known = false;
  q.rx_headers = {};
  q.request_sent = q.held_valid = false;
}

void reset(Vf::Impl& v, QueuePair::Impl& q, const ib::QpAttrs& attrs) {
  disconnect(v, q);
  {
    SpinGuard sq(q.sq_lock);
    SpinGuard rq(q.rq_lock);
    q.state.store(QpState::reset, std::memory_order_release);
    q.ib.modify(v.now(), QpState::reset, attrs);
  }
  q.send_cq->purge(q.self);
  if (q.recv_cq != q.send_cq) q.recv_cq->purge(q.self);
}

// The state change itself, with the progress lock.
int apply(Vf::Impl& v, QueuePair::Impl& q, const QpAttrsAll& a, std::uint32_t mask, QpState from, QpState to,
          const Route* route) {
  if (from == QpState::sqd && to == QpState::rts && q.ib.attrs().sq_draining) return EINVAL;  // IBA 10.3.1.4
  ib::QpAttrs attrs = merge(q.ib.attrs(), a, mask);
  if (q.type == ib::QpType::ud) {
    attrs.path_mtu = q.pd->context->device().active_mtu;
    q.frame_room = frame_room(roce::HeaderTemplate::kMaxSize, attrs.path_mtu);
  }
  if (to == QpState::reset) {
    reset(v, q, ib::QpAttrs{});
  } else {
    if (route != nullptr) connect(v, q, *route, attrs.path_mtu);
    const bool notify = (mask & ib::kAttrEnSqdAsyncNotify) != 0 && a.en_sqd_async_notify;
    q.ib.modify(v.now(), to, attrs, notify);
    v.serve(q, 64);
    v.fabric->flush();
  }
  v.write_status(q);
  return 0;
}

}  // namespace

namespace {

// Checks a request against the state `from`, and finds its route.
int prepare(QueuePair::Impl& q, const QpAttrsAll& attrs, std::uint32_t mask, QpState from, Route* route) {
  const QpState to = (mask & ib::kAttrState) != 0 ? attrs.state : from;
  if ((mask & ib::kAttrCurState) != 0 && attrs.cur_state != from) return EINVAL;
  if (!ib::transition_allowed(q.type, from, to, mask)) return EINVAL;
  if (const int rc = check_values(attrs, mask, q.pd->context->device()); rc != 0) return rc;
  if ((mask & ib::kAttrAv) == 0 || q.type == ib::QpType::ud) return 0;
  const std::uint32_t dest = (mask & ib::kAttrDestQpn) != 0 ? attrs.ib.dest_qpn : q.attrs.ib.dest_qpn;
  return find_route(q, attrs.av, dest, route);
}

void remember(QueuePair::Impl& q, const QpAttrsAll& attrs, std::uint32_t mask, QpState to) {
  if (to == QpState::reset) {
    q.attrs = QpAttrsAll{};
    return;
  }
  if ((mask & ib::kAttrDestQpn) != 0) q.attrs.ib.dest_qpn = attrs.ib.dest_qpn;
  if ((mask & ib::kAttrAv) != 0) q.attrs.av = attrs.av;
  if ((mask & ib::kAttrPort) != 0) q.attrs.port_num = attrs.port_num;
}

}  // namespace

int QueuePair::modify(const QpAttrsAll& attrs, std::uint32_t mask) {
  Impl& q = *impl_;
  Vf::Impl& v = q.vf;
  if (const int rc = v.usable(); rc != 0) return rc;
  if ((mask & ib::kAttrState) != 0 && attrs.state == QpState::rtr) {  // from here on somebody may send to us
    if (const int rc = v.helper.start(); rc != 0) return rc;
  }
  std::lock_guard g(v.control);
  v.lock_progress();
  QpState from = q.ib.state();
  for (;;) {
    v.unlock_progress();
    Route route;
    if (const int rc = prepare(q, attrs, mask, from, &route); rc != 0) return rc;
    v.lock_progress();
    v.now_valid = false;
    if (q.ib.state() == from) {
      const QpState to = (mask & ib::kAttrState) != 0 ? attrs.state : from;
      const int rc = apply(v, q, attrs, mask, from, to, route.path != nullptr ? &route : nullptr);
      v.unlock_progress();
      if (rc == 0) remember(q, attrs, mask, to);
      return rc;
    }
    from = q.ib.state();  // an error came in between
  }
}

void QueuePair::query(QpAttrsAll* attrs, QpCaps* caps) {
  Impl& q = *impl_;
  Vf::Impl& v = q.vf;
  *caps = q.caps;
  if (v.inherited()) {
    *attrs = q.attrs;
    return;
  }
  std::lock_guard g(v.control);
  *attrs = q.attrs;
  v.lock_progress();
  attrs->ib = q.ib.attrs();
  attrs->state = attrs->cur_state = q.ib.state();
  v.unlock_progress();
  attrs->path_mtu_enum = mtu_code(attrs->ib.path_mtu);
}

}  // namespace softrnic::nic
