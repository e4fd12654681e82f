#include "engine/datapath/fences.h"
#include "engine/switch/eswitch.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>

#include "engine/datapath/wakeup.h"
#include "engine/nic/raw_io.h"
#include "engine/switch/classifier.h"
#include "engine/switch/switch_port.h"

namespace softrnic::sw {
namespace {

constexpr int kBudget = 32;                   // frames of a port in one turn
constexpr Nanos kSpin = 100'000;              // a port is polled so long after its last frame
constexpr Nanos kHeldBackSpin = 1'000'000;    // so long it polls for room when all it has is held back
constexpr int kHeldBackMillis = 1;            // then it sleeps so long at a time
constexpr int kScanMillis = 1000;             // a sleeping switch looks at every ring so often, whatever the inbox says

Nanos monotonic_now() {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<Nanos>(ts.tv_sec) * 1'000'000'000u + static_cast<Nanos>(ts.tv_nsec);
}

unsigned allowed_cpus() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
}

}  // namespace

struct ESwitch::Impl {
  explicit Impl(const dp::BlockTable& blocks) : classifier(blocks) {}

  void submit(std::function<void()> command);
  void run_commands();

  void turn();
  bool drain(SwitchPort& port);
  bool serve(SwitchPort& port);
  void mark_dirty(SwitchPort& port);
  bool forward(SwitchPort& from, const dp::RingConsumer::Entry& entry);
  bool forward_mark(SwitchPort& from, const dp::RingConsumer::Entry& entry);
  SwitchPort::Delivery deliver(SwitchPort& to, const FrameQueue::Item& item);
  void make_hot(SwitchPort& port);
  void cool_down();
  void flush();
  void cut_off_broken();
  void empty(SwitchPort& port);
  void remove(SwitchPort& port);
  void sleep(int millis);
  void scan();

  ESwitchOptions options;
  std::shared_ptr<SharedMemory> memory;
  dp::Inbox* inbox = nullptr;
  UniqueFd event;
  std::atomic<bool> stopping{false};

  std::mutex mutex;  // for the two below
  std::vector<std::function<void()>> commands;
  std::map<std::uint16_t, std::shared_ptr<AtomicPortCounters>> counters;
  std::atomic<bool> has_commands{false};

  // The switch thread's own.
  std::array<std::unique_ptr<SwitchPort>, dp::kInboxSlots> ports;
  std::vector<SwitchPort*> hot;
  std::vector<SwitchPort*> dirty;
  std::vector<SwitchPort*> targets;  // of the frame at hand
  Classifier classifier;
  std::vector<std::shared_ptr<FrameTap>> taps;
  Nanos now = 0;
  Nanos last_work = 0;
  bool worked = false;     // in this turn
  bool departing = false;  // frames of a dead VF: nothing is held back
  std::array<std::uint8_t, dp::kMaxFrame> frame;
};

ESwitch::ESwitch() = default;
ESwitch::~ESwitch() = default;

std::unique_ptr<ESwitch> ESwitch::create(const ESwitchOptions& options, const dp::BlockTable& blocks) {
  std::unique_ptr<ESwitch> s(new ESwitch);
  s->impl_ = std::make_unique<Impl>(blocks);
  Impl& d = *s->impl_;
  d.options = options;
  d.memory = SharedMemory::create("softrnic-switch-inbox", sizeof(dp::Inbox));
  d.event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!d.memory || !d.event) return nullptr;
  d.inbox = d.memory->as<dp::Inbox>();
  dp::announce_fences(*d.inbox);
  return s;
}

const SharedMemory& ESwitch::inbox() const { return *impl_->memory; }
int ESwitch::eventfd() const { return impl_->event.get(); }

// ---- control, from any thread ------------------------------------------------------------------------------

void ESwitch::Impl::submit(std::function<void()> command) {
  {
    std::lock_guard lock(mutex);
    commands.push_back(std::move(command));
    has_commands.store(true, std::memory_order_release);
  }
  raw_eventfd_write(event.get());
}

void ESwitch::attach(Port port) {
  auto counters = std::make_shared<AtomicPortCounters>();
  {
    std::lock_guard lock(impl_->mutex);
    impl_->counters[port.vf_id] = counters;
  }
  const std::uint16_t id = port.vf_id;
  auto made = std::make_shared<std::unique_ptr<SwitchPort>>(
      std::make_unique<SwitchPort>(std::move(port), impl_->options.queue_limit, std::move(counters)));
  impl_->submit([d = impl_.get(), id, made] {
    d->ports[id] = std::move(*made);
    d->make_hot(*d->ports[id]);
  });
}

void ESwitch::detach(std::uint16_t vf_id, std::function<void()> done) {
  impl_->submit([d = impl_.get(), vf_id, done = std::move(done)] {
    if (SwitchPort* port = d->ports[vf_id].get(); port != nullptr) {
      // It died while it polled: nobody else takes it off. A hint, so a forged value only costs yields.
      if (port->counted_as_polling()) d->inbox->busy_pollers.fetch_sub(1, std::memory_order_relaxed);
      d->empty(*port);
      d->remove(*port);
    }
    {
      std::lock_guard lock(d->mutex);
      d->counters.erase(vf_id);
    }
    if (done) done();
  });
}

