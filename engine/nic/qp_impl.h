// The engine's part of a queue pair.
#pragma once

#include <atomic>
#include <memory>

#include "engine/nic/intrusive_list.h"
#include "engine/nic/nic.h"
#include "protocols/roce/framing.h"

namespace softrnic::nic {

// A fabric path and the queue pairs that wait for room on it.
struct PathState;

// Where a QP waits to be served.
enum class Waiting : std::uint8_t {
  no,
  active,   // in Vf::Impl::active
  blocked,  // in the list of its path
};

struct QueuePair::Impl {
  Impl(QueuePair* owner, Vf::Impl& engine, const QpCreate& in, const QpCaps& granted, const ib::QpInit& init,
       std::unique_ptr<SendQueue> send, std::unique_ptr<RecvQueue> recv)
      : self(owner),
        vf(engine),
        pd(in.pd),
        send_cq(in.send_cq),
        recv_cq(in.recv_cq),
        srq(in.srq),
        caps(granted),
        max_msg(in.pd->context->device().max_msg_sz),
        type(in.type),
        qpn(init.qpn),
        sq(std::move(send)),
        rq(std::move(recv)),
        ib(init) {}

  QueuePair* const self;
  Vf::Impl& vf;
  ProtectionDomain* const pd;
  CompletionQueue* const send_cq;
  CompletionQueue* const recv_cq;
  SharedReceiveQueue* const srq;
  const QpCaps caps;
  const std::uint32_t max_msg;  // bytes
  const ib::QpType type;
  const std::uint32_t qpn;

  // --- posting ---
  std::unique_ptr<SendQueue> sq;
  std::unique_ptr<RecvQueue> rq;  // null with an SRQ
  SpinLock sq_lock;
  std::uint32_t accepted = 0;  // slots filled since begin_post, under sq_lock, as is
  std::uint32_t resolved = 0;  // UD: owner << 16 | QPN block of the last destination that a path is known to
  SpinLock rq_lock;
  std::atomic<ib::QpState> state{ib::QpState::reset};  // of `ib`, for any thread
  std::atomic<bool> rung{false};                       // in the doorbell list
  Impl* next_rung = nullptr;

  // --- under the progress lock ---
  ib::Qp ib;
  PathState* path = nullptr;  // RC, UC from RTR on
  roce::HeaderTemplate headers;
  std::uint32_t frame_room = 0;  // the largest frame this QP sends now
  dp::VfId peer = dp::kNoVf;     // RC, UC: who may send to this QP (design rule 6)
  bool peer_known = false;
  roce::Version version = roce::Version::v2;
  Gid local_gid{}, remote_gid{};
  roce::HeaderTemplate rx_headers;     // RC, UC: of a frame that was good; empty: none yet
  std::uint32_t rx_strangers = 0;      // good frames with other headers
  dp::PathPosition last_request;       // where the newest request packet ended on the path
  bool request_sent = false;           // last_request is valid
  std::unique_ptr<ib::TxPacket> held;  // UD: taken from the transport, but its path had no room
  bool held_valid = false;
  Waiting waiting = Waiting::no;
  PathState* waits_for = nullptr;
  ListHook<Impl> queue_hook;    // active list or a path's blocked list
  ListHook<Impl> touched_hook;  // received something in this round
  ListHook<Impl> dirty_hook;    // status page entry is behind
  ListHook<Impl> all_hook;
  Nanos timer_key = kNever;
  std::size_t timer_index = 0;
  std::uint32_t status_slot = 0;
  bool has_status_slot = false;

  // --- under the control lock ---
  AddressVector av;
  QpAttrsAll attrs;
  std::uint32_t mcast_groups = 0;
};

struct PathState {
  dp::Path* path = nullptr;
  IntrusiveList<QueuePair::Impl, &QueuePair::Impl::queue_hook> blocked;
  bool in_blocked_list = false;
};

}  // namespace softrnic::nic
