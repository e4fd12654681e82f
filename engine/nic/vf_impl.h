// The engine of a VF: object tables, the progress loop and what it serves.
//
// Locks, in the order in which they are taken: `control` (creation, destruction, modification of objects), then the
// progress lock (everything the transports and the fabric do), then the short lock of a queue. The data path only
// try-locks the progress lock.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/datapath/progress_thread.h"
#include "engine/nic/address.h"
#include "engine/nic/clock.h"
#include "engine/nic/drop_counters.h"
#include "engine/nic/intrusive_list.h"
#include "engine/nic/memory_table.h"
#include "engine/nic/nic.h"
#include "engine/nic/qp_impl.h"
#include "engine/nic/timer_heap.h"

namespace softrnic::nic {

// Objects in use, per device: the limits of the device record hold for them.
struct DeviceUse {
  std::atomic<std::uint32_t> pds{0}, mrs{0}, mws{0}, ahs{0}, cqs{0}, srqs{0}, qps{0};
};

// Counts one more object up to `limit`; false when the limit is reached.
inline bool take_one(std::atomic<std::uint32_t>& count, std::uint32_t limit) {
  std::uint32_t n = count.load(std::memory_order_relaxed);
  do {
    if (n >= limit) return false;
  } while (!count.compare_exchange_weak(n, n + 1, std::memory_order_relaxed));
  return true;
}

struct GidHash {
  std::size_t operator()(const Gid& g) const {
    std::uint64_t a, b;
    std::memcpy(&a, g.raw, 8);
    std::memcpy(&b, g.raw + 8, 8);
    return static_cast<std::size_t>((a ^ (b * 0x9E3779B97F4A7C15u)) * 0x9E3779B97F4A7C15u >> 7);
  }
};

struct Vf::Impl final : dp::ProgressClient {
  using QpImpl = QueuePair::Impl;

  explicit Impl(std::unique_ptr<dp::Fabric> f);
  ~Impl();

  // True in a child of fork(): nothing of this VF may be touched, except to destroy its objects.
  bool inherited() const { return is_inherited.load(std::memory_order_relaxed); }
  // 0; ENODEV in a child of fork() that inherited this VF; EIO when the NIC process is gone.
  int usable() const { return inherited() ? ENODEV : fabric->nic_process_dead() ? EIO : 0; }
  void abandon_after_fork();  // in the child, both locks held

  // ---- progress (progress.cpp) ----------------------------------------------------------------------------
  void lock_progress() { progress_lock.lock(); }
  // Serves the doorbells that were rung meanwhile, and lets go; loses none.
  void unlock_progress();
  bool release_progress();
  // The application polls `cq` and wants `want` more completions.
  void drive(CompletionQueue& cq, int want);
  // Nothing that round() would do, but for what may as well wait for one of the next calls.
  bool quiet();
  // A send queue got requests, or a receive queue of a QP in ERR did.
  void ring(QpImpl& qp);
  void take_doorbells();
  // One round: doorbells, packets in (at most `budget`; with `cq`, only until it has `want` more completions), what
  // they owe, packets out, timers. Returns the number of packets handled. Progress lock held.
  int round(CompletionQueue* cq, int want, int budget);
  // The progress thread's view of all this.
  bool try_lock() override { return progress_lock.try_lock(); }
  void unlock() override { unlock_progress(); }
  int progress(int budget) override { return round(nullptr, 0, budget); }
  // Earliest moment at which round() has something to do without a packet coming in; 0 when it has now.
  Nanos next_deadline() override;

  // ---- packets in (receive.cpp) ---------------------------------------------------------------------------
  static bool on_frame(void* ctx, dp::VfId ingress, Bytes frame);
  void receive(dp::VfId ingress, Bytes frame);
  QpImpl* familiar(dp::VfId ingress, Bytes frame) const;
  void deliver(QpImpl& qp, const roce::RxFrame& f, const std::uint8_t* grh);
  void deliver(QpImpl& qp, const ib::RxPacket& p);
  void receive_datagram(dp::VfId ingress, Bytes frame);
  void deliver_multicast(dp::VfId ingress, const roce::RxFrame& f, std::uint32_t src_qpn, const std::uint8_t* grh);
  bool source_ok(const QpImpl& qp, dp::VfId ingress, const roce::RxFrame& f) const;
  bool is_local_gid(const Gid& gid);
  QpImpl* find_qp(std::uint32_t qpn) const {
    const auto& block = qp_blocks[(qpn >> dp::kQpnBlockShift) & (dp::kQpnBlocks - 1)];
    return block == nullptr ? nullptr : block[qpn & ((1u << dp::kQpnBlockShift) - 1)];
  }

