// The uplinks of the eSwitch: polling, timers and sleeping for all of them. Used by the switch's thread only, counters
// excepted.
#pragma once

#include <memory>
#include <vector>

#include "engine/switch/switch_port.h"
#include "engine/switch/uplink.h"

namespace softrnic::sw {

class UplinkSet {
 public:
  void set(std::vector<std::shared_ptr<Uplink>> uplinks);

  bool empty() const { return uplinks_.empty(); }
  std::size_t size() const { return uplinks_.size(); }
  Uplink& at(int i) { return *uplinks_[static_cast<std::size_t>(i)]; }
  AtomicPortCounters& counters(std::size_t i) const { return *counters_[i]; }

  // Calls on_frame(uplink, frame) for what came in, up to `budget` frames of each. True when there was something.
  template <class F>
  bool receive(Nanos now, int budget, F&& on_frame) {
    bool any = false;
    for (std::size_t i = 0; i < uplinks_.size(); ++i) {
      struct Call {
        F& on_frame;
        int uplink;
      } call{on_frame, static_cast<int>(i)};
      any |= uplinks_[i]->receive(
                 now, budget,
                 [](void* p, Bytes frame) {
                   auto& c = *static_cast<Call*>(p);
                   c.on_frame(c.uplink, frame);
                 },
                 &call) != 0;
    }
    return any;
  }
  // What was sent leaves now. What a device does not take stays for the next call, which wait() brings about in time.
  void flush();
  void set_group_member(Nanos now, const Gid& mgid, bool member);

  // Calls on_timeout() of those whose time has come. Cheap enough for every turn: looks only once in a while.
  void run_timers(Nanos now);

  // True when an uplink has said since the last call that a frame arrived.
  bool drain_wakeups();
  // Sleeps until `fd` or an uplink has something, a timer is due, or `timeout` has passed.
  void wait(int fd, Nanos now, Nanos timeout);

 private:
  std::vector<std::shared_ptr<Uplink>> uplinks_;
  std::vector<std::unique_ptr<AtomicPortCounters>> counters_;
  Nanos timers_due_ = 0;
  bool unsent_ = false;  // flush() left something
};

}  // namespace softrnic::sw