void ESwitch::set_addresses(std::vector<Gid> own) {
  impl_->submit([d = impl_.get(), own = std::move(own)]() mutable { d->classifier.set_addresses(std::move(own)); });
}

void ESwitch::set_group_member(const Gid& mgid, std::uint16_t vf_id, bool member) {
  impl_->submit([d = impl_.get(), mgid, vf_id, member] { d->classifier.set_group_member(mgid, vf_id, member); });
}

void ESwitch::set_taps(std::vector<std::shared_ptr<FrameTap>> taps, std::function<void()> done) {
  impl_->submit([d = impl_.get(), taps = std::move(taps), done = std::move(done)]() mutable {
    d->taps.swap(taps);
    taps.clear();
    if (done) done();
  });
}

PortCounters ESwitch::counters(std::uint16_t vf_id) const {
  std::shared_ptr<AtomicPortCounters> c;
  {
    std::lock_guard lock(impl_->mutex);
    if (const auto it = impl_->counters.find(vf_id); it != impl_->counters.end()) c = it->second;
  }
  if (c == nullptr) return {};
  PortCounters out;
  out.tx_frames = c->tx_frames;
  out.tx_bytes = c->tx_bytes;
  out.rx_frames = c->rx_frames;
  out.rx_bytes = c->rx_bytes;
  out.rx_out_of_buffer = c->rx_out_of_buffer;
  out.tx_malformed = c->tx_malformed;
  out.tx_bad_source = c->tx_bad_source;
  out.tx_unknown_destination = c->tx_unknown_destination;
  return out;
}

void ESwitch::stop() {
  impl_->stopping.store(true);
  raw_eventfd_write(impl_->event.get());
}

// ---- the loop ------------------------------------------------------------------------------------------------

void ESwitch::run() {
  Impl& d = *impl_;
  const unsigned cpus = allowed_cpus();
  d.inbox->busy_pollers.fetch_add(1);
  while (!d.stopping.load(std::memory_order_relaxed)) {
    d.turn();
    if (d.worked) continue;
    const bool held_back = d.now - d.last_work > kHeldBackSpin;
    if (d.hot.empty() || held_back) {
      d.inbox->busy_pollers.fetch_sub(1);
      d.sleep(d.hot.empty() ? kScanMillis : kHeldBackMillis);
      d.inbox->busy_pollers.fetch_add(1);
    } else if (d.inbox->busy_pollers.load(std::memory_order_relaxed) > cpus) {
      ::sched_yield();
    }
  }
  d.inbox->busy_pollers.fetch_sub(1);
}

void ESwitch::Impl::turn() {
  worked = false;
  if (has_commands.load(std::memory_order_acquire)) run_commands();
  now = monotonic_now();
  if (dp::inbox_pending(*inbox)) {
    dp::take_inbox(*inbox, [this](std::uint32_t slot) {
      if (ports[slot] != nullptr) make_hot(*ports[slot]);
    });
  }
  for (SwitchPort* port : hot) {
    const bool drained = drain(*port);
    if (serve(*port) || drained) {
      port->last_active = now;
      worked = true;
    }
  }
  flush();
  cut_off_broken();
  if (worked) {
    last_work = now;
  } else {
    cool_down();
  }
}

void ESwitch::Impl::run_commands() {
  std::vector<std::function<void()>> todo;
  {
    std::lock_guard lock(mutex);
    todo.swap(commands);
    has_commands.store(false, std::memory_order_relaxed);
  }
  for (auto& command : todo) command();
}

void ESwitch::Impl::make_hot(SwitchPort& port) {
  port.last_active = now;
  if (port.hot) return;
  port.hot = true;
  port.set_polling();
  hot.push_back(&port);
}

// Ports without traffic leave the list.
void ESwitch::Impl::cool_down() {
  std::erase_if(hot, [this](SwitchPort* port) {
    if (now - port->last_active < kSpin || !port->arm()) return false;
    port->hot = false;
    return true;
  });
}

bool ESwitch::Impl::drain(SwitchPort& port) {
  if (!port.has_waiting() || !port.drain()) return false;
  mark_dirty(port);
  return true;
}

void ESwitch::Impl::mark_dirty(SwitchPort& port) {
  if (port.dirty) return;
  port.dirty = true;
  dirty.push_back(&port);
}

bool ESwitch::Impl::serve(SwitchPort& port) {
  int taken = 0;
  dp::RingConsumer::Entry entry;
  while (taken < kBudget && port.ring_in().peek(&entry)) {
    const bool done = entry.kind == dp::EntryKind::mark ? forward_mark(port, entry) : forward(port, entry);
    if (!done) break;
    port.ring_in().pop();
    ++taken;
  }
  if (taken != 0) port.publish_head(false);
  return taken != 0;
}

