// Two connected QPs in one process, with virtual time and every packet passing through the test's hands.
#pragma once

#include <deque>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "protocols/common/psn.h"
#include "protocols/ib/aeth_codes.h"
#include "protocols/ib/opcode.h"
#include "protocols/ib/qp.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"
#include "tests/unit/ib/test_memory.h"

namespace softrnic::test {

using namespace softrnic::ib;

inline constexpr std::uint32_t kAllRemote = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;
inline constexpr std::uint32_t kAllAccess = kAllRemote | kAccessLocalWrite;

// A transport packet as it crosses the wire.
struct Packet {
  std::vector<std::uint8_t> bytes;
  bool is_request = false;

  wire::BthView bth() const { return wire::BthView(bytes.data()); }
  const OpcodeInfo& info() const { return opcode_info(bytes[0]); }
  Op op() const { return static_cast<Op>(bytes[0] & 0x1F); }
  std::uint32_t psn() const { return bth().psn(); }
  std::uint32_t payload_len() const {
    return static_cast<std::uint32_t>(bytes.size()) - info().header_len - bth().pad_count();
  }
  const std::uint8_t* payload() const { return bytes.data() + info().header_len; }
  wire::Reth reth() const { return wire::Reth::read(bytes.data() + info().reth); }
  wire::Aeth aeth() const { return wire::Aeth::read(bytes.data() + info().aeth); }
  std::uint8_t syndrome() const { return aeth().syndrome; }
  // "SEND Only 5", "Acknowledge 5 00": what an exchange is compared by.
  std::string text() const {
    std::string s = std::string(info().name != nullptr ? info().name + 3 : "unknown") + " " + std::to_string(psn());
    if (info().kind == OpKind::ack) {
      static const char* const kTypes[] = {" ACK", " RNR", " ?", " NAK"};
      s += kTypes[(syndrome() >> 5) & 3];
      if ((syndrome() & kSyndromeTypeMask) == kSyndromeNak) s += std::to_string(syndrome() & kSyndromeValueMask);
    }
    return s;
  }
};

// One end: a QP with its queues and memory.
struct End {
  TestMemory mem;
  std::vector<std::uint8_t> buf;  // registered with all rights
  std::uint32_t key = 0;
  std::unique_ptr<SendQueue> sq;
  std::unique_ptr<RecvQueue> rq;
  std::unique_ptr<Qp> qp;
  QpAttrs attrs;
  std::vector<QpEvent> events;

  std::uint64_t addr(std::size_t offset = 0) const { return reinterpret_cast<std::uint64_t>(buf.data()) + offset; }
  Sge sge(std::size_t offset, std::uint32_t length) const { return {addr(offset), length, key}; }
  std::uint64_t& word(std::size_t offset) { return *reinterpret_cast<std::uint64_t*>(buf.data() + offset); }

  // Posts a send request; `w` needs no num_sge and length.
  bool post_send(SendWqe w, std::vector<Sge> sges = {}) {
    SendWqe* slot = sq->reserve();
    if (slot == nullptr) return false;
    w.num_sge = static_cast<std::uint16_t>(sges.size());
    w.length = 0;
    for (const Sge& s : sges) w.length += s.length;
    *slot = w;
    std::copy(sges.begin(), sges.end(), sq->sges(slot));
    sq->publish(1);
    return true;
  }
  bool post_recv(std::uint64_t wr_id, std::vector<Sge> sges) { return rq->post(wr_id, sges); }

  // Takes all events of the QP, frees slots as a polled CQ would.
  void collect() {
    QpEvent e;
    while (qp->poll_event(&e)) {
      if (e.kind == QpEvent::Kind::send_completion) sq->free_up_to(e.sq_free_to);
      if (e.kind == QpEvent::Kind::recv_completion) rq->release_one();
      events.push_back(e);
    }
  }
  std::vector<Completion> completions(QpEvent::Kind kind) const {
    std::vector<Completion> v;
    for (const QpEvent& e : events) {
      if (e.kind == kind) v.push_back(e.wc);
    }
    return v;
  }
  std::vector<Completion> sends() const { return completions(QpEvent::Kind::send_completion); }
  std::vector<Completion> recvs() const { return completions(QpEvent::Kind::recv_completion); }
  int count(AsyncEvent a) const {
    int n = 0;
    for (const QpEvent& e : events) n += e.kind == QpEvent::Kind::async && e.async == a;
    return n;
  }
};

struct PairConfig {
  QpType type = QpType::rc;
  std::uint32_t mtu = 256;
  std::uint32_t sq_depth = 128, rq_depth = 128, max_sge = 4, max_inline = 64;
  std::uint32_t psn_a = 100, psn_b = 7000;  // first PSN sent by each
  bool srq = false;                         // both ends
  bool sig_all = true;
  std::uint8_t timeout = 14, retry_cnt = 7, rnr_retry = 7, min_rnr_timer = 12;
  std::uint8_t rd_atomic = 4;
  std::uint32_t access = kAllRemote;
  std::size_t buf_size = 64 * 1024;
  bool connect = true;
};

class Pair {
 public:
  explicit Pair(PairConfig config = {}) : cfg(config) {
    make(a, 0x11, 0x12, cfg.psn_a, cfg.psn_b);
    make(b, 0x12, 0x11, cfg.psn_b, cfg.psn_a);
    if (cfg.connect) {
      to_rts(a);
      to_rts(b);
    }
  }

