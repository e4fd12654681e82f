// A NIC process and processes attached to it, all inside the test: each Party is a VF of its own.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>
#include <catch2/catch.hpp>

#include "engine/control/server/nic_host.h"
#include "engine/nic/nic.h"
#include "protocols/roce/framing.h"

namespace softrnic::nic::test {

class Host {
 public:
  Host() {
    char name[] = "/tmp/softrnic-nic-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    dir_ = name;
    control::NicHostOptions o;
    o.dir = dir_;
    std::string why;
    const int rc = control::NicHost::create(std::move(o), &host_, &why);
    INFO(why);
    REQUIRE(rc == 0);
    host_->start();
  }
  ~Host() {
    host_.reset();
    const std::string command = "rm -rf '" + dir_ + "'";
    if (std::system(command.c_str()) != 0) WARN("cannot remove " << dir_);
  }
  const std::string& socket() const { return host_->socket_path(); }
  control::NicHost& host() { return *host_; }
  void kill() { host_.reset(); }

 private:
  std::string dir_;
  std::unique_ptr<control::NicHost> host_;
};

// Waits for something another thread does; only a broken test reaches the limit.
inline bool eventually(const std::function<bool()>& done) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

inline constexpr std::uint32_t kAllAccess =
    kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic | kAccessMwBind;

// A process: VF, opened device, PD, one CQ, memory.
class Party {
 public:
  explicit Party(const std::string& socket, std::uint32_t cqe = 256, std::size_t bytes = 1 << 16) : memory(bytes) {
    std::string why;
    const int rc = Vf::attach(socket, &vf, &why);
    INFO(why);
    REQUIRE(rc == 0);
    REQUIRE(Context::open(*vf, 0, &ctx) == 0);
    REQUIRE(ctx->alloc_pd(&pd) == 0);
    REQUIRE(CompletionQueue::create(*ctx, cqe, nullptr, nullptr, &cq) == 0);
    REQUIRE(ctx->reg_mr(pd, memory.data(), memory.size(), base(), kAllAccess, &mr) == 0);
  }
  explicit Party(Host& host) : Party(host.socket()) {}
  ~Party() {
    for (QueuePair* qp : qps) qp->destroy();
    if (mr != nullptr) ctx->dereg_mr(mr);
    cq->destroy();
    ctx->dealloc_pd(pd);
    ctx->close();
  }

  std::uint64_t base() const { return reinterpret_cast<std::uint64_t>(memory.data()); }

  QpCreate create_attrs(ib::QpType type = ib::QpType::rc) {
    QpCreate c;
    c.type = type;
    c.pd = pd;
    c.send_cq = c.recv_cq = cq;
    c.caps = {64, 64, 4, 4, 0};
    c.sq_sig_all = true;
    return c;
  }
  QueuePair* make_qp(QpCreate c) {
    QueuePair* qp = nullptr;
    REQUIRE(QueuePair::create(c, &qp) == 0);
    qps.push_back(qp);
    return qp;
  }
  QueuePair* make_qp(ib::QpType type = ib::QpType::rc) { return make_qp(create_attrs(type)); }
  void forget(QueuePair* qp) { std::erase(qps, qp); }

  // First GID of that type and family.
  std::uint8_t gid_index(std::uint8_t type = 1, bool ipv4 = true) const {
    control::GidRecord r;
    for (std::uint32_t i = 0; i < ctx->device().num_gids; ++i) {
      if (ctx->gid(i, &r) == 0 && r.type == type && roce::is_ipv4_mapped(r.gid) == ipv4) {
        return static_cast<std::uint8_t>(i);
      }
    }
    FAIL("no such GID");
    return 0;
  }
  Gid gid_at(std::uint8_t index) const {
    control::GidRecord r{};
    REQUIRE(ctx->gid(index, &r) == 0);
    return r.gid;
  }
  AddressVector address(std::uint8_t index) const {
    AddressVector av;
    av.is_global = true;
    av.sgid_index = index;
    av.dgid = gid_at(index);
    return av;
  }

  // Polls until `n` completions are there.
  std::vector<Completion> wait(std::size_t n) {
    std::vector<Completion> got;
    REQUIRE(eventually([&] {
      cq->poll(static_cast<int>(n - got.size()), [&](int, const CqEntry& e) { got.push_back(e.wc); });
      return got.size() >= n;
    }));
    return got;
  }
  // Nothing comes in a while.
  bool quiet(int polls = 50) {
    int n = 0;
    for (int i = 0; i < polls; ++i) {
      n += cq->poll(16, [](int, const CqEntry&) {});
      std::this_thread::yield();
    }
    return n == 0;
  }

