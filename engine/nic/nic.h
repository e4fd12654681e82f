// The device objects and verbs semantics of the NIC as an application sees them. One Vf per process and NIC
// process; contexts (opened devices) share it. Free of the verbs ABI: verbs_shim converts and delegates.
//
// Results are 0 or a positive errno value, exactly those of the verbs manual pages. Threads: everything may be
// called from any thread. Data-path calls (post, poll, req_notify) take only the short lock of their queue and
// try-lock the progress lock; control-path calls take the progress lock.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/control/wire.h"
#include "engine/datapath/fabric.h"
#include "engine/nic/event_queue.h"
#include "engine/nic/spinlock.h"
#include "protocols/common/work.h"
#include "protocols/common/work_queue.h"
#include "protocols/ib/qp.h"

namespace softrnic::nic {

class Context;
class CompletionQueue;
class SharedReceiveQueue;
class QueuePair;

// The process's attachment to the NIC. In a child of fork() the first use of a Context attaches anew; objects from
// before the fork then give errors (ENODEV) and can be destroyed.
class Vf {
 public:
  // Attaches this process. 0 or errno; `*why` gets a sentence for the user.
  static int attach(const std::string& socket_path, std::unique_ptr<Vf>* out, std::string* why);
  ~Vf();
  const std::vector<control::DeviceRecord>& devices() const;
  dp::Fabric& fabric();

  // One bounded round of the engine if nobody else is at it: packets in, timers, packets out. Returns the number of
  // packets and completions handled. Any thread.
  int progress(int budget);

  // Makes sure that somebody looks at the control connection also while the application does nothing. 0 or errno.
  int start_helper();
  // Called, with locks held, by whoever finds that the NIC process is gone.
  static void set_fatal_hook(void (*hook)());

  struct Impl;
  Impl& impl() { return *impl_.load(std::memory_order_acquire); }
  // The engine for new objects: attaches anew in a child of fork(). 0, or errno: EIO when the NIC process is gone.
  int engine(Impl** out);

 private:
  Vf() = default;
  std::atomic<Impl*> impl_{nullptr};  // an inherited one is left behind, its objects refer to it
  std::string socket_path_;
  SpinLock attach_lock_;
};

struct ProtectionDomain {
  Context* context;
  Vf::Impl* engine;
  PdHandle handle;
  std::atomic<std::uint32_t> users{0};  // MRs, MWs, AHs, QPs, SRQs: dealloc fails with EBUSY while non-zero
};

struct MemoryRegion {
  ProtectionDomain* pd;
  std::uint32_t lkey, rkey;
  std::uint64_t addr, length, iova;  // iova: address that keys use; 0-based for kAccessZeroBased
  std::uint32_t access;
  std::atomic<std::uint32_t> windows{0};  // bound memory windows: dereg fails with EBUSY
};

struct MemoryWindow {
  ProtectionDomain* pd;
  std::uint32_t rkey;
  std::uint8_t type;  // 1 or 2 (enum ibv_mw_type)
};

// Address vector (struct ibv_ah_attr without LIDs).
struct AddressVector {
  Gid dgid{};
  std::uint32_t flow_label = 0;
  std::uint8_t sgid_index = 0;
  std::uint8_t hop_limit = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t sl = 0;
  std::uint8_t src_path_bits = 0;
  std::uint8_t static_rate = 0;
  std::uint8_t port_num = 1;
  std::uint16_t dlid = 0;
  bool is_global = false;
};

struct AddressHandle {
  ProtectionDomain* pd;
  AddressVector av;
  std::uint32_t number;  // SendWqe::ah
};

// An asynchronous event and the object it belongs to.
struct AsyncEventRecord {
  AsyncEvent type;
  CompletionQueue* cq = nullptr;
  QueuePair* qp = nullptr;
  SharedReceiveQueue* srq = nullptr;
  int port = 0;
};

class CompletionChannel {
 public:
  static int create(Context& ctx, CompletionChannel** out);
  int destroy();  // EBUSY while CQs refer to it
  int fd() const { return queue.fd(); }
  // Next CQ with a completion event; blocks unless the descriptor is O_NONBLOCK (then EAGAIN).
  int get_event(CompletionQueue** out) { return queue.pop(out); }