  PairConfig cfg;
  End a, b;
  Nanos now = 1'000'000;
  // Sees every packet on its way; false drops it.
  std::function<bool(bool from_a, Packet&)> tap;
  // Every packet sent so far, dropped ones included.
  std::vector<std::pair<bool, Packet>> log;

  void to_init(End& e) { e.qp->modify(now, QpState::init, e.attrs); }
  void to_rtr(End& e) {
    to_init(e);
    e.qp->modify(now, QpState::rtr, e.attrs);
  }
  void to_rts(End& e) {
    to_rtr(e);
    e.qp->modify(now, QpState::rts, e.attrs);
  }

  // The next packet `from` has to send, if any, without delivering it.
  std::optional<Packet> take(End& from) {
    TxPacket tx;
    if (!from.qp->poll_transmit(now, from.mem, &tx)) return std::nullopt;
    Packet p;
    p.is_request = tx.is_request;
    p.bytes.assign(tx.header, tx.header + tx.header_len);
    p.bytes.resize(tx.header_len + tx.payload.length + tx.pad);
    if (!gather(from.mem, tx, p.bytes.data() + tx.header_len)) {
      from.qp->on_gather_fault(now);
      return take(from);
    }
    log.emplace_back(&from == &a, p);
    return p;
  }
  void deliver(End& to, const Packet& p) {
    RxPacket rx;
    rx.bth = p.bytes;
    to.qp->on_packet(now, to.mem, rx);
  }
  // Moves packets until both ends are quiet. `from_a_first` decides who sends when both can.
  void pump() {
    for (bool moved = true; moved;) {
      moved = move(a, b);
      moved |= move(b, a);
    }
    a.collect();
    b.collect();
  }
  // One packet from `from` to `to`; then what `to` owes for it.
  bool move(End& from, End& to) {
    auto p = take(from);
    if (!p) return false;
    if (!tap || tap(&from == &a, *p)) deliver(to, *p);
    from.collect();
    to.collect();
    return true;
  }
  // Lets time pass, with timers, until nothing is due for `span`.
  void run_for(Nanos span) {
    const Nanos end = now + span;
    pump();
    for (;;) {
      const Nanos t = std::min(a.qp->next_timeout(), b.qp->next_timeout());
      if (t > end) break;
      now = std::max(now, t);
      if (a.qp->next_timeout() <= now) a.qp->on_timeout(now);
      if (b.qp->next_timeout() <= now) b.qp->on_timeout(now);
      pump();
    }
    now = end;
  }

  // Exchange so far as lines "> SEND Only 100", "< Acknowledge 100 ACK".
  std::vector<std::string> exchange() const {
    std::vector<std::string> v;
    for (const auto& [from_a, p] : log) v.push_back((from_a ? "> " : "< ") + p.text());
    return v;
  }

  SendWqe send(std::uint64_t wr_id, WrOpcode op = WrOpcode::send, std::uint8_t flags = 0) const {
    SendWqe w;
    w.wr_id = wr_id;
    w.opcode = op;
    w.flags = flags;
    w.remote_qpn = 0x12;
    w.remote_qkey = 0x1234;
    w.rkey = b.key;
    w.remote_addr = b.addr();
    return w;
  }

 private:
  void make(End& e, std::uint32_t qpn, std::uint32_t peer, std::uint32_t sq_psn, std::uint32_t rq_psn) {
    e.buf.resize(cfg.buf_size);
    // The two ends differ in every byte, so that no copy goes unseen.
    for (std::size_t i = 0; i < e.buf.size(); ++i)
      e.buf[i] = static_cast<std::uint8_t>(i * 7 + (i >> 8) * 13 + qpn * 31);
    e.key = e.mem.add(e.buf.data(), e.buf.size(), kAllAccess);
    e.sq = std::make_unique<SendQueue>(cfg.sq_depth, cfg.max_sge, cfg.max_inline);
    e.rq = std::make_unique<RecvQueue>(cfg.rq_depth, cfg.max_sge);
    QpInit init;
    init.type = cfg.type;
    init.qpn = qpn;
    init.pd = 1;
    init.sq = e.sq.get();
    init.rq = e.rq.get();
    init.has_srq = cfg.srq;
    init.sq_sig_all = cfg.sig_all;
    init.max_inline = cfg.max_inline;
    e.qp = std::make_unique<Qp>(init);
    e.attrs.dest_qpn = peer;
    e.attrs.sq_psn = sq_psn;
    e.attrs.rq_psn = rq_psn;
    e.attrs.path_mtu = cfg.mtu;
    e.attrs.qkey = 0x1234;
    e.attrs.access_flags = cfg.access;
    e.attrs.timeout = cfg.timeout;
    e.attrs.retry_cnt = cfg.retry_cnt;
    e.attrs.rnr_retry = cfg.rnr_retry;
    e.attrs.min_rnr_timer = cfg.min_rnr_timer;
    e.attrs.max_rd_atomic = cfg.rd_atomic;
    e.attrs.max_dest_rd_atomic = cfg.rd_atomic;
  }
};

}  // namespace softrnic::test
