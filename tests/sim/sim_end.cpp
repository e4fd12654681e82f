#include "tests/sim/sim_end.h"

#include "protocols/ib/opcode.h"
#include "protocols/wire/bth.h"

namespace softrnic::sim {
namespace {

constexpr std::uint32_t kMaxSge = 4;
constexpr std::uint32_t kGrhArea = 40;
constexpr std::uint32_t kBadKey = 0x666;

bool takes_recv(WrOpcode op) {
  return op == WrOpcode::send || op == WrOpcode::send_with_imm || op == WrOpcode::rdma_write_with_imm;
}
bool is_local(WrOpcode op) { return op == WrOpcode::local_inv || op == WrOpcode::bind_mw; }
// Immediate data of a message, and the key by which the execution of a local request is known.
std::uint32_t tag(std::uint64_t id) {
  return static_cast<std::uint32_t>(id >> 32) << 16 | static_cast<std::uint16_t>(id);
}
bool is_atomic(WrOpcode op) { return op == WrOpcode::atomic_fetch_and_add || op == WrOpcode::atomic_cmp_and_swp; }

}  // namespace

End::End(World& world, HostMemory& memory, std::uint32_t number, const EndConfig& config,
         std::shared_ptr<RecvPool> pool, bool srq)
    : world_(world),
      memory_(memory),
      number_(number),
      config_(config),
      srq_(srq),
      pool_(std::move(pool)),
      sq_(std::make_unique<SendQueue>(config.sq_depth, kMaxSge, 64)) {
  QpInit init;
  init.type = config.type;
  init.qpn = 0x100 + number;
  init.pd = 1;
  init.sq = sq_.get();
  init.rq = pool_->queue.get();
  init.has_srq = srq;
  init.sq_sig_all = config.sig_all;
  init.max_inline = 64;
  qp_ = std::make_unique<Qp>(init);
  sent_.reserve(config.messages);
}

void End::connect(End& peer, std::size_t peer_counter) {
  peer_ = &peer;
  peer_counter_ = peer_counter;
  swap_word_ = peer.memory_.allocate(8);
  swap_value_ = world_.rng.next();
  peer.memory_.store64(swap_word_, swap_value_);
  QpAttrs a;
  a.dest_qpn = peer.qp_->init().qpn;
  // Close to the wrap of the PSN space, often.
  a.sq_psn = (0xFFFFFF - 37 * number_) & kPsnMask;
  a.rq_psn = (0xFFFFFF - 37 * peer.number_) & kPsnMask;
  a.path_mtu = config_.mtu;
  a.qkey = 0x11111111;
  a.access_flags = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;
  a.timeout = config_.timeout;
  a.retry_cnt = 7;
  a.rnr_retry = 7;
  a.min_rnr_timer = config_.min_rnr_timer;
  a.max_rd_atomic = static_cast<std::uint8_t>(config_.rd_atomic);
  a.max_dest_rd_atomic = static_cast<std::uint8_t>(peer.config_.rd_atomic);
  qp_->modify(world_.now, QpState::init, a);
  qp_->modify(world_.now, QpState::rtr, a);
  qp_->modify(world_.now, QpState::rts, a);
  world_.at(world_.now + world_.rng.below(20'000), Event::Kind::app, number_);
}

// --- the program -----------------------------------------------------------------------------------

void End::on_app() {
  post_recvs();
  post_sends();
  service();
  if (!finished() && !failed_) {
    world_.at(world_.now + 1'000 + world_.rng.below(60'000), Event::Kind::app, number_);
  } else if (!peer_->finished() && !peer_->failed_) {
    // Receives for the peer as long as it sends.
    world_.at(world_.now + 10'000 + world_.rng.below(60'000), Event::Kind::app, number_);
  }
}

void End::post_sends() {
  if (failed_) return;
  for (std::uint32_t n = world_.rng.below(6); n > 0 && sent_.size() < config_.messages; --n) {
    if (sq_->reserve() == nullptr) return;
    post_one();
    if (sent_.size() - 1 == config_.kill_at) {
      killed_ = true;
      qp_->modify(world_.now, QpState::err, qp_->attrs());
      return;
    }
  }
}

void End::post_one() {
  SendWqe* w = sq_->reserve();
  sent_.emplace_back();
  SentMessage& m = sent_.back();
  *w = SendWqe();
  w->wr_id = sent_.size() - 1;
  m.id = (std::uint64_t{number_} << 32) | (sent_.size() - 1);
  if (config_.type == QpType::ud) {
    choose_datagram(m, *w);
  } else {
    choose(m, *w);
  }
  // The last of a full queue is signaled, or the queue would never move again.
  const bool must = sent_.size() == config_.messages || sent_.size() % (config_.sq_depth / 2) == 0;
  m.signaled = must || world_.rng.below(2) == 0;
  if (m.signaled) w->flags |= kSendSignaled;
  if (world_.rng.permille(100)) w->flags |= kSendFence;
  w->opcode = m.opcode;
  w->length = m.length;
  w->rkey = HostMemory::kKey;
  if (sent_.size() - 1 == config_.bad_request_at) {
    m.poisoned = true;
    w->rkey = kBadKey;
  }
  w->imm_or_inv = tag(m.id);
  w->bind.mw_rkey = tag(m.id);
  w->remote_addr = peer_->memory_.address(m.remote);
  w->remote_qpn = peer_->qp_->init().qpn;
  w->remote_qkey = 0x11111111;
  const bool outgoing = takes_recv(m.opcode) || m.opcode == WrOpcode::rdma_write;
  if (outgoing && m.length <= 64 && world_.rng.below(3) == 0) {
    w->flags |= kSendInline;
    w->num_sge = 0;
    fill_pattern(sq_->inline_data(w), m.length, m.id);
  } else {
    const auto sges = split(m.local, m.length);
    w->num_sge = static_cast<std::uint16_t>(sges.size());
    std::copy(sges.begin(), sges.end(), sq_->sges(w));
    if (outgoing) memory_.store_pattern(m.local, m.length, m.id);
  }
  if (config_.type == QpType::rc && takes_recv(m.opcode)) {
    peer_->incoming_.push_back(static_cast<std::uint32_t>(sent_.size() - 1));
  }
  sq_->publish(1);
}

// A request for RC or UC.
void End::choose(SentMessage& m, SendWqe& w) {
  Rng& rng = world_.rng;
  const bool poisoned = sent_.size() - 1 == config_.bad_request_at;
  static constexpr WrOpcode kRc[] = {WrOpcode::send,
                                     WrOpcode::send_with_imm,
                                     WrOpcode::rdma_write,
                                     WrOpcode::rdma_write_with_imm,
                                     WrOpcode::rdma_read,
                                     WrOpcode::atomic_fetch_and_add,
                                     WrOpcode::atomic_cmp_and_swp,
                                     WrOpcode::rdma_read,
                                     WrOpcode::local_inv,
                                     WrOpcode::bind_mw};
  m.opcode = poisoned ? WrOpcode::rdma_write : kRc[rng.below(config_.type == QpType::rc ? 10 : 4)];
  if (is_local(m.opcode)) return;
  if (is_atomic(m.opcode)) {
    m.length = 8;
    m.local = memory_.allocate(8);
    const bool swap = m.opcode == WrOpcode::atomic_cmp_and_swp;
    m.remote = swap ? swap_word_ : peer_counter_;
    w.swap_or_add = 1;
    if (swap) {
      // A chain in which each link holds only if the one before was executed exactly once.
      m.expect = swap_value_;
      w.compare = swap_value_;
      swap_value_ = swap_value_ * 31 + 1;
      w.swap_or_add = swap_value_;
    }
    return;
  }
  const std::uint32_t mtu = config_.mtu;
  switch (rng.below(6)) {
    case 0:
      m.length = rng.below(9);
      break;
    case 1:
      m.length = mtu * rng.between(1, 3);
      break;
    case 2:
      m.length = rng.below(8 * mtu);
      break;
    case 3:
      m.length = mtu * rng.between(1, 2) + 1;
      break;
    default:
      m.length = rng.below(2 * mtu);
      break;
  }
  if (poisoned && m.length == 0) m.length = 1;
  if (config_.type == QpType::uc && m.length < 16) m.length = 16;
  m.local = memory_.allocate(m.length);
  if (m.opcode == WrOpcode::rdma_write || m.opcode == WrOpcode::rdma_write_with_imm) {
    m.remote = peer_->memory_.allocate(m.length);
  } else if (m.opcode == WrOpcode::rdma_read) {
    // What an earlier WRITE of this QP put there, even if that is still on its way (IBA 10.8.3.3).
    for (std::size_t i = sent_.size() - 1; i-- > 0;) {
      const SentMessage& e = sent_[i];
      if (e.opcode != WrOpcode::rdma_write || e.poisoned || rng.below(2) == 0) continue;
      m.id = e.id;
      m.length = e.length;
      m.remote = e.remote;
      m.local = memory_.allocate(m.length);
      return;
    }
    m.remote = peer_->memory_.allocate(m.length);
    peer_->memory_.store_pattern(m.remote, m.length, m.id);
  }
}

void End::choose_datagram(SentMessage& m, SendWqe&) {
  m.opcode = world_.rng.below(2) == 0 ? WrOpcode::send : WrOpcode::send_with_imm;
  m.length = world_.rng.between(16, config_.mtu);
  m.local = memory_.allocate(m.length);
}

std::vector<Sge> End::split(std::size_t offset, std::uint32_t length) {
  std::vector<Sge> v;
  for (std::uint32_t n = world_.rng.below(kMaxSge); n > 0 && length > 1; --n) {
    const std::uint32_t part = world_.rng.below(length);
    v.push_back({memory_.address(offset), part, HostMemory::kKey});
    offset += part;
    length -= part;
  }
  if (length != 0) v.push_back({memory_.address(offset), length, HostMemory::kKey});
  return v;
}

// Sometimes too few, so that RNR NAKs happen.
void End::post_recvs() {
  const std::uint32_t length = 8 * 512 + kGrhArea;  // the longest of any user of an SRQ
  for (std::uint32_t n = world_.rng.below(6); n > 0; --n) {
    const std::size_t wr_id = pool_->posted.size();
    if (pool_->queue->available() >= pool_->queue->depth()) return;
    const std::size_t offset = memory_.allocate(length);
    if (!pool_->queue->post(wr_id, split(offset, length))) return;
    memory_.loosen(offset, length);
    pool_->posted.push_back({offset, length, false});
  }
}

// --- the device ------------------------------------------------------------------------------------

void End::on_frame(const Event& e) {
  const Bytes bytes = world_.receive(e.frame);
  if (!bytes.empty()) {
    RxPacket rx;
    rx.bth = bytes;
    qp_->on_packet(world_.now, memory_, rx);
  }
  world_.abandon(e.frame);
  service();
}

void End::on_timer() {
  armed_ = kNever;
  if (qp_->next_timeout() <= world_.now) {
    if (world_.rng.permille(50)) {
      qp_->postpone_timeout(world_.now);
    }
    if (qp_->next_timeout() <= world_.now) qp_->on_timeout(world_.now);
  }
  service();
}

void End::service() {
  collect();  // also before what is owed has been handed out
  transmit();
  collect();
  arm();
}

void End::transmit() {
  // The way out is full now and then.
  std::uint32_t budget = world_.rng.below(10) == 0 ? 0 : world_.rng.between(1, 24);
  TxPacket tx;
  while (budget > 0 && qp_->poll_transmit(world_.now, memory_, &tx)) {
    --budget;
    require(tx.more || !qp_->wants_transmit(world_.now), "more to send than the packet says");
    std::uint32_t frame = 0;
    std::uint8_t* p = world_.begin_frame(tx.header_len + tx.payload.length + tx.pad, &frame);
    std::memcpy(p, tx.header, tx.header_len);
    require(gather(memory_, tx, p + tx.header_len), "gather failed");
    note_sent(tx);
    world_.send(frame, peer_->number_);
  }
  if (qp_->wants_transmit(world_.now)) world_.at(world_.now + 500, Event::Kind::service, number_);
}

void End::arm() {
  const Nanos t = qp_->next_timeout();
  if (t >= armed_) return;
  armed_ = t;
  world_.at(t > world_.now ? t : world_.now, Event::Kind::timer, number_);
}

// Watches what leaves: PSNs of messages with a completion at the peer, and what has been acknowledged.
void End::note_sent(const TxPacket& p) {
  if (config_.type != QpType::rc) return;
  const wire::BthView bth(p.header);
  const OpcodeInfo& info = opcode_info(bth.opcode());
  if (info.request) {
    if (!info.last || !(info.kind == OpKind::send || info.imm)) return;
    if (any_announced_ && psn_diff(bth.psn(), announced_psn_) <= 0) return;
    any_announced_ = true;
    announced_psn_ = bth.psn();
    announced_.push_back(bth.psn());
    return;
  }
  if (!any_acknowledged_ || psn_diff(bth.psn(), acknowledged_psn_) > 0) acknowledged_psn_ = bth.psn();
  any_acknowledged_ = true;
}

// --- completions -----------------------------------------------------------------------------------

void End::collect() {
  QpEvent e;
  while (qp_->poll_event(&e)) {
    switch (e.kind) {
      case QpEvent::Kind::send_completion:
        on_send_completion(e);
        break;
      case QpEvent::Kind::recv_completion:
        on_recv_completion(e.wc);
        break;
      case QpEvent::Kind::async:
        if (e.async == AsyncEvent::qp_last_wqe_reached) ++last_wqe_events_;
        break;
    }
  }
}

void End::on_send_completion(const QpEvent& e) {
  const Completion& wc = e.wc;
  require(wc.qp_num == qp_->init().qpn, "completion of another QP");
  // Requests between the last completion and this one were successful and unsignaled.
  require(wc.wr_id >= next_completion_ && wc.wr_id < sent_.size(), "send completion twice or out of order");
  const bool error = wc.status != WcStatus::success;
  if (failed_) require(wc.status == WcStatus::wr_flush_err, "after an error everything is flushed");
  for (; next_completion_ < wc.wr_id; ++next_completion_) {
    require(!config_.sig_all && !sent_[next_completion_].signaled && !failed_, "a completion is missing");
    check_result(sent_[next_completion_]);
  }
  SentMessage& m = sent_[next_completion_++];
  if (error) {
    on_send_error(m, wc.status);
  } else {
    require(config_.sig_all || m.signaled, "completion of an unsignaled request");
    require(!m.poisoned, "a request with a wrong R_Key succeeded");
    if (m.opcode == WrOpcode::rdma_read) require(wc.byte_len == m.length, "length of a READ");
    check_result(m);
  }
  sq_->free_up_to(e.sq_free_to);
}

// What may go wrong: our bad request is refused; the QP was moved to ERR by us, or by a bad request of
// the peer; the peer does not answer any more, or its NAK was lost.
void End::on_send_error(SentMessage& m, WcStatus status) {
  const bool peer_gone = peer_->config_.bad_request_at != ~0u || peer_->config_.kill_at != ~0u;
  const bool may_flush = killed_ || peer_->config_.bad_request_at != ~0u;
  if (!failed_) {
    if (status == WcStatus::rem_access_err) {
      require(m.poisoned, "REM_ACCESS_ERR of a good request");
    } else if (status == WcStatus::retry_exc_err) {
      require(peer_gone || config_.bad_request_at != ~0u, "RETRY_EXC_ERR on a working connection");
    } else {
      const std::string what = "first failed request has status " + std::to_string(static_cast<int>(status));
      require(status == WcStatus::wr_flush_err && may_flush, what.c_str());
    }
  }
  failed_ = true;
}

// A request has completed with success: its result is there.
void End::check_result(SentMessage& m) {
  switch (m.opcode) {
    case WrOpcode::rdma_read:
      require(matches_pattern(memory_.at(m.local), m.length, m.id), "READ brought wrong data");
      memory_.expect_pattern(m.local, m.length, m.id);
      break;
    case WrOpcode::rdma_write:
    case WrOpcode::rdma_write_with_imm:
      if (config_.type == QpType::rc) {
        require(matches_pattern(peer_->memory_.at(m.remote), m.length, m.id), "WRITE complete but not in memory");
        peer_->memory_.expect_pattern(m.remote, m.length, m.id);
      }
      break;
    case WrOpcode::atomic_cmp_and_swp:
      require(memory_.load64(m.local) == m.expect, "CmpSwap was not executed exactly once");
      memory_.expect64(m.local, m.expect);
      break;
    case WrOpcode::atomic_fetch_and_add:
      ++fetch_adds_done;
      fetch_add_originals.push_back(memory_.load64(m.local));
      memory_.expect64(m.local, memory_.load64(m.local));
      break;
    case WrOpcode::local_inv:
    case WrOpcode::bind_mw:
      require(memory_.executed(tag(m.id)) == 1, "a local request was not executed exactly once");
      break;
    default:
      break;
  }
  m.settled = true;
}

void End::on_recv_completion(const Completion& wc) {
  require(wc.qp_num == qp_->init().qpn, "completion of another QP");
  require(wc.wr_id < pool_->posted.size(), "completion of an unknown receive");
  PostedRecv& r = pool_->posted[wc.wr_id];
  require(!r.done, "receive completed twice");
  // A private queue completes in order.
  require(srq_ || wc.wr_id == pool_->completed, "receive completed out of order");
  r.done = true;
  ++pool_->completed;
  pool_->queue->release_one();
  if (wc.status != WcStatus::success) {
    require(wc.status == WcStatus::wr_flush_err || peer_->config_.bad_request_at != ~0u, "status of a receive");
    require(qp_->state() == QpState::err, "receive flushed by a living QP");
    return;
  }
  if (config_.type == QpType::rc) {
    check_stream_recv(wc, r);
  } else {
    check_datagram_recv(wc, r);
  }
}

// RC: exactly the peer's next message.
void End::check_stream_recv(const Completion& wc, const PostedRecv& r) {
  require(!incoming_.empty(), "receive without a message");
  const SentMessage& m = peer_->sent_[incoming_.front()];
  incoming_.pop_front();
  const std::uint32_t imm = tag(m.id);
  require(!peer_->announced_.empty(), "receive of a message never sent");
  // A QP in ERR acknowledges nothing any more.
  require(qp_->state() == QpState::err ||
              (any_acknowledged_ && psn_diff(acknowledged_psn_, peer_->announced_.front()) >= 0),
          "receive visible before its acknowledgement was handed out");
  peer_->announced_.pop_front();
  require(wc.byte_len == m.length, "length of a receive");
  const std::size_t where = m.opcode == WrOpcode::rdma_write_with_imm ? m.remote : r.offset;
  require(matches_pattern(memory_.at(where), m.length, m.id), "data of a receive");
  require((m.opcode == WrOpcode::rdma_write_with_imm) == (wc.opcode == WcOpcode::recv_rdma_with_imm), "receive opcode");
  if (m.opcode != WrOpcode::send) require(wc.wc_flags == kWcWithImm && wc.imm_or_rkey == imm, "immediate data");
}

// UC, UD: some message of the peer, whole.
void End::check_datagram_recv(const Completion& wc, const PostedRecv& r) {
  const std::uint32_t skip = config_.type == QpType::ud ? kGrhArea : 0;
  if (wc.opcode == WcOpcode::recv_rdma_with_imm) {
    for (const SentMessage& m : peer_->sent_) {
      if (m.opcode != WrOpcode::rdma_write_with_imm) continue;
      if (tag(m.id) != wc.imm_or_rkey) continue;
      require(matches_pattern(memory_.at(m.remote), wc.byte_len, m.id), "data of a WRITE with immediate");
      return;
    }
    throw SimFailure("immediate data nobody sent");
  }
  for (const SentMessage& m : peer_->sent_) {
    if (m.opcode != WrOpcode::send && m.opcode != WrOpcode::send_with_imm) continue;
    if (!matches_pattern(memory_.at(r.offset + skip), 16, m.id)) continue;
    require(matches_pattern(memory_.at(r.offset + skip), wc.byte_len - skip, m.id), "data of a receive");
    require((m.opcode == WrOpcode::send_with_imm) == ((wc.wc_flags & kWcWithImm) != 0), "immediate flag");
    return;
  }
  throw SimFailure("received what nobody sent");
}

void End::shut_down() {
  qp_->modify(world_.now, QpState::err, qp_->attrs());
  collect();
  require(qp_->state() == QpState::err && !qp_->wants_transmit(world_.now) && qp_->next_timeout() == kNever,
          "a QP in ERR is active");
  require(next_completion_ == sent_.size() || !sent_.back().signaled || failed_, "send requests without a completion");
  require(last_wqe_events_ == (srq_ ? 1 : 0), "LAST_WQE_REACHED");
  if (!srq_) {
    require(pool_->completed == pool_->posted.size(), "receive requests without a completion");
    for (const PostedRecv& r : pool_->posted) require(r.done, "receive request without a completion");
  }
}

void End::settle(End& peer) {
  for (const SentMessage& m : sent_) {
    require(!is_local(m.opcode) || memory_.executed(tag(m.id)) <= 1, "a local request was executed twice");
    const bool write = m.opcode == WrOpcode::rdma_write || m.opcode == WrOpcode::rdma_write_with_imm;
    if (m.settled && config_.type == QpType::rc) continue;
    if (write && !m.poisoned) peer.memory_.loosen(m.remote, m.length);
    if (m.opcode == WrOpcode::rdma_read || is_atomic(m.opcode)) memory_.loosen(m.local, m.length);
  }
  if (failed_) {
    peer.memory_.loosen(swap_word_, 8);
  } else {
    peer.memory_.expect64(swap_word_, swap_value_);
  }
}

}  // namespace softrnic::sim