  EventQueue<CompletionQueue*> queue;
  std::atomic<std::uint32_t> users{0};
  Context* context = nullptr;
  Vf::Impl* engine = nullptr;
};

// One entry of a CQ: the completion and what polling it gives back.
struct CqEntry {
  Completion wc;
  std::uint64_t timestamp = 0;  // CLOCK_MONOTONIC ns
  QueuePair* qp = nullptr;      // null once the QP is destroyed
  SharedReceiveQueue* srq = nullptr;
  std::uint32_t sq_free_to = 0;
  bool is_recv = false;
};

class CompletionQueue {
 public:
  // `cqe` at least 1 and at most the device's limit, else EINVAL. The CQ holds at least `cqe` entries; the real
  // number is capacity().
  static int create(Context& ctx, std::uint32_t cqe, CompletionChannel* channel, void* user, CompletionQueue** out);
  int destroy();                  // EBUSY while QPs or SRQs refer to it
  int resize(std::uint32_t cqe);  // EINVAL when more than `cqe` completions wait
  std::uint32_t capacity() const;
  CompletionChannel* channel() const;
  int request_notify(bool solicited_only);

  // Takes up to `max` completions, driving the engine inline when fewer are ready. emit(i, const CqEntry&) is called
  // under the CQ's lock. Returns the number; -ENODEV in a child of fork() that inherited the CQ.
  template <class Emit>
  int poll(int max, Emit&& emit) {
    if (inherited_->load(std::memory_order_relaxed)) return -ENODEV;
    int n = take(max, 0, emit);
    if (n < max) {
      drive(max - n);
      n += take(max - n, n, emit);
    }
    return n;
  }
  // Completion events delivered so far to the channel (ibv_ack_cq_events bookkeeping is the shim's).
  void* user = nullptr;  // the shim's ibv_cq

  // --- engine side, under the progress lock ---
  // Adds a completion. False when the CQ is full or was: it is dead then, and the caller raises CQ_ERR the first time.
  bool push(const CqEntry& e);
  void purge(QueuePair* qp);  // RESET or destruction of a QP: drops its completions
  bool take_overflow();       // true once after the overflow
  // Completions added so far, modulo 2^32.
  std::uint32_t pushed() const { return tail_.load(std::memory_order_relaxed); }

  std::atomic<std::uint32_t> users{0};  // QPs (twice when both queues complete here)
  Context* context() const { return context_; }
  Vf::Impl* engine() const { return engine_; }

 private:
  template <class Emit>
  int take(int max, int base, Emit& emit) {
    if (head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_acquire)) return 0;
    SpinGuard g(lock_);
    int n = 0;
    std::uint32_t head = head_.load(std::memory_order_relaxed);
    for (const std::uint32_t tail = tail_.load(std::memory_order_acquire); n < max && head != tail; ++n) {
      CqEntry& e = ring_[head & mask_];
      emit(base + n, static_cast<const CqEntry&>(e));
      consume(e);
      head_.store(++head, std::memory_order_release);
    }
    return n;
  }
  bool add(const CqEntry& e);
  void consume(const CqEntry& e);  // gives queue slots back
  void drive(int want);            // engine progress from ibv_poll_cq (design rules 1 and 4)

  Vf::Impl* engine_ = nullptr;
  const std::atomic<bool>* inherited_ = nullptr;
  Context* context_ = nullptr;
  CompletionChannel* channel_ = nullptr;
  SpinLock lock_;
  std::vector<CqEntry> ring_;
  std::uint32_t mask_ = 0, capacity_ = 0;
  std::atomic<std::uint32_t> head_{0}, tail_{0};  // of pollers, under the lock; of the engine, under the progress lock
  enum class Armed : std::uint8_t { no, solicited, next } armed_ = Armed::no;
  bool overflowed_ = false, overflow_taken_ = false;
};

class SharedReceiveQueue {
 public:
  static int create(ProtectionDomain& pd, std::uint32_t max_wr, std::uint32_t max_sge, std::uint32_t limit, void* user,
                    SharedReceiveQueue** out);
  int destroy();                          // EBUSY while QPs refer to it
  int modify_limit(std::uint32_t limit);  // EINVAL above max_wr; arms SRQ_LIMIT_REACHED (one shot)
  int resize(std::uint32_t max_wr);       // EINVAL below what is posted
  void query(std::uint32_t* max_wr, std::uint32_t* max_sge, std::uint32_t* limit);
  // Posts one request: 0, ENOMEM (full), EINVAL (too many elements).
  int post(std::uint64_t wr_id, std::span<const Sge> sges);
  void* user = nullptr;

  ProtectionDomain* pd = nullptr;
  SpinLock lock;
  std::unique_ptr<RecvQueue> queue;
  std::uint32_t limit = 0;          // 0: not armed. Under the progress lock, as is:
  std::uint32_t limit_checked = 0;  // RecvQueue::taken() when the limit was last looked at
  std::atomic<std::uint32_t> users{0};
};

struct QpCaps {
  std::uint32_t max_send_wr = 0, max_recv_wr = 0, max_send_sge = 0, max_recv_sge = 0, max_inline = 0;
};