// True when the frame is dealt with; false: it stays in the ring until its destination has room.
bool ESwitch::Impl::forward(SwitchPort& from, const dp::RingConsumer::Entry& entry) {
  // Copied out once: what is checked is what is passed on.
  std::memcpy(frame.data(), entry.data, entry.length);
  const Bytes bytes(frame.data(), entry.length);
  const Verdict verdict = classifier.classify(bytes, from.vf_id());
  AtomicPortCounters& c = from.counters();

  targets.clear();
  for (const std::uint16_t id : verdict.destinations)
    if (ports[id] != nullptr) targets.push_back(ports[id].get());
  for (SwitchPort* to : targets)
    if (to->congested() && !departing && !to->stalled(now, options.stall_timeout)) return false;

  add(c.tx_frames, 1);
  add(c.tx_bytes, entry.length);
  for (const auto& tap : taps) tap->on_frame(from.vf_id(), bytes);
  switch (verdict.kind) {
    case Verdict::Kind::malformed: add(c.tx_malformed, 1); return true;
    case Verdict::Kind::bad_source: add(c.tx_bad_source, 1); return true;
    case Verdict::Kind::forward: break;
  }
  if (targets.empty()) add(c.tx_unknown_destination, 1);
  for (SwitchPort* to : targets) {
    if (deliver(*to, {dp::EntryKind::frame, from.vf_id(), bytes}) == SwitchPort::Delivery::full)
      add(to->counters().rx_out_of_buffer, 1);
  }
  return true;
}

bool ESwitch::Impl::forward_mark(SwitchPort& from, const dp::RingConsumer::Entry& entry) {
  dp::MarkBody body{};
  if (entry.length != sizeof(body)) {
    add(from.counters().tx_malformed, 1);
    return true;
  }
  std::memcpy(&body, entry.data, sizeof(body));
  SwitchPort* to = body.vf_id < ports.size() ? ports[body.vf_id].get() : nullptr;
  if (to == nullptr) return true;  // gone: peer_gone tells the sender
  dp::MarkBody out{};
  out.vf_id = from.vf_id();
  const Bytes bytes(reinterpret_cast<const std::uint8_t*>(&out), sizeof(out));
  if (deliver(*to, {dp::EntryKind::mark, entry.aux, bytes}) == SwitchPort::Delivery::full)
    add(from.counters().tx_malformed, 1);
  return true;
}

SwitchPort::Delivery ESwitch::Impl::deliver(SwitchPort& to, const FrameQueue::Item& item) {
  mark_dirty(to);
  return to.deliver(item);
}

// Wakes the VFs that got something and do not poll. The fence pairs with the one in the receivers' arming.
void ESwitch::Impl::flush() {
  if (dirty.empty()) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (SwitchPort* port : dirty) {
    port->dirty = false;
    port->notify_if_armed();
  }
  dirty.clear();
}

// Forwards all that a dead process has left in its ring: a peer may wait for its last acknowledgement (rule 10). Bounded by
// the ring, in case it is not dead.
void ESwitch::Impl::empty(SwitchPort& port) {
  departing = true;
  dp::RingConsumer::Entry entry;
  for (std::uint32_t n = port.ring_size() / dp::kEntryAlign; n != 0 && port.ring_in().peek(&entry); --n) {
    entry.kind == dp::EntryKind::mark ? forward_mark(port, entry) : forward(port, entry);
    port.ring_in().pop();
  }
  departing = false;
  flush();
}

void ESwitch::Impl::remove(SwitchPort& port) {
  std::erase(hot, &port);
  std::erase(dirty, &port);
  classifier.forget(port.vf_id());
  ports[port.vf_id()].reset();
}

void ESwitch::Impl::cut_off_broken() {
  for (std::size_t i = 0; i < hot.size();) {
    if (!hot[i]->broken()) {
      ++i;
      continue;
    }
    const std::uint16_t id = hot[i]->vf_id();
    remove(*hot[i]);
    if (options.on_broken) options.on_broken(id);
  }
}

void ESwitch::Impl::sleep(int millis) {
  dp::prepare_sleep(*inbox);
  bool timed_out = false;
  if (!dp::inbox_pending(*inbox) && !has_commands.load() && !stopping.load()) {
    pollfd p{event.get(), POLLIN, 0};
    timed_out = ::poll(&p, 1, millis) == 0;
    dp::drain_eventfd(event.get());
  }
  dp::end_sleep(*inbox);
  if (timed_out) scan();
}

// No wake-up should ever be missing; a VF that scribbles in the inbox can take one away from another.
void ESwitch::Impl::scan() {
  now = monotonic_now();
  for (auto& port : ports)
    if (port != nullptr && (port->has_waiting() || port->ring_in().pending())) make_hot(*port);
}

}  // namespace softrnic::sw
