#include "engine/switch/eswitch.h"

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

#include "engine/datapath/fences.h"
#include "engine/datapath/wakeup.h"
#include "engine/nic/clock.h"
#include "engine/nic/raw_io.h"
#include "engine/switch/classifier.h"
#include "engine/switch/switch_port.h"
#include "engine/switch/uplink_set.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

namespace softrnic::sw {
namespace {

constexpr int kBudget = 32;                  // frames of a port in one turn
constexpr Nanos kSpin = 100'000;             // a port is polled so long after its last frame
constexpr Nanos kHeldBackSpin = 1'000'000;   // so long it polls for room when all it has is held back
constexpr Nanos kHeldBackSleep = 1'000'000;  // then it sleeps so long at a time
// With a network, parties that poll are not all known: who is at the other end of a cable may be on this machine, too.
// So they are taken for more than there are CPUs, and every empty poll yields. Beside the way through the kernel that
// is cheap.
constexpr std::uint32_t kUnknownPollers = dp::kInboxSlots;
constexpr Nanos kScan = 1'000'000'000;  // a sleeping switch looks at every ring so often, whatever the inbox says

// The longest headers that decide where a frame goes: Ethernet with a tag, IPv6, UDP, BTH and DETH.
constexpr std::size_t kHeaders = 128;
static_assert(kHeaders >= 18 + 40 + 8 + wire::kBthSize + wire::Deth::kSize);

// Counts a frame that came in. `wanted`: a VF or the network gets it if it is a valid one.
void count(AtomicPortCounters& c, std::size_t bytes, const Verdict& verdict, bool wanted) {
  add(c.tx_frames, 1);
  add(c.tx_bytes, bytes);
  switch (verdict.kind) {
    case Verdict::Kind::malformed:
      add(c.tx_malformed, 1);
      break;
    case Verdict::Kind::bad_source:
      add(c.tx_bad_source, 1);
      break;
    case Verdict::Kind::forward:
      if (verdict.gsi) {
        add(c.tx_management, 1);
      } else if (!wanted) {
        add(c.tx_unknown_destination, 1);
      }
      break;
  }
}

unsigned allowed_cpus() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
}

}  // namespace

struct ESwitch::Impl final : FrameSink {
  Impl(const ESwitchOptions& o, const dp::BlockTable& blocks) : options(o), classifier(blocks) {}

  void submit(std::function<void()> command);
  void run_commands();

  void turn();
  bool drain(SwitchPort& port);
  bool serve(SwitchPort& port);
  void mark_dirty(SwitchPort& port);
  bool forward(SwitchPort& from, const dp::RingConsumer::Entry& entry);
  bool forward_mark(SwitchPort& from, const dp::RingConsumer::Entry& entry);
  SwitchPort::Delivery deliver(SwitchPort& to, const FrameQueue::Item& item);
  void forward_own(MutableBytes bytes);
  bool disturbs(const Verdict& verdict) const;
  void pass(const Passing& p) override;
  void show_and_deliver(const Ingress& from, const Verdict& to, Bytes bytes, std::string_view comment, bool dropped);
  void run_disturber();
  bool serve_uplinks();
  void forward_from(int uplink, Bytes bytes);
  void make_hot(SwitchPort& port);
  void cool_down();
  void flush();
  void cut_off_broken();
  void empty(SwitchPort& port);
  void remove(SwitchPort& port);
  void sleep(Nanos timeout);
  void scan();

  const ESwitchOptions options;
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
  UplinkSet uplinks;
  std::vector<std::shared_ptr<FrameTap>> taps;
  Nanos now = 0;
  Nanos last_work = 0;
  Nanos last_scan = 0;
  bool worked = false;     // in this turn
  bool departing = false;  // frames of a dead VF: nothing is held back
  std::array<std::uint8_t, dp::kMaxFrame> frame;
};

ESwitch::ESwitch() = default;
ESwitch::~ESwitch() = default;

