#include "tests/fuzz/qp_world.h"

#include <cstring>

#include "protocols/wire/bth.h"

namespace softrnic::fuzz {

using ib::QpState;
using ib::QpType;

namespace {
constexpr PdHandle kPd = 7;
constexpr std::uint32_t kQpnA = 0x11, kQpnB = 0x12;
constexpr std::uint32_t kRemoteAccess = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;
constexpr std::size_t kMaxInFlight = 64;
}  // namespace

// --- memory ------------------------------------------------------------------------------------------

MemStatus FuzzMemory::resolve(PdHandle pd, std::uint64_t addr, std::uint64_t length, std::uint32_t allowed,
                              std::uint32_t access, std::uint8_t** out) {
  FUZZ_CHECK(length != 0);
  FUZZ_CHECK(pd == kPd);
  if (deregistered) return MemStatus::bad_key;
  if ((access & allowed) != access) return MemStatus::bad_access;
  if (addr < kBase || addr - kBase > kSize || length > kSize - (addr - kBase)) return MemStatus::bad_bounds;
  *out = bytes_.get() + (addr - kBase);
  return MemStatus::ok;
}

MemStatus FuzzMemory::resolve_local(PdHandle pd, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length,
                                    std::uint32_t access, std::uint8_t** out) {
  FUZZ_CHECK((access & ~kAccessLocalWrite) == 0);
  if (lkey == kReadKey) return resolve(pd, addr, length, 0, access, out);
  return lkey == kKey ? resolve(pd, addr, length, kAccessLocalWrite, access, out) : MemStatus::bad_key;
}

MemStatus FuzzMemory::resolve_remote(PdHandle pd, std::uint32_t qpn, std::uint32_t rkey, std::uint64_t addr,
                                     std::uint64_t length, std::uint32_t access, std::uint8_t** out) {
  FUZZ_CHECK(qpn == kQpnA || qpn == kQpnB);
  FUZZ_CHECK(access == kAccessRemoteWrite || access == kAccessRemoteRead || access == kAccessRemoteAtomic);
  if (window_key_ != 0 && rkey == window_key_) return resolve(pd, addr, length, window_access_, access, out);
  if (rkey == kReadKey) return resolve(pd, addr, length, kAccessRemoteRead, access, out);
  return rkey == kKey ? resolve(pd, addr, length, kRemoteAccess, access, out) : MemStatus::bad_key;
}

bool FuzzMemory::inside(const std::uint8_t* p, std::size_t length) const {
  return p >= bytes_.get() && length <= kSize && p <= bytes_.get() + kSize - length;
}

bool FuzzMemory::copy_to_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) {
  FUZZ_CHECK(inside(dst, length));
  if (unmapped) return false;
  std::memcpy(dst, src, length);
  return true;
}

bool FuzzMemory::copy_from_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) {
  FUZZ_CHECK(inside(src, length));
  if (unmapped) return false;
  std::memcpy(dst, src, length);
  return true;
}

bool FuzzMemory::atomic64(std::uint8_t* p, bool compare_swap, std::uint64_t compare, std::uint64_t swap_or_add,
                          std::uint64_t* original) {
  FUZZ_CHECK(inside(p, 8) && (p - bytes_.get()) % 8 == 0);
  if (unmapped) return false;
  std::uint64_t v;
  std::memcpy(&v, p, 8);
  *original = v;
  v = !compare_swap ? v + swap_or_add : v == compare ? swap_or_add : v;
  std::memcpy(p, &v, 8);
  return true;
}

MemStatus FuzzMemory::invalidate(PdHandle pd, std::uint32_t, std::uint32_t rkey) {
  FUZZ_CHECK(pd == kPd);
  if (rkey == kKey || rkey == kReadKey) return MemStatus::bad_access;
  if (window_key_ == 0 || rkey != window_key_) return MemStatus::bad_key;
  window_key_ = 0;
  return MemStatus::ok;
}

