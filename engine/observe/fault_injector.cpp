#include "engine/observe/fault_injector.h"

#include <utility>

namespace softrnic::observe {

FaultInjector::FaultInjector() : engine_([this](const FaultEvent& event) { on_applied(event); }) {}

std::uint32_t FaultInjector::add(FaultRule rule) {
  std::lock_guard lock(mutex_);
  const std::uint32_t id = engine_.add(std::move(rule));
  publish();
  return id;
}

bool FaultInjector::remove(std::uint32_t id) {
  std::lock_guard lock(mutex_);
  const bool removed = engine_.remove(id);
  publish();
  return removed;
}

std::vector<FaultStatus> FaultInjector::list() const {
  std::lock_guard lock(mutex_);
  return engine_.list();
}

std::size_t FaultInjector::size() const {
  std::lock_guard lock(mutex_);
  return engine_.size();
}

std::vector<FaultEvent> FaultInjector::take_events(std::uint64_t* lost) {
  std::lock_guard lock(mutex_);
  *lost = std::exchange(lost_, 0);
  return std::exchange(events_, {});
}

void FaultInjector::on_frame(Nanos now, const sw::Passing& p, sw::FrameSink& out) {
  std::lock_guard lock(mutex_);
  engine_.on_frame(now, p, out);
  publish();
}

void FaultInjector::on_timeout(Nanos now, sw::FrameSink& out) {
  std::lock_guard lock(mutex_);
  engine_.on_timeout(now, out);
  publish();
}

void FaultInjector::forget(std::uint16_t vf) {
  std::lock_guard lock(mutex_);
  engine_.forget(vf);
  publish();
}

// Called by the engine, with the lock held.
void FaultInjector::on_applied(const FaultEvent& event) {
  if (events_.size() >= kMaxEvents) {
    ++lost_;
    return;
  }
  events_.push_back(event);
  if (events_.size() == 1 && notify_) notify_();
}

// What the switch may look at without the lock.
void FaultInjector::publish() {
  active_.store(!engine_.idle(), std::memory_order_release);
  due_.store(engine_.next_timeout(), std::memory_order_release);
}

}  // namespace softrnic::observe
