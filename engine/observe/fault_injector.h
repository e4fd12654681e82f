// The fault engine between the eSwitch's thread, which applies rules, and the control server's, which changes them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "engine/observe/fault_engine.h"
#include "engine/switch/disturber.h"

namespace softrnic::observe {

class FaultInjector : public sw::Disturber {
 public:
  static constexpr std::size_t kMaxEvents = 4096;  // that wait to be taken

  FaultInjector();

  // --- control, any thread ---
  // `notify` is called, on the switch's thread, when there are events and there were none before. Set before the switch
  // runs.
  void set_notify(std::function<void()> notify) { notify_ = std::move(notify); }
  std::uint32_t add(FaultRule rule);
  // The switch has to be woken afterwards: what the rule held back is due.
  bool remove(std::uint32_t id);
  std::vector<FaultStatus> list() const;
  std::size_t size() const;
  // The faults applied since the last call; `*lost` of them are missing because nobody took them.
  std::vector<FaultEvent> take_events(std::uint64_t* lost);

  // --- the switch's thread ---
  bool active() const override { return active_.load(std::memory_order_acquire); }
  void on_frame(Nanos now, const sw::Passing& p, sw::FrameSink& out) override;
  Nanos next_timeout() const override { return due_.load(std::memory_order_acquire); }
  void on_timeout(Nanos now, sw::FrameSink& out) override;
  void forget(std::uint16_t vf) override;

 private:
  void on_applied(const FaultEvent& event);
  void publish();

  mutable std::mutex mutex_;  // for all but the atomics
  FaultEngine engine_;
  std::vector<FaultEvent> events_;
  std::uint64_t lost_ = 0;
  std::function<void()> notify_;
  std::atomic<bool> active_{false};
  std::atomic<Nanos> due_{kNever};
};

}  // namespace softrnic::observe