MemStatus FuzzMemory::bind_mw(PdHandle pd, std::uint32_t, const MwBind& bind) {
  FUZZ_CHECK(pd == kPd);
  if ((bind.mw_rkey & ~0xFFu) != kWindow || bind.mr_lkey != kKey) return MemStatus::bad_key;
  if (bind.addr < kBase || bind.length > kSize || bind.addr - kBase > kSize - bind.length) return MemStatus::bad_bounds;
  window_key_ = kWindow | (bind.new_rkey & 0xFF);
  window_access_ = bind.access & kRemoteAccess;
  return MemStatus::ok;
}

// --- one end -------------------------------------------------------------------------------------------

Config Config::read(Reader& in) {
  const std::uint8_t kind = in.u8(), more = in.u8();
  Config c;
  c.type = kind % 3 == 0 ? QpType::rc : kind % 3 == 1 ? QpType::uc : QpType::ud;
  c.srq = (kind & 0x10) != 0;
  c.sig_all = (kind & 0x20) != 0;
  c.deep = (kind & 0x40) != 0;
  c.mtu = (kind & 0x80) != 0 ? 1024 : 256;
  c.rd_atomic = more & 3;
  c.retry = more >> 2 & 7;
  c.timeout = more & 0x20 ? 1 : 0;
  c.psn = more & 0x40 ? 0xFFFFFE : 100;
  return c;
}

End::End(const Config& config, std::uint32_t qpn, std::uint32_t peer, bool first)
    : config_(config), sq_(config.depth(), kMaxSge, kMaxInline), rq_(config.depth(), kMaxSge) {
  ib::QpInit init;
  init.type = config.type;
  init.qpn = qpn;
  init.pd = kPd;
  init.sq = &sq_;
  init.rq = &rq_;
  init.has_srq = config.srq;
  init.sq_sig_all = config.sig_all;
  init.max_inline = kMaxInline;
  qp_ = std::make_unique<ib::Qp>(init);
  attrs_.dest_qpn = peer;
  attrs_.sq_psn = first ? config.psn : config.psn + 7;
  attrs_.rq_psn = first ? config.psn + 7 : config.psn;
  attrs_.path_mtu = config.mtu;
  attrs_.qkey = kQkey;
  attrs_.access_flags = kRemoteAccess;
  attrs_.timeout = config.timeout;
  attrs_.retry_cnt = config.retry;
  attrs_.rnr_retry = config.retry;
  attrs_.min_rnr_timer = 1;
  attrs_.max_rd_atomic = config.rd_atomic;
  attrs_.max_dest_rd_atomic = config.rd_atomic;
}

void End::connect(Nanos now) {
  for (const QpState s : {QpState::init, QpState::rtr, QpState::rts}) qp_->modify(now, s, attrs_);
}

void End::modify(Nanos now, std::uint8_t choice) {
  const QpState s = qp_->state();
  switch (choice % 4) {
    case 0:
      qp_->modify(now, QpState::err, attrs_);
      break;
    case 1:
      qp_->modify(now, QpState::reset, attrs_);
      // Nothing of what was posted before completes any more; requests in an SRQ stay there.
      sends_done_ = sends_posted_;
      if (!config_.srq) recvs_done_ = recvs_posted_;
      connect(now);
      break;
    case 2:
      if (s == QpState::rts) qp_->modify(now, QpState::sqd, attrs_, (choice & 4) != 0);
      break;
    default:
      if (s == QpState::sqe || (s == QpState::sqd && !qp_->attrs().sq_draining)) qp_->modify(now, QpState::rts, attrs_);
  }
}

