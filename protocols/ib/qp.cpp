#include "protocols/ib/qp.h"

#include "protocols/ib/opcode.h"
#include "protocols/ib/qp_core.h"
#include "protocols/ib/rc_requester.h"
#include "protocols/ib/rc_responder.h"
#include "protocols/ib/uc.h"
#include "protocols/ib/ud.h"
#include "protocols/wire/bth.h"

namespace softrnic::ib {
namespace {

std::uint8_t transport_of(QpType type) {
  switch (type) {
    case QpType::uc:
      return kTransportUc;
    case QpType::ud:
      return kTransportUd;
    default:
      return kTransportRc;
  }
}

// IBA 10.9.2: low 15 bits equal and not zero, at least one side a full member.
bool pkey_match(std::uint16_t a, std::uint16_t b) {
  return ((a ^ b) & 0x7FFF) == 0 && (a & 0x7FFF) != 0 && ((a | b) & 0x8000) != 0;
}

}  // namespace

struct Qp::Impl {
  explicit Impl(const QpInit& i)
      : core(i), requester(core), responder(core), uc(core), ud(core), transport(transport_of(i.type)) {}

  void enter_reset();
  void start_receiving();
  void start_sending(QpState from);
  void drain(bool notify);
  bool poll_async(QpEvent* out);
  bool poll_failed(QpEvent* out);

