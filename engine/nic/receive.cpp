// Packets in: from a frame in a ring to the transport of the queue pair it is for. Every check before the transport
// sees the packet is here; what fails one is dropped and counted.
#include <cstring>

#include "engine/nic/vf_impl.h"
#include "protocols/ib/opcode.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eth.h"
#include "protocols/wire/eths.h"

namespace softrnic::nic {
namespace {

constexpr std::uint32_t kMulticastQpn = 0xFFFFFF;
constexpr std::uint8_t kEcnCe = 3;
constexpr std::uint32_t kIcrcSize = 4;
constexpr std::uint32_t kLearn = 64;  // good frames with unfamiliar headers before the headers are taken as usual ones
constexpr std::uint32_t kBehindV4 = 14 + 20 + 8, kBehindV6 = 14 + 40 + 8, kBehindV1 = 14 + 40;
constexpr std::uint32_t kShortestFrame = kBehindV4 + wire::kBthSize + kIcrcSize;

bool same(const Gid& a, const Gid& b) {
  std::uint64_t x[2], y[2];
  std::memcpy(x, a.raw, 16);
  std::memcpy(y, b.raw, 16);
  return ((x[0] ^ y[0]) | (x[1] ^ y[1])) == 0;
}

// Packets that may give their QP a completion.
bool may_complete(std::uint8_t opcode) {
  const ib::OpcodeInfo& op = ib::opcode_info(opcode);
  return !op.request || (op.last && (op.kind == ib::OpKind::send || op.imm));
}

std::uint8_t priority_of(const roce::RxFrame& f) {
  return f.has_vlan ? static_cast<std::uint8_t>(f.vlan_tci >> 13) : std::uint8_t{0};
}

}  // namespace

bool Vf::Impl::on_frame(void* ctx, dp::VfId ingress, Bytes frame) {
  auto* v = static_cast<Vf::Impl*>(ctx);
  v->receive(ingress, frame);
  return v->completions_left > 0;
}

void Vf::Impl::receive(dp::VfId ingress, Bytes frame) {
  ++drops.frames;
  if (QpImpl* qp = familiar(ingress, frame); qp != nullptr) {
    const std::uint32_t at = qp->rx_headers.size();
    const auto transport = static_cast<std::uint32_t>(frame.size()) - at - kIcrcSize;
    std::uint32_t icrc;
    std::memcpy(&icrc, frame.data() + at + transport, kIcrcSize);
    if (icrc != qp->rx_headers.icrc(frame.data(), transport)) return drops.count(roce::FrameError::bad_icrc);
    return deliver(*qp, ib::RxPacket{.bth = frame.subspan(at, transport)});
  }
  roce::RxFrame f;
  if (const roce::FrameError e = roce::parse(frame, &f); e != roce::FrameError::none) return drops.count(e);
  const std::uint32_t dest = wire::BthView(f.transport.data()).dest_qpn();
  QpImpl* qp = find_qp(dest);
  if (qp == nullptr || qp->type == ib::QpType::ud) {
    if (qp == nullptr && dest != kMulticastQpn) {
      ++drops.no_qp;
      return;
    }
    return receive_datagram(ingress, frame);
  }
  if (!source_ok(*qp, ingress, f)) {
    ++drops.wrong_source;
    return;
  }
  if (!roce::icrc_ok(f)) return drops.count(roce::FrameError::bad_icrc);
  const bool plain = !f.has_vlan && (f.traffic_class & 3) != kEcnCe;
  if (plain && qp->rx_strangers++ % kLearn == 0) qp->rx_headers = roce::HeaderTemplate::of(frame, f);
  deliver(*qp, f, nullptr);
}

// The QP of a frame whose headers are those of an earlier one that it took in: nothing about them is left to check, and
// no header field that the transport wants to know is set.
Vf::Impl::QpImpl* Vf::Impl::familiar(dp::VfId ingress, Bytes frame) const {
  if (frame.size() < kShortestFrame) return nullptr;
  std::uint32_t at = kBehindV6;  // offset of the BTH
  switch (load_be16(frame.data() + 12)) {
    case wire::kEthertypeIpv4:
      at = kBehindV4;
      break;
    case wire::kEthertypeIpv6:
      break;
    case roce::kEthertypeV1:
      at = kBehindV1;
      break;
    default:
      return nullptr;
  }
  if (frame.size() < at + wire::kBthSize) return nullptr;
  QpImpl* qp = find_qp(wire::BthView(frame.data() + at).dest_qpn());
  if (qp == nullptr || qp->rx_headers.size() != at || ingress != qp->peer) return nullptr;
  return qp->rx_headers.matches(frame) ? qp : nullptr;
}

// The source of a connected QP is the VF that owns the destination QPN, with the address of its path (design rule 6).
bool Vf::Impl::source_ok(const QpImpl& qp, dp::VfId ingress, const roce::RxFrame& f) const {
  return qp.peer_known && ingress == qp.peer && f.version == qp.version && same(f.sgid, qp.remote_gid) &&
         same(f.dgid, qp.local_gid);
}

void Vf::Impl::deliver(QpImpl& qp, const roce::RxFrame& f, const std::uint8_t* grh) {
  ib::RxPacket p;
  p.bth = f.transport;
  p.grh = grh;
  p.has_grh = grh != nullptr;
  p.sl = priority_of(f);
  p.ce_marked = (f.traffic_class & 3) == kEcnCe;
  deliver(qp, p);
}

void Vf::Impl::deliver(QpImpl& qp, const ib::RxPacket& p) {
  if (may_complete(p.bth[0])) --completions_left;
  qp.ib.on_packet(now(), memory, p);
  touched.push_back(qp);
}

// A datagram's source QPN is checked here and reported by the transport: it must not change in between, so the frame
// is copied out of the memory that the sender can write.
void Vf::Impl::receive_datagram(dp::VfId ingress, Bytes frame) {
  alignas(64) std::uint8_t copy[dp::kMaxFrame];
  if (frame.size() > sizeof copy) return drops.count(roce::FrameError::bad_length);
  std::memcpy(copy, frame.data(), frame.size());
  roce::RxFrame f;
  if (const roce::FrameError e = roce::parse(Bytes(copy, frame.size()), &f); e != roce::FrameError::none) {
    return drops.count(e);
  }
  const std::uint32_t dest = wire::BthView(f.transport.data()).dest_qpn();
  if ((f.transport[0] & ib::kTransportMask) != ib::kTransportUd ||
      f.transport.size() < wire::kBthSize + wire::Deth::kSize) {
    ++drops.wrong_transport;
    return;
  }
  const std::uint32_t src = wire::Deth::read(f.transport.data() + wire::kBthSize).src_qpn;
  const dp::VfId owner = fabric->blocks().owner[src >> dp::kQpnBlockShift].load(std::memory_order_relaxed);
  // What comes from a port has no VF; it cannot pretend to come from an address of this host.
  if (ingress == dp::kNoVf ? is_local_gid(f.sgid) : owner != ingress) {
    ++drops.wrong_source;
    return;
  }
  if (!roce::icrc_ok(f)) return drops.count(roce::FrameError::bad_icrc);

  std::uint8_t grh[40];
  roce::write_grh_area(f, grh);
  if (dest == kMulticastQpn) return deliver_multicast(ingress, f, src, grh);
  QpImpl* qp = find_qp(dest);
  if (qp == nullptr || qp->type != ib::QpType::ud) {
    ++drops.no_qp;
  } else if (!is_local_gid(f.dgid)) {
    ++drops.wrong_destination;
  } else {
    deliver(*qp, f, grh);
  }
}

// IBA 10.5.2.1: one copy to each attached QP, none to the sender.
void Vf::Impl::deliver_multicast(dp::VfId ingress, const roce::RxFrame& f, std::uint32_t src_qpn,
                                 const std::uint8_t* grh) {
  const auto group = groups.find(f.dgid);
  if (group == groups.end()) {
    ++drops.no_group;
    return;
  }
  for (QpImpl* qp : group->second) {
    if (ingress == fabric->vf_id() && qp->qpn == src_qpn) continue;
    deliver(*qp, f, grh);
  }
}

bool Vf::Impl::is_local_gid(const Gid& gid) {
  if (same(gid, last_local_gid)) return true;
  for (const auto& r : gids) {
    if (same(r.gid, gid)) {
      last_local_gid = gid;
      return true;
    }
  }
  return false;
}

}  // namespace softrnic::nic