namespace {

// Requests that the device lets through to a QP of a type.
bool allowed(QpType type, WrOpcode op) {
  if (type == QpType::rc) return true;
  const bool send = op == WrOpcode::send || op == WrOpcode::send_with_imm;
  if (type == QpType::ud) return send;
  return send || op == WrOpcode::rdma_write || op == WrOpcode::rdma_write_with_imm || op == WrOpcode::local_inv ||
         op == WrOpcode::bind_mw;
}

std::uint32_t read_key(Reader& in) {
  constexpr std::uint32_t kKeys[] = {
      FuzzMemory::kKey,    FuzzMemory::kKey,        FuzzMemory::kKey,        FuzzMemory::kReadKey,
      FuzzMemory::kWindow, FuzzMemory::kWindow | 1, FuzzMemory::kKey | 0x55, 0};
  return kKeys[in.u8() & 7];
}

Sge read_sge(Reader& in, std::uint32_t length) {
  Sge s;
  s.addr = FuzzMemory::kBase + in.u16() % (FuzzMemory::kSize + 16);
  s.lkey = read_key(in);
  s.length = length;
  return s;
}

// Lengths around the multiples of the MTU.
std::uint32_t read_length(Reader& in) {
  const std::uint8_t v = in.u8();
  return (v >> 4) * 256u + (v & 0x0F) - (v & 0x0F && v >= 0x18 ? 8u : 0u);
}

}  // namespace

void End::post_send(Reader& in) {
  SendWqe* w = sq_.reserve();
  const auto op = static_cast<WrOpcode>(in.u8() % 10);
  const std::uint8_t flags = in.u8();
  if (w == nullptr || !allowed(config_.type, op)) return;
  *w = SendWqe();
  w->opcode = op;
  w->flags = flags & (kSendFence | kSendSignaled | kSendSolicited);
  w->imm_or_inv = flags & 0x10 ? read_key(in) : 0xDDCCBBAA;
  w->rkey = read_key(in);
  w->remote_addr = FuzzMemory::kBase + in.u16() % (FuzzMemory::kSize + 16);
  w->compare = in.u8();
  w->swap_or_add = in.u8();
  w->remote_qpn = attrs_.dest_qpn;
  w->remote_qkey = flags & 0x20 ? 0x80000000u : kQkey;
  w->bind = {FuzzMemory::kWindow, FuzzMemory::kWindow | (flags & 1u),
             FuzzMemory::kKey,    FuzzMemory::kBase,
             FuzzMemory::kSize,   kRemoteAccess};
  const bool atomic = op == WrOpcode::atomic_cmp_and_swp || op == WrOpcode::atomic_fetch_and_add;
  if ((flags & 0x40) != 0 && !atomic && op != WrOpcode::rdma_read) {
    w->flags |= kSendInline;
    w->length = in.u8() % (kMaxInline + 1);
    std::memset(sq_.inline_data(w), static_cast<int>(sends_posted_ & 0xFF), w->length);
  } else {
    w->num_sge = atomic ? 1 : in.u8() % (kMaxSge + 1);
    for (std::uint32_t i = 0; i < w->num_sge; ++i) {
      sq_.sges(w)[i] = read_sge(in, atomic ? 8 : read_length(in));
      w->length += sq_.sges(w)[i].length;
    }
  }
  w->wr_id = ++sends_posted_;
  signaled_.push_back(config_.sig_all || (w->flags & kSendSignaled) != 0);
  sq_.publish(1);
}

void End::post_recv(Reader& in) {
  Sge sges[kMaxSge];
  const std::uint32_t n = in.u8() % (kMaxSge + 1);
  for (std::uint32_t i = 0; i < n; ++i) sges[i] = read_sge(in, read_length(in));
  if (rq_.post(recvs_posted_ + 1, {sges, n})) ++recvs_posted_;
}

