#include "engine/control/server/route_barrier.h"

#include <algorithm>
#include <utility>

namespace softrnic::control {

void RouteBarrier::change(RouteMode mode, std::function<void()> done) {
  later_.push_back({mode, std::move(done)});
  start_next();
}

void RouteBarrier::start_next() {
  while (!changing_ && !later_.empty()) {
    const RouteMode mode = later_.front().mode;
    // Requests for the same mode share one change.
    std::size_t n = 0;
    while (n < later_.size() && later_[n].mode == mode) done_.push_back(std::move(later_[n++].done));
    later_.erase(later_.begin(), later_.begin() + static_cast<std::ptrdiff_t>(n));
    changing_ = true;
    if (mode != mode_) {
      mode_ = mode;
      ++epoch_;
      const auto vfs = callbacks_.live_vfs();
      waiting_for_ = {vfs.begin(), vfs.end()};
      RouteNotice notice{};
      notice.mode = static_cast<std::uint32_t>(mode);
      notice.epoch = epoch_;
      for (const std::uint16_t vf : vfs) callbacks_.notify(vf, notice);
      start_timer();
    }
    finish_if_complete();
  }
}

void RouteBarrier::finish_if_complete() {
  if (!changing_ || !waiting_for_.empty()) return;
  changing_ = false;
  timer_.cancel();
  for (auto& done : std::exchange(done_, {})) done();
}

bool RouteBarrier::acknowledge(std::uint16_t vf, std::uint32_t epoch) {
  if (epoch > epoch_) return false;
  if (epoch == epoch_) forget(vf);
  return true;
}

void RouteBarrier::forget(std::uint16_t vf) {
  if (waiting_for_.erase(vf) == 0) return;
  finish_if_complete();
  start_next();
}

void RouteBarrier::start_timer() {
  timer_.expires_after(timeout_);
  timer_.async_wait([this, epoch = epoch_](const boost::system::error_code& error) {
    if (!error && changing_ && epoch == epoch_) on_timeout();
  });
}

// A VF cannot change over while one that it talks to does not take its mark. So those that are stuck go first, and the
// others get time to follow.
void RouteBarrier::on_timeout() {
  std::vector<std::uint16_t> late(waiting_for_.begin(), waiting_for_.end());
  if (std::ranges::any_of(late, callbacks_.is_stuck))
    std::erase_if(late, [this](std::uint16_t vf) { return !callbacks_.is_stuck(vf); });
  for (const std::uint16_t vf : late) callbacks_.detach(vf);
  start_timer();
}

}  // namespace softrnic::control
