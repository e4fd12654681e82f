// A way out of the host, as the eSwitch sees it: the network on the other side of a port. All functions are called on
// the switch's thread. In the rings to the VFs, frames from an uplink have the ingress id kNoVf.
#pragma once

#include <cstdint>

#include "protocols/common/types.h"

namespace softrnic::sw {

class Uplink {
 public:
  virtual ~Uplink() = default;

  // Takes up to `budget` frames from the network and calls on_frame(ctx, frame) for those that the uplink does not
  // answer itself. Returns how many frames it took.
  using OnFrame = void (*)(void* ctx, Bytes frame);
  virtual int receive(Nanos now, int budget, OnFrame on_frame, void* ctx) = 0;

  // True when send() would take a frame now. Else the sender waits.
  virtual bool has_room() = 0;
  // Sends a frame of a VF towards `dgid`, in the VLAN that it is tagged for (0xFFFF: untagged). Writes the Ethernet
  // addresses into `frame`. Keeps the frame for a while when the destination's must be found out first, and drops it
  // when nobody has that address.
  virtual void send(Nanos now, const Gid& dgid, std::uint16_t vlan, MutableBytes frame) = 0;
  // What was sent in this turn leaves now. False when the device did not take all of it: call again soon.
  virtual bool flush() = 0;

  // A VF joined or left a multicast group; counted here.
  virtual void set_group_member(Nanos now, const Gid& mgid, bool member) = 0;

  // Timers of the uplink: when on_timeout() wants to be called.
  virtual Nanos next_timeout() const = 0;
  virtual void on_timeout(Nanos now) = 0;

  // A descriptor that becomes readable when a frame arrives, or -1 when the uplink must be looked at by the clock.
  // drain_wakeup() empties it; true: it was readable, and a frame may just be on its way.
  virtual int wakeup_fd() const = 0;
  virtual bool drain_wakeup() = 0;
};

}  // namespace softrnic::sw