void End::check_packet(const ib::TxPacket& tx) const {
  const wire::BthView bth(tx.header);
  const ib::OpcodeInfo& info = ib::opcode_info(bth.opcode());
  FUZZ_CHECK(info.known() && tx.header_len == info.header_len && tx.is_request == info.request);
  const std::uint8_t transport = bth.opcode() & ib::kTransportMask;
  FUZZ_CHECK(transport == (config_.type == QpType::rc   ? ib::kTransportRc
                           : config_.type == QpType::uc ? ib::kTransportUc
                                                        : ib::kTransportUd));
  FUZZ_CHECK(bth.tver() == 0 && bth.pkey() == 0xFFFF && bth.dest_qpn() == attrs_.dest_qpn);
  FUZZ_CHECK(tx.dest_qpn == attrs_.dest_qpn);
  FUZZ_CHECK((tx.header[4] & 0x3F) == 0 && (tx.header[8] & 0x7F) == 0);
  FUZZ_CHECK(!bth.ack_req() || (transport == ib::kTransportRc && info.request));
  FUZZ_CHECK(bth.pad_count() == tx.pad && tx.pad == (-tx.payload.length & 3));
  const std::uint32_t length = tx.payload.length;
  switch (info.payload) {
    case ib::PayloadRule::empty:
      FUZZ_CHECK(length == 0);
      break;
    case ib::PayloadRule::full:
      FUZZ_CHECK(length == config_.mtu);
      break;
    case ib::PayloadRule::one_to_mtu:
      FUZZ_CHECK(length >= 1 && length <= config_.mtu);
      break;
    case ib::PayloadRule::up_to_mtu:
      FUZZ_CHECK(length <= config_.mtu);
  }
  std::uint32_t sum = 0;
  FUZZ_CHECK(tx.payload.count >= 0 && tx.payload.count <= ib::PayloadRef::kMaxPieces);
  for (int i = 0; i < tx.payload.count; ++i) sum += tx.payload.pieces[i].length;
  FUZZ_CHECK(sum == length);
}

Input End::take(Nanos now) {
  auto tx = std::make_unique<ib::TxPacket>();
  if (!qp_->poll_transmit(now, mem, tx.get())) return {};
  check_packet(*tx);
  FUZZ_CHECK(tx->more || !qp_->wants_transmit(now));
  Input p(tx->header_len + tx->payload.length + tx->pad);
  std::memcpy(p.data(), tx->header, tx->header_len);
  if (!ib::gather(mem, *tx, p.data() + tx->header_len)) {
    qp_->on_gather_fault(now);
    return {};
  }
  return p;
}

void End::receive(Nanos now, const Input& packet) {
  const Input exact(packet);  // without room behind its end
  static const std::uint8_t grh[40] = {0x60};
  ib::RxPacket rx;
  rx.bth = exact;
  rx.grh = grh;
  rx.has_grh = true;
  qp_->on_packet(now, mem, rx);
}

void End::tick(Nanos now) {
  // A timer that fires must move: it may not be due again at the same time.
  for (int i = 0; qp_->next_timeout() <= now; ++i) {
    FUZZ_CHECK(i < 4);
    qp_->on_timeout(now);
  }
}

void End::on_send_completion(const ib::QpEvent& e) {
  FUZZ_CHECK(e.wc.wr_id > sends_done_ && e.wc.wr_id <= sends_posted_);
  while (++sends_done_ < e.wc.wr_id) FUZZ_CHECK(!signaled_[sends_done_]);
  if (e.wc.status == WcStatus::success) {
    FUZZ_CHECK(signaled_[e.wc.wr_id]);
  } else {
    FUZZ_CHECK(e.wc.vendor_err != 0 && e.wc.solicited);
  }
  sq_.free_up_to(e.sq_free_to);
}

void End::on_recv_completion(const Completion& wc) {
  FUZZ_CHECK(wc.wr_id > recvs_done_ && wc.wr_id <= recvs_posted_);
  FUZZ_CHECK(config_.srq || wc.wr_id == recvs_done_ + 1);
  recvs_done_ = wc.wr_id;
  if (wc.status != WcStatus::success) FUZZ_CHECK(wc.vendor_err != 0 && wc.solicited);
  rq_.release_one();
}