  QpCore core;
  RcRequester requester;
  RcResponder responder;
  Uc uc;
  Ud ud;
  const std::uint8_t transport;
};

void Qp::Impl::enter_reset() {
  core.recv.reset();
  core.send.reset();
  core.async_pending = 0;
  core.comm_est_raised = core.nak_draining = core.last_wqe_raised = false;
  core.attrs.sq_draining = false;
  requester.reset();
  responder.reset();
  uc.reset();
  ud.reset();
  core.init.sq->reset();
  if (!core.init.has_srq) core.init.rq->reset();
}

void Qp::Impl::start_receiving() {
  if (core.init.type == QpType::rc) responder.start();
  if (core.init.type == QpType::uc) uc.start_receiving();
}

void Qp::Impl::start_sending(QpState from) {
  if (from == QpState::rtr) {
    switch (core.init.type) {
      case QpType::uc:
        uc.start_sending();
        break;
      case QpType::ud:
        ud.start_sending();
        break;
      default:
        requester.start();
    }
  }
  if (from == QpState::sqe) core.send.end_flush(core.init.sq->tail());
  core.attrs.sq_draining = false;
}

void Qp::Impl::drain(bool notify) {
  core.attrs.sq_draining = true;
  switch (core.init.type) {
    case QpType::uc:
      uc.drain(notify);
      break;
    case QpType::ud:
      ud.drain(notify);
      break;
    default:
      requester.drain(notify);
  }
}

bool Qp::Impl::poll_async(QpEvent* out) {
  if (core.async_pending == 0) return false;
  const int bit = std::countr_zero(core.async_pending);
  core.async_pending &= core.async_pending - 1;
  out->kind = QpEvent::Kind::async;
  out->async = static_cast<AsyncEvent>(bit);
  return true;
}

// Completions and the end of the flush in ERR, or completions behind an asynchronous event.
bool Qp::Impl::poll_failed(QpEvent* out) {
  const bool errors_visible = !core.nak_draining;
  if (core.send.poll(core.init, errors_visible, out)) return true;
  if (core.state != QpState::err) return core.recv.poll(out);
  // No acknowledgement will follow any more.
  if (errors_visible) core.recv.release_all();
  if (core.recv.poll(out)) return true;
  if (!errors_visible) return false;
  if (core.recv.poll_flush(out)) return true;
  if (!core.init.has_srq || core.last_wqe_raised) return false;
  core.last_wqe_raised = true;
  core.raise(AsyncEvent::qp_last_wqe_reached);
  return poll_async(out);
}

Qp::Qp(const QpInit& init) : impl_(std::make_unique<Impl>(init)) {}
Qp::~Qp() { impl_->core.recv.reset(); }

const QpInit& Qp::init() const { return impl_->core.init; }
QpState Qp::state() const { return impl_->core.state; }
const QpAttrs& Qp::attrs() const { return impl_->core.attrs; }
const QpCounters& Qp::counters() const { return impl_->core.counters; }

void Qp::modify(Nanos, QpState to, const QpAttrs& attrs, bool notify_sqd) {
  Impl& i = *impl_;
  QpCore& core = i.core;
  const QpState from = core.state;
  const bool draining = core.attrs.sq_draining;
  core.attrs = attrs;
  core.attrs.rq_psn &= kPsnMask;
  core.attrs.sq_psn &= kPsnMask;
  core.attrs.sq_draining = draining;
  core.set_mtu(attrs.path_mtu);
  i.requester.unblock();
  if (to == QpState::err) {
    core.enter_error();
    return;
  }
  core.state = to;
  switch (to) {
    case QpState::reset:
      i.enter_reset();
      break;
    case QpState::rtr:
      i.start_receiving();
      break;
    case QpState::rts:
      if (from != QpState::rts) i.start_sending(from);
      break;
    case QpState::sqd:
      if (from == QpState::rts) i.drain(notify_sqd);
      if (core.init.type == QpType::rc) i.responder.resize();
      break;
    default:
      break;
  }
}

void Qp::on_packet(Nanos now, MemoryPort& mem, const RxPacket& packet) {
  Impl& i = *impl_;
  QpCore& core = i.core;
  core.counters.rcvd_pkts++;
  core.counters.rcvd_bytes += packet.bth.size();
  auto drop = [&core] { core.counters.drops++; };
  if (packet.bth.size() < wire::kBthSize || !core.receives()) return drop();
  const wire::BthView bth(packet.bth.data());
  const OpcodeInfo& info = opcode_info(bth.opcode());
  // IBA 9.6.1.1: version, opcode of this service, extended headers complete, pad within the payload.
  if (!info.known() || (bth.opcode() & kTransportMask) != i.transport || bth.tver() != 0) return drop();
  const std::size_t overhead = std::size_t{info.header_len} + bth.pad_count();
  if (packet.bth.size() < overhead || !pkey_match(bth.pkey(), core.attrs.pkey)) return drop();
  const auto payload_len = static_cast<std::uint32_t>(packet.bth.size() - overhead);
  if (core.state == QpState::rtr && !core.comm_est_raised) {
    core.comm_est_raised = true;
    core.raise(AsyncEvent::comm_est);
  }
  switch (core.init.type) {
    case QpType::uc:
      i.uc.on_packet(mem, info, packet, payload_len);
      return;
    case QpType::ud:
      i.ud.on_packet(mem, info, packet, payload_len);
      return;
    default:
      break;
  }
  if (info.request) {
    i.responder.on_request(now, mem, info, packet, payload_len);
  } else if (info.payload == PayloadRule::empty && payload_len != 0) {
    drop();
  } else {
    i.requester.on_response(now, mem, info, packet, payload_len);
  }
}

bool Qp::poll_transmit(Nanos now, MemoryPort& mem, TxPacket* out) {
  Impl& i = *impl_;
  out->more = true;
  switch (i.core.init.type) {
    case QpType::uc:
      return i.uc.poll_transmit(mem, out);
    case QpType::ud:
      return i.ud.poll_transmit(mem, out);
    default:
      if (!i.responder.poll_transmit(mem, out)) return i.requester.poll_transmit(now, mem, out);
      out->more = wants_transmit(now);
      return true;
  }
}

bool Qp::wants_transmit(Nanos now) const {
  const Impl& i = *impl_;
  switch (i.core.init.type) {
    case QpType::uc:
      return i.uc.wants_transmit();
    case QpType::ud:
      return i.ud.wants_transmit();
    default:
      return i.responder.owes() || i.requester.wants_transmit(now);
  }
}

void Qp::on_gather_fault(Nanos) {
  Impl& i = *impl_;
  switch (i.core.init.type) {
    case QpType::uc:
      i.uc.on_gather_fault();
      return;
    case QpType::ud:
      i.ud.on_gather_fault();
      return;
    default:
      break;
  }
  if (!i.responder.on_gather_fault()) i.requester.on_gather_fault();
}

Nanos Qp::next_timeout() const { return impl_->core.sends() ? impl_->requester.next_timeout() : kNever; }
void Qp::on_timeout(Nanos now) { impl_->requester.on_timeout(now); }
void Qp::postpone_timeout(Nanos now) { impl_->requester.postpone_timeout(now); }

bool Qp::poll_event(QpEvent* out) {
  Impl& i = *impl_;
  QpCore& core = i.core;
  if (core.async_pending == 0 && core.state != QpState::err) {
    // Most calls: at most a completion.
    if (core.send.pending() && core.send.poll(core.init, true, out)) return true;
    return core.recv.poll(out);
  }
  return i.poll_async(out) || i.poll_failed(out);
}

void Qp::fail(Nanos, AsyncEvent event) {
  if (impl_->core.state == QpState::err) return;
  impl_->core.raise(event);
  impl_->core.enter_error();
}

}  // namespace softrnic::ib