  // ---- packets out (transmit.cpp) --------------------------------------------------------------------------
  enum class Sent : std::uint8_t { nothing_left, budget, blocked };
  // Sends for `qp` what it has, up to the budget; then reports its events.
  void serve(QpImpl& qp, int budget);
  Sent transmit(QpImpl& qp, int budget);
  Sent transmit_connected(QpImpl& qp, int budget);
  Sent transmit_datagrams(QpImpl& qp, int budget);
  bool send_frame(roce::HeaderTemplate& headers, dp::Path& path, const ib::TxPacket& packet);
  PathState* datagram_path(const AddressEntry& ah, std::uint32_t dest_qpn);
  PathState* path_to(dp::VfId vf);
  // A post is about to go to `dest_qpn`: opens a channel to its VF unless there is one. May take a round trip to the
  // NIC process, so it belongs to the poster, who holds the lock of the send queue.
  void resolve_datagram_peer(QpImpl& qp, std::uint32_t dest_qpn);
  void loop_back_multicast(QpImpl& qp, const AddressEntry& ah);
  void serve_active(int budget);
  void retry_blocked();
  void block_on(QpImpl& qp, PathState& path);
  void stop_waiting(QpImpl& qp);

  // ---- completions, events, timers (events.cpp) --------------------------------------------------------------
  void report_events(QpImpl& qp);
  void complete(QpImpl& qp, CompletionQueue& cq, const ib::QpEvent& ev);
  void mirror_state(QpImpl& qp);
  void check_srq_limit(SharedReceiveQueue& srq);
  void run_timers();
  void kill_cq_users();
  void raise(Context& ctx, const AsyncEventRecord& ev) { ctx.async.push(ev); }
  void device_fatal();
  static void call_fatal_hook();
  void take_new_gids();
  void look_around();

  // ---- status page (status.cpp) --------------------------------------------------------------------------------
  void attach_status(QpImpl& qp);
  void detach_status(QpImpl& qp);
  void write_status(QpImpl& qp);
  void write_all_dirty();

  // ---- tables (vf.cpp), control lock held -------------------------------------------------------------------------
  std::int64_t allocate_qpn();  // -1: none left
  void free_qpn(std::uint32_t qpn) { freed_qpns.push_back(qpn); }
  void add_qp(QpImpl& qp);             // makes it known to the engine; takes the progress lock
  void remove_qp(QpImpl& qp);          // and the reverse: nothing of the engine refers to it afterwards
  PathState* path_state(dp::Path* p);  // progress lock held

  Nanos now() {
    if (!now_valid) {
      now_cached = clock.now();
      now_valid = true;
    }
    return now_cached;
  }

  std::unique_ptr<dp::Fabric> fabric;
  std::atomic<bool> is_inherited{false};
  std::mutex control;
  SpinLock progress_lock;
  alignas(64) std::atomic<QpImpl*> rung{nullptr};

  // Under the progress lock.
  alignas(64) MemoryTable memory;
  std::unique_ptr<QpImpl*[]> qp_blocks[dp::kQpnBlocks];
  IntrusiveList<QpImpl, &QpImpl::queue_hook> active;
  IntrusiveList<QpImpl, &QpImpl::touched_hook> touched;
  IntrusiveList<QpImpl, &QpImpl::dirty_hook> dirty;
  IntrusiveList<QpImpl, &QpImpl::all_hook> all_qps;
  TimerHeap<QpImpl> timers;
  Clock clock;
  Nanos now_cached = 0;
  bool now_valid = false;
  Nanos status_written = 0, dirty_since = 0;
  unsigned idle_rounds = 0;
  std::uint64_t epoch = 0;
  ib::TxPacket tx;           // scratch
  int completions_left = 0;  // that the frames of this batch may still cause
  DropCounters drops;
  std::uint64_t frames_written = 0;  // drops.frames on the status page
  std::vector<std::unique_ptr<PathState>> paths;
  std::unordered_map<dp::VfId, PathState*> path_by_vf;
  std::vector<PathState*> blocked_paths;
  PathState* self_path = nullptr;
  PathState* switch_path = nullptr;
  std::vector<CompletionQueue*> dead_cqs;
  std::unordered_map<Gid, std::vector<QpImpl*>, GidHash> groups;
  Gid last_local_gid{};
  SpinLock gids_lock;  // for readers without the progress lock
  std::vector<control::GidRecord> gids;
  bool fatal = false;

  // Paths that posters of datagrams have asked for, until the engine needs them.
  SpinLock peers_lock;
  std::unordered_map<dp::VfId, dp::Path*> new_peers;

  // Under the control lock.
  AddressTable addresses;  // entries are read without it
  std::deque<std::uint32_t> freed_qpns;
  std::uint32_t next_qpn = 0, qpns_left = 0;
  std::vector<std::uint32_t> free_status_slots;
  std::uint32_t next_status_slot = 0;
  PdHandle next_pd = 1;
  std::uint32_t live_qps = 0;
  std::vector<Context*> contexts;            // changed under both locks
  std::vector<CompletionChannel*> channels;  // likewise
  std::vector<DeviceUse> use;

  Vf::Impl* next_watched = nullptr;  // fork_watch.cpp

  // Last: it ends before the rest.
  dp::ProgressThread helper;
};

}  // namespace softrnic::nic
