// Changes of route for all VFs at once: tells them, waits until each has changed over, and gives up on those that do
// not. Changes asked for meanwhile come afterwards.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "engine/control/wire.h"

namespace softrnic::control {

class RouteBarrier {
 public:
  struct Callbacks {
    std::function<std::vector<std::uint16_t>()> live_vfs;
    std::function<void(std::uint16_t vf, const RouteNotice&)> notify;
    // The VF has not even read its notice: it is stopped. Others may wait for it.
    std::function<bool(std::uint16_t vf)> is_stuck;
    std::function<void(std::uint16_t vf)> detach;  // the VF did not follow in time
  };
  RouteBarrier(boost::asio::io_context& io) : timer_(io) {}
  void configure(std::chrono::milliseconds timeout, Callbacks callbacks) {
    timeout_ = timeout;
    callbacks_ = std::move(callbacks);
  }

  // The mode that VFs which attach now start with.
  RouteMode mode() const { return mode_; }
  std::uint32_t epoch() const { return epoch_; }

  // Calls `done` once every VF follows `mode`, at once when that is so already.
  void change(RouteMode mode, std::function<void()> done);
  // The VF has changed over to `epoch`; false when that epoch never was.
  bool acknowledge(std::uint16_t vf, std::uint32_t epoch);
  // The VF is gone.
  void forget(std::uint16_t vf);

 private:
  struct Wanted {
    RouteMode mode;
    std::function<void()> done;
  };
  void start_next();
  void finish_if_complete();
  void start_timer();
  void on_timeout();

  boost::asio::steady_timer timer_;
  std::chrono::milliseconds timeout_{10000};
  Callbacks callbacks_;
  RouteMode mode_ = RouteMode::direct;
  std::uint32_t epoch_ = 0;
  bool changing_ = false;
  std::set<std::uint16_t> waiting_for_;
  std::vector<std::function<void()>> done_;  // of the change under way
  std::vector<Wanted> later_;
};

}  // namespace softrnic::control