struct QpCreate {
  ib::QpType type = ib::QpType::rc;
  ProtectionDomain* pd = nullptr;
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* recv_cq = nullptr;
  SharedReceiveQueue* srq = nullptr;
  QpCaps caps;  // in: wanted; out: granted
  bool sq_sig_all = false;
  void* user = nullptr;
};

// Attributes of modify/query that are not the transport's own; together with ib::QpAttrs all of struct ibv_qp_attr.
struct QpAttrsAll {
  ib::QpAttrs ib;
  AddressVector av;
  ib::QpState state = ib::QpState::reset;
  ib::QpState cur_state = ib::QpState::reset;
  std::uint16_t pkey_index = 0;
  std::uint8_t port_num = 0;
  std::uint8_t path_mtu_enum = 0;  // 1..5
  bool en_sqd_async_notify = false;
};

class QueuePair {
 public:
  static int create(QpCreate& in, QueuePair** out);
  int destroy();  // EBUSY while attached to multicast groups
  // `mask` are the verbs' attribute bits (ib::kAttr*). EINVAL for an illegal transition or value.
  int modify(const QpAttrsAll& attrs, std::uint32_t mask);
  void query(QpAttrsAll* attrs, QpCaps* caps);
  int attach_mcast(const Gid& mgid, std::uint16_t lid);
  int detach_mcast(const Gid& mgid, std::uint16_t lid);

  std::uint32_t qpn() const;
  ib::QpType type() const;
  ib::QpState state() const;  // of the last modify or error; any thread
  ProtectionDomain* pd() const;

  // --- posting sends: lock, fill slots, check each, publish ---------------------------------------------------
  //   qp.begin_post();
  //   SendWqe* w = qp.next_slot();          null: queue full (ENOMEM). Flags, num_sge, length and imm_or_inv are 0
  //   fill *w, qp.sges(w) or qp.inline_data(w); then qp.accept_slot(w): 0 or errno (EINVAL: bad opcode, too many SGEs,
  //     inline too long, wrong state, no AH...). A slot that is not accepted is not posted.
  //   qp.end_post(n accepted to publish)    unlocks and drives the engine inline
  void begin_post();
  SendWqe* next_slot();
  Sge* sges(const SendWqe* w);
  std::uint8_t* inline_data(const SendWqe* w);
  int accept_slot(SendWqe* w);
  void end_post();
  void abort_post();  // drops all slots since begin_post (ibv_wr_abort, or a failed ibv_wr_complete)

  // Posts one receive: 0, ENOMEM (full), EINVAL (state RESET, too many elements, QP with an SRQ).
  int post_recv(std::uint64_t wr_id, std::span<const Sge> sges);

  void* user = nullptr;
  const QpCaps& caps() const;

  // The engine's part.
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
  QueuePair();
  ~QueuePair();
};

// An opened device.
class Context {
 public:
  // `device` is the index in Vf::devices().
  static int open(Vf& vf, std::uint32_t device, Context** out);
  int close();  // objects left open stop working: their queue pairs are taken down
  Vf& vf() const { return *vf_; }
  const control::DeviceRecord& device() const;
  std::uint32_t device_index() const { return device_; }
  // GID table of the port (index as in verbs). EINVAL beyond the table.
  int gid(std::uint32_t index, control::GidRecord* out) const;
  // Length of the table now, empty places included. It changes when addresses come and go.
  std::uint32_t num_gids() const;

  int alloc_pd(ProtectionDomain** out);
  int dealloc_pd(ProtectionDomain* pd);
  // EFAULT memory not accessible (or read-only with write access), EINVAL bad flags (remote write/atomic without
  // local write, length 0... see ibv_reg_mr(3)), ENOMEM limits.
  int reg_mr(ProtectionDomain* pd, void* addr, std::uint64_t length, std::uint64_t iova, std::uint32_t access,
             MemoryRegion** out);
  int dereg_mr(MemoryRegion* mr);
  int alloc_mw(ProtectionDomain* pd, std::uint8_t type, MemoryWindow** out);
  int dealloc_mw(MemoryWindow* mw);
  // EINVAL: bad port, sgid_index out of the table, not global on Ethernet; EHOSTUNREACH/EINVAL as kernel drivers for
  // mixed IPv4/IPv6 GIDs.
  int create_ah(ProtectionDomain* pd, const AddressVector& av, AddressHandle** out);
  int destroy_ah(AddressHandle* ah);

  EventQueue<AsyncEventRecord> async;  // ibv_context::async_fd

 private:
  friend class Vf;
  Vf* vf_ = nullptr;
  std::uint32_t device_ = 0;
};

}  // namespace softrnic::nic
