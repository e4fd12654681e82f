#include "engine/switch/uplink_set.h"

#include <poll.h>

#include <algorithm>
#include <ctime>

namespace softrnic::sw {
namespace {

constexpr Nanos kTimerLook = 1'000'000;  // timers are looked at so often while the switch is awake
// So often it looks while it sleeps for an uplink without a descriptor, and for room where something is still unsent.
constexpr Nanos kBlindPoll = 500'000;

}  // namespace

void UplinkSet::set(std::vector<std::shared_ptr<Uplink>> uplinks) {
  uplinks_ = std::move(uplinks);
  counters_.clear();
  for (std::size_t i = 0; i < uplinks_.size(); ++i) counters_.push_back(std::make_unique<AtomicPortCounters>());
}

void UplinkSet::flush() {
  unsent_ = false;
  for (const auto& uplink : uplinks_)
    if (!uplink->flush()) unsent_ = true;
}

void UplinkSet::set_group_member(Nanos now, const Gid& mgid, bool member) {
  for (const auto& uplink : uplinks_) uplink->set_group_member(now, mgid, member);
}

void UplinkSet::run_timers(Nanos now) {
  if (uplinks_.empty() || now < timers_due_) return;
  for (const auto& uplink : uplinks_)
    if (uplink->next_timeout() <= now) uplink->on_timeout(now);
  timers_due_ = now + kTimerLook;
}

bool UplinkSet::drain_wakeups() {
  bool any = false;
  for (const auto& uplink : uplinks_) any |= uplink->drain_wakeup();
  return any;
}

void UplinkSet::wait(int fd, Nanos now, Nanos timeout) {
  if (unsent_) timeout = std::min(timeout, kBlindPoll);
  std::vector<pollfd> fds{{fd, POLLIN, 0}};
  for (const auto& uplink : uplinks_) {
    const Nanos due = uplink->next_timeout();
    if (due != kNever) timeout = std::min(timeout, due > now ? due - now : 0);
    if (const int wakeup = uplink->wakeup_fd(); wakeup >= 0) {
      fds.push_back({wakeup, POLLIN, 0});
    } else {
      timeout = std::min(timeout, kBlindPoll);
    }
  }
  timers_due_ = 0;
  const timespec t{static_cast<time_t>(timeout / 1'000'000'000u), static_cast<long>(timeout % 1'000'000'000u)};
  ::ppoll(fds.data(), fds.size(), &t, nullptr);
}

}  // namespace softrnic::sw