std::unique_ptr<ESwitch> ESwitch::create(const ESwitchOptions& options, const dp::BlockTable& blocks) {
  std::unique_ptr<ESwitch> s(new ESwitch);
  s->impl_ = std::make_unique<Impl>(options, blocks);
  Impl& d = *s->impl_;
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

void ESwitch::set_uplinks(std::vector<std::shared_ptr<Uplink>> uplinks) { impl_->uplinks.set(std::move(uplinks)); }

void ESwitch::wake() { raw_eventfd_write(impl_->event.get()); }

void ESwitch::submit(std::function<void()> command) { impl_->submit(std::move(command)); }

void ESwitch::send_own(std::vector<std::uint8_t> frame) {
  impl_->submit([d = impl_.get(), frame = std::move(frame)]() mutable {
    d->now = nic::Clock::system_now();
    d->forward_own(frame);
  });
}

void ESwitch::set_addresses(std::vector<OwnGid> own) {
  impl_->submit([d = impl_.get(), own = std::move(own)]() mutable { d->classifier.set_addresses(std::move(own)); });
}

void ESwitch::set_group_member(const Gid& mgid, std::uint16_t vf_id, bool member) {
  impl_->submit([d = impl_.get(), mgid, vf_id, member] {
    if (d->classifier.set_group_member(mgid, vf_id, member)) d->uplinks.set_group_member(d->now, mgid, member);
  });
}

void ESwitch::set_taps(std::vector<std::shared_ptr<FrameTap>> taps, std::function<void()> done) {
  impl_->submit([d = impl_.get(), taps = std::move(taps), done = std::move(done)]() mutable {
    d->taps.swap(taps);
    taps.clear();
    if (done) done();
  });
}

namespace {

PortCounters snapshot(const AtomicPortCounters& c) {
  PortCounters out;
  out.tx_frames = c.tx_frames;
  out.tx_bytes = c.tx_bytes;
  out.rx_frames = c.rx_frames;
  out.rx_bytes = c.rx_bytes;
  out.rx_out_of_buffer = c.rx_out_of_buffer;
  out.tx_malformed = c.tx_malformed;
  out.tx_bad_source = c.tx_bad_source;
  out.tx_unknown_destination = c.tx_unknown_destination;
  out.tx_management = c.tx_management;
  return out;
}

}  // namespace

PortCounters ESwitch::counters(std::uint16_t vf_id) const {
  std::lock_guard lock(impl_->mutex);
  const auto it = impl_->counters.find(vf_id);
  return it != impl_->counters.end() ? snapshot(*it->second) : PortCounters{};
}

PortCounters ESwitch::uplink_counters(std::size_t uplink) const { return snapshot(impl_->uplinks.counters(uplink)); }

void ESwitch::stop() {
  impl_->stopping.store(true);
  raw_eventfd_write(impl_->event.get());
}

// ---- the loop ------------------------------------------------------------------------------------------------

void ESwitch::run() {
  Impl& d = *impl_;
  const unsigned cpus = allowed_cpus();
  const std::uint32_t unknown = d.uplinks.empty() ? 0 : kUnknownPollers;
  d.inbox->busy_pollers.fetch_add(1 + unknown);
  while (!d.stopping.load(std::memory_order_relaxed)) {
    d.turn();
    if (d.worked) continue;
    const Nanos idle = d.now - d.last_work;
    if ((d.hot.empty() && (d.uplinks.empty() || idle > kSpin)) || idle > kHeldBackSpin) {
      d.inbox->busy_pollers.fetch_sub(1);
      d.sleep(d.hot.empty() ? kScan : kHeldBackSleep);
      d.inbox->busy_pollers.fetch_add(1);
    } else if (d.inbox->busy_pollers.load(std::memory_order_relaxed) > cpus) {
      ::sched_yield();
    }
  }
  d.inbox->busy_pollers.fetch_sub(1 + unknown);
}

void ESwitch::Impl::turn() {
  worked = false;
  if (has_commands.load(std::memory_order_acquire)) run_commands();
  now = nic::Clock::system_now();
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
  run_disturber();
  if (serve_uplinks()) worked = true;
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
  // Copied out once: what is checked is what is passed on. Behind the headers nothing is checked here.
  const std::size_t head = std::min<std::size_t>(entry.length, kHeaders);
  const Bytes rest(entry.data + head, entry.length - head);
  // Of known length when it can be: a few moves instead of a loop.
  head == kHeaders ? std::memcpy(frame.data(), entry.data, kHeaders) : std::memcpy(frame.data(), entry.data, head);
  const Verdict verdict = classifier.classify({frame.data(), entry.length}, from.vf_id());
  AtomicPortCounters& c = from.counters();

  targets.clear();
  for (const std::uint16_t id : verdict.destinations)
    if (ports[id] != nullptr) targets.push_back(ports[id].get());
  if (!departing) {
    for (SwitchPort* to : targets)
      if (to->congested() && !to->stalled(now, options.stall_timeout)) return false;
    if (verdict.uplink != kNoUplink && !uplinks.at(verdict.uplink).has_room()) return false;
  }

  count(c, entry.length, verdict, !targets.empty() || verdict.uplink != kNoUplink);
  const bool disturbed = disturbs(verdict);
  if (taps.empty() && !disturbed && verdict.uplink == kNoUplink) {
    // Straight from ring to ring.
    const FrameQueue::Item item{dp::EntryKind::frame, from.vf_id(), Bytes(frame.data(), head), rest};
    for (SwitchPort* to : targets)
      if (deliver(*to, item) == SwitchPort::Delivery::full) add(to->counters().rx_out_of_buffer, 1);
    return true;
  }
  std::memcpy(frame.data() + head, rest.data(), rest.size());
  Passing p;
  p.from.vf = from.vf_id();
  p.to = verdict;
  p.frame = MutableBytes(frame.data(), entry.length);
  disturbed ? options.disturber->on_frame(now, p, *this) : pass(p);
  return true;
}

// Full uplinks and stopped receivers lose a management datagram: its sender repeats it.
void ESwitch::Impl::forward_own(MutableBytes bytes) {
  Passing p;
  p.to = classifier.classify_own(bytes);
  if (p.to.uplink != kNoUplink && !uplinks.at(p.to.uplink).has_room()) return;
  p.frame = bytes;
  if (disturbs(p.to)) {
    options.disturber->on_frame(now, p, *this);
  } else if (p.to.kind == Verdict::Kind::forward) {
    pass(p);
  }
}

bool ESwitch::Impl::disturbs(const Verdict& verdict) const {
  return options.disturber != nullptr && options.disturber->active() && verdict.kind == Verdict::Kind::forward;
}

// Sends a frame where the classifier said.
void ESwitch::Impl::pass(const Passing& p) {
  if (p.to.uplink != kNoUplink && !p.dropped) {
    AtomicPortCounters& out = uplinks.counters(static_cast<std::size_t>(p.to.uplink));
    add(out.rx_frames, 1);
    add(out.rx_bytes, p.frame.size());
    uplinks.at(p.to.uplink).send(now, p.to.dgid, p.to.vlan, p.frame);
  }
  show_and_deliver(p.from, p.to, p.frame, p.comment, p.dropped);
}

void ESwitch::Impl::show_and_deliver(const Ingress& from, const Verdict& to, Bytes bytes, std::string_view comment,
                                     bool dropped) {
  for (const auto& tap : taps) tap->on_frame(from.vf, bytes, comment);
  if (dropped) return;
  if (to.gsi && options.on_gsi) options.on_gsi(bytes);
  for (const std::uint16_t id : to.destinations) {
    SwitchPort* port = ports[id].get();
    if (port != nullptr && deliver(*port, {dp::EntryKind::frame, from.vf, bytes}) == SwitchPort::Delivery::full)
      add(port->counters().rx_out_of_buffer, 1);
  }
}

void ESwitch::Impl::run_disturber() {
  if (options.disturber == nullptr || options.disturber->next_timeout() > now) return;
  options.disturber->on_timeout(now, *this);
  worked = true;
}

bool ESwitch::Impl::serve_uplinks() {
  if (uplinks.empty()) return false;
  uplinks.run_timers(now);
  const bool any = uplinks.receive(now, kBudget, [this](int uplink, Bytes bytes) { forward_from(uplink, bytes); });
  uplinks.flush();
  return any;
}

// A frame from the network. Nobody there can be asked to wait: what a VF has no room for is lost.
void ESwitch::Impl::forward_from(int uplink, Bytes bytes) {
  AtomicPortCounters& c = uplinks.counters(static_cast<std::size_t>(uplink));
  Passing p;
  p.from.uplink = uplink;
  if (bytes.size() <= dp::kMaxFrame) p.to = classifier.classify_from(bytes, uplink);
  const bool wanted = std::ranges::any_of(p.to.destinations, [this](std::uint16_t id) { return ports[id] != nullptr; });
  count(c, bytes.size(), p.to, wanted);
  if (!disturbs(p.to)) return show_and_deliver(p.from, p.to, bytes, {}, false);
  // What may be changed must be ours.
  std::memcpy(frame.data(), bytes.data(), bytes.size());
  p.frame = MutableBytes(frame.data(), bytes.size());
  options.disturber->on_frame(now, p, *this);
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

// Forwards all that a dead process has left in its ring: a peer may wait for its last acknowledgement (rule 10).
// Bounded by the ring, in case it is not dead.
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
  for (const Gid& mgid : classifier.forget(port.vf_id())) uplinks.set_group_member(now, mgid, false);
  if (options.disturber != nullptr) options.disturber->forget(port.vf_id());
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

void ESwitch::Impl::sleep(Nanos timeout) {
  // A frame that an uplink has announced may reach its ring only after we looked there: not yet.
  if (uplinks.drain_wakeups()) {
    last_work = nic::Clock::system_now();
    return;
  }
  dp::prepare_sleep(*inbox);
  if (!dp::inbox_pending(*inbox) && !has_commands.load() && !stopping.load()) {
    const Nanos due = options.disturber != nullptr ? options.disturber->next_timeout() : kNever;
    uplinks.wait(event.get(), now, due > now ? std::min(timeout, due - now) : 0);
    dp::drain_eventfd(event.get());
  }
  dp::end_sleep(*inbox);
  if (uplinks.drain_wakeups()) last_work = nic::Clock::system_now();
  if (nic::Clock::system_now() - last_scan >= kScan) scan();
}

// No wake-up should ever be missing; a VF that scribbles in the inbox can take one away from another.
void ESwitch::Impl::scan() {
  now = last_scan = nic::Clock::system_now();
  for (auto& port : ports)
    if (port != nullptr && (port->has_waiting() || port->ring_in().pending())) make_hot(*port);
}

}  // namespace softrnic::sw
