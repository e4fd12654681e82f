// Going to sleep without losing a wake-up, and who counts as polling.
#include <algorithm>

#include <poll.h>
#include <time.h>

#include "engine/datapath/fabric_impl.h"
#include "engine/datapath/fences.h"
#include "engine/nic/raw_io.h"
#include "engine/nic/raw_syscall.h"

namespace softrnic::dp {
namespace {

// Nobody loses a wake-up unless a peer scribbles in our inbox. Against that a sleeper looks again by itself, the less
// often the longer nothing has come, so that an idle process costs nothing.
constexpr Nanos kFirstBackstop = 250'000'000;
constexpr Nanos kPatience = 5'000;
constexpr Nanos kLastBackstop = 64'000'000'000;

}  // namespace

void Fabric::Impl::set_state(Channel& ch, bool polling) {
  // app_polling against helper_polling is for people who look at the ring; senders only ask whether it is armed.
  if (ch.polling_state == polling) return;
  ch.polling_state = polling;
  ch.rx.set_state(polling ? state : ConsumerState::armed);
}

void Fabric::Impl::count_as_poller(bool polling) {
  if (counted_as_poller == polling) return;
  counted_as_poller = polling;
  status->polling.store(polling ? 1 : 0, std::memory_order_relaxed);
  std::atomic<std::uint32_t>& count = to_switch.peer_inbox->busy_pollers;
  if (polling) {
    count.fetch_add(1, std::memory_order_relaxed);
  } else {
    count.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Fabric::set_polling(ConsumerState state) {
  Impl& f = *impl_;
  if (f.state == state) return;
  f.state = state;
  for (Channel* ch : f.hot) {
    ch->polling_state = state != ConsumerState::armed;
    ch->rx.set_state(state);
  }
  end_sleep(*f.inbox);
  f.count_as_poller(state != ConsumerState::armed);
}

bool Fabric::anything_pending() const { return impl_->anything_pending(); }

bool Fabric::Impl::anything_pending() const {
  if (inbox_pending(*inbox) || has_newcomers.load(std::memory_order_relaxed) || link.has_notices()) return true;
  return std::any_of(hot.begin(), hot.end(), [](const Channel* ch) { return ch->rx.pending(); });
}

bool Fabric::arm() {
  Impl& f = *impl_;
  for (Channel* ch : f.hot) {
    if (ch->rx.publish_head(true)) ch->ring_peer();
  }
  f.flush();
  if (f.state != ConsumerState::armed) {
    f.state = ConsumerState::armed;
    for (Channel* ch : f.hot) f.set_state(*ch, false);
    consumer_fence();
  }
  prepare_sleep(*f.inbox);
  if (f.anything_pending()) {
    end_sleep(*f.inbox);
    return false;
  }
  f.count_as_poller(false);
  return true;
}

void Fabric::wait(Nanos timeout) {
  Impl& f = *impl_;
  if (f.active_since_wait.exchange(false, std::memory_order_relaxed) || f.backstop == 0) {
    f.backstop = kFirstBackstop;
  }
  Nanos limit = std::min(timeout, f.backstop);
  pollfd fds[2] = {{f.eventfd, POLLIN, 0}, {f.link.fd(), POLLIN, 0}};
  timespec ts{static_cast<time_t>(limit / 1'000'000'000), static_cast<long>(limit % 1'000'000'000)};
  long n = raw_syscall(SYS_ppoll, raw_pointer(fds), f.link.dead() ? 1 : 2, raw_pointer(&ts), 0, 0);
  end_sleep(*f.inbox);
  if ((fds[0].revents & POLLIN) != 0) drain_eventfd(f.eventfd);
  if (fds[1].revents != 0) f.link.drain();
  if (n == 0 && limit == f.backstop) f.backstop = std::min(2 * f.backstop, kLastBackstop);
  f.scan_due.store(true, std::memory_order_relaxed);
}

void Fabric::wake() { raw_eventfd_write(impl_->eventfd); }

void Fabric::nudge_slow_peers(Nanos now) {
  for (Channel* ch : impl_->hot) {
    if (ch->peer == kNoVf || ch->closing || ch->tx.consumer_armed()) continue;
    const std::uint64_t taken = ch->tx.taken();
    if (taken == ch->tx.tail()) {
      ch->untaken_since = 0;
    } else if (ch->untaken_since == 0 || ch->untaken_at != taken) {
      ch->untaken_since = now;
      ch->untaken_at = taken;
    } else if (now - ch->untaken_since >= kPatience) {
      nudge(*ch->peer_inbox, ch->peer_eventfd);
    }
  }
}

bool Fabric::take_nudge() { return dp::take_nudge(*impl_->inbox); }

bool Fabric::poll_control() {
  Impl& f = *impl_;
  f.link.drain();
  return f.link.has_notices() && f.apply_notices();
}

bool Fabric::nic_process_dead() const { return impl_->link.dead(); }

bool Fabric::crowded() const {
  return impl_->to_switch.peer_inbox->busy_pollers.load(std::memory_order_relaxed) > impl_->cpus;
}

}  // namespace softrnic::dp