void End::collect() {
  ib::QpEvent e;
  for (int n = 0; qp_->poll_event(&e); ++n) {
    FUZZ_CHECK(n < 1000);
    if (e.kind == ib::QpEvent::Kind::async) continue;
    FUZZ_CHECK(e.wc.qp_num == qp_->init().qpn);
    if (e.kind == ib::QpEvent::Kind::send_completion) {
      on_send_completion(e);
    } else {
      on_recv_completion(e.wc);
    }
  }
}

void End::finish(Nanos now) {
  qp_->modify(now, QpState::err, attrs_);
  for (int n = 0; qp_->wants_transmit(now); ++n) {
    FUZZ_CHECK(n < 1000);
    take(now);
  }
  collect();
  while (++sends_done_ <= sends_posted_) FUZZ_CHECK(!signaled_[sends_done_]);
  FUZZ_CHECK(config_.srq || recvs_done_ == recvs_posted_);
}

// --- the world ----------------------------------------------------------------------------------------

World::World(Reader& in)
    : in_(in),
      config_(Config::read(in)),
      a_(config_, kQpnA, kQpnB, true),
      b_(config_, kQpnB, kQpnA, false),
      wires_{{&a_, &b_, {}}, {&b_, &a_, {}}} {
  a_.connect(now_);
  b_.connect(now_);
}

void World::run() {
  for (int steps = 0; !in_.empty() && steps < 4000; ++steps) step(in_.u8());
  pump();
  a_.finish(now_);
  b_.finish(now_);
}

void World::send(Wire& w) {
  Input p = w.from->take(now_);
  if (!p.empty() && w.packets.size() < kMaxInFlight) w.packets.push_back(std::move(p));
}

void World::deliver(Wire& w, std::size_t index, bool keep) {
  if (w.packets.empty()) return;
  const auto at = w.packets.begin() + static_cast<std::ptrdiff_t>(index % w.packets.size());
  const Input p = *at;
  if (!keep) w.packets.erase(at);
  w.to->receive(now_, p);
}

void World::pump() {
  for (int moved = 1, n = 0; moved != 0 && n < 500; ++n) {
    moved = 0;
    for (Wire& w : wires_) {
      send(w);
      moved += !w.packets.empty();
      deliver(w, 0, false);
      w.to->collect();
      w.from->collect();
    }
  }
}

// The high bit names the end or direction, the low four the action.
void World::step(std::uint8_t op) {
  Wire& w = wires_[op >> 7];
  End& end = *w.from;
  switch (op & 0x0F) {
    case 0:
    case 1:
      end.post_send(in_);
      break;
    case 2:
      end.post_recv(in_);
      break;
    case 3:
      send(w);
      break;
    case 4:
      deliver(w, 0, false);
      break;
    case 5:  // out of order, or twice
      deliver(w, in_.u8(), (op & 0x10) != 0);
      break;
    case 6:
      if (!w.packets.empty()) w.packets.pop_front();
      break;
    case 7:  // a packet whose ICRC is right nevertheless
      if (!w.packets.empty() && !w.packets.front().empty()) {
        Input& p = w.packets.front();
        p[in_.u8() % p.size()] ^= in_.u8();
        deliver(w, 0, (op & 0x10) != 0);
      }
      break;
    case 8:
      w.to->receive(now_, in_.bytes(in_.u8()));
      break;
    case 9:  // shorter or longer
      if (!w.packets.empty()) w.packets.front().resize(in_.u16() % 1200);
      break;
    case 10:
      now_ += std::uint64_t{in_.u8()} << (op >> 4 & 7) * 4;
      a_.tick(now_);
      b_.tick(now_);
      break;
    case 11:
      end.modify(now_, in_.u8());
      break;
    case 12:
      end.mem.unmapped = (op & 0x10) != 0;
      end.mem.deregistered = (op & 0x20) != 0;
      break;
    case 13:
      pump();
      break;
    case 14:
      end.qp().postpone_timeout(now_);
      break;
    default:
      end.collect();
  }
}

}  // namespace softrnic::fuzz