  std::unique_ptr<Vf> vf;
  Context* ctx = nullptr;
  ProtectionDomain* pd = nullptr;
  CompletionQueue* cq = nullptr;
  MemoryRegion* mr = nullptr;
  std::vector<std::uint8_t> memory;
  std::vector<QueuePair*> qps;
};

inline constexpr std::uint32_t kInitMask = ib::kAttrState | ib::kAttrPkeyIndex | ib::kAttrPort | ib::kAttrAccessFlags;
inline constexpr std::uint32_t kUdInitMask = ib::kAttrState | ib::kAttrPkeyIndex | ib::kAttrPort | ib::kAttrQkey;
inline constexpr std::uint32_t kUcRtrMask =
    ib::kAttrState | ib::kAttrAv | ib::kAttrPathMtu | ib::kAttrDestQpn | ib::kAttrRqPsn;
inline constexpr std::uint32_t kRcRtrMask = kUcRtrMask | ib::kAttrMaxDestRdAtomic | ib::kAttrMinRnrTimer;
inline constexpr std::uint32_t kUcRtsMask = ib::kAttrState | ib::kAttrSqPsn;
inline constexpr std::uint32_t kRcRtsMask =
    kUcRtsMask | ib::kAttrTimeout | ib::kAttrRetryCnt | ib::kAttrRnrRetry | ib::kAttrMaxQpRdAtomic;

inline QpAttrsAll init_attrs() {
  QpAttrsAll a;
  a.state = ib::QpState::init;
  a.port_num = 1;
  a.ib.access_flags = kAllAccess;
  a.ib.qkey = 0x11111111;
  return a;
}
inline QpAttrsAll rtr_attrs(const AddressVector& av, std::uint32_t dest_qpn) {
  QpAttrsAll a;
  a.state = ib::QpState::rtr;
  a.av = av;
  a.path_mtu_enum = 3;
  a.ib.dest_qpn = dest_qpn;
  a.ib.rq_psn = 0xFFFFF0;
  a.ib.max_dest_rd_atomic = 4;
  a.ib.min_rnr_timer = 1;
  return a;
}
inline QpAttrsAll rts_attrs() {
  QpAttrsAll a;
  a.state = ib::QpState::rts;
  a.ib.sq_psn = 0xFFFFF0;
  a.ib.timeout = 14;
  a.ib.retry_cnt = 7;
  a.ib.rnr_retry = 7;
  a.ib.max_rd_atomic = 4;
  return a;
}
inline QpAttrsAll state_only(ib::QpState s) {
  QpAttrsAll a;
  a.state = s;
  return a;
}

inline void to_init(QueuePair* qp) {
  REQUIRE(qp->modify(init_attrs(), qp->type() == ib::QpType::ud ? kUdInitMask : kInitMask) == 0);
}
inline void to_rts(QueuePair* qp, const AddressVector& av, std::uint32_t dest_qpn) {
  const bool rc = qp->type() == ib::QpType::rc;
  if (qp->state() == ib::QpState::reset) to_init(qp);
  if (qp->type() == ib::QpType::ud) {
    REQUIRE(qp->modify(state_only(ib::QpState::rtr), ib::kAttrState) == 0);
  } else {
    REQUIRE(qp->modify(rtr_attrs(av, dest_qpn), rc ? kRcRtrMask : kUcRtrMask) == 0);
  }
  REQUIRE(qp->modify(rts_attrs(), rc ? kRcRtsMask : kUcRtsMask) == 0);
}

// Two connected QPs of two parties (or one).
struct Pair {
  Pair(Party& pa, Party& pb, ib::QpType type = ib::QpType::rc, std::uint8_t gid_type = 1, bool ipv4 = true)
      : a(pa.make_qp(type)), b(pb.make_qp(type)) {
    const std::uint8_t i = pa.gid_index(gid_type, ipv4);
    to_rts(a, pa.address(i), b->qpn());
    to_rts(b, pb.address(i), a->qpn());
  }
  Pair(QueuePair* end_a, QueuePair* end_b) : a(end_a), b(end_b) {}
  QueuePair* a;
  QueuePair* b;
};

struct Send {
  WrOpcode opcode = WrOpcode::send;
  std::uint64_t wr_id = 0;
  std::vector<Sge> sges = {};
  std::uint64_t remote_addr = 0;
  std::uint32_t rkey = 0;
  std::uint8_t flags = kSendSignaled;
  std::uint32_t imm_or_inv = 0;
  std::uint64_t compare = 0, swap_or_add = 0;
  std::string inline_bytes = {};
  std::uint32_t ah = 0, remote_qpn = 0, remote_qkey = 0x11111111;
  MemoryPort::MwBind bind = {};
};

// As the ABI layer posts: 0 or errno.
inline int post(QueuePair* qp, const Send& s) {
  qp->begin_post();
  SendWqe* w = qp->next_slot();
  if (w == nullptr) {
    qp->abort_post();
    return ENOMEM;
  }
  w->wr_id = s.wr_id;
  w->opcode = s.opcode;
  w->flags = s.flags;
  w->imm_or_inv = s.imm_or_inv;
  w->rkey = s.rkey;
  w->remote_addr = s.remote_addr;
  w->compare = s.compare;
  w->swap_or_add = s.swap_or_add;
  w->bind = s.bind;
  w->ah = s.ah;
  w->remote_qpn = s.remote_qpn;
  w->remote_qkey = s.remote_qkey;
  int rc = 0;
  if (!s.inline_bytes.empty()) {
    w->flags |= kSendInline;
    w->length = static_cast<std::uint32_t>(s.inline_bytes.size());
    if (w->length <= qp->caps().max_inline) std::memcpy(qp->inline_data(w), s.inline_bytes.data(), w->length);
  } else if (s.sges.size() > qp->caps().max_send_sge) {
    rc = EINVAL;
  } else {
    w->num_sge = static_cast<std::uint16_t>(s.sges.size());
    for (std::size_t i = 0; i < s.sges.size(); ++i) qp->sges(w)[i] = s.sges[i];
  }
  if (rc == 0) rc = qp->accept_slot(w);
  qp->end_post();
  return rc;
}

inline Sge sge(const Party& p, std::uint64_t offset, std::uint32_t length) {
  return {p.base() + offset, length, p.mr->lkey};
}
inline int recv(QueuePair* qp, std::uint64_t wr_id, const Sge& s) { return qp->post_recv(wr_id, {&s, 1}); }

}  // namespace softrnic::nic::test
