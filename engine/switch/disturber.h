// What stands between the eSwitch's ingress and its forwarding when packets are to be disturbed.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/switch/classifier.h"
#include "protocols/common/types.h"

namespace softrnic::sw {

// Where a frame came from: a VF, or the network behind an uplink.
struct Ingress {
  std::uint16_t vf = dp::kNoVf;
  int uplink = kNoUplink;
  friend bool operator==(const Ingress&, const Ingress&) = default;
};

// A frame on its way out of the disturber.
struct Passing {
  Ingress from;
  Verdict to;  // as the classifier decided for the undisturbed frame
  MutableBytes frame;
  std::string_view comment;  // what was done to it; for captures
  bool dropped = false;      // only to be shown, not to be forwarded
};

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual void pass(const Passing& p) = 0;
};

// All functions but active() are called on the switch's thread.
class Disturber {
 public:
  virtual ~Disturber() = default;

  // False: it has nothing to do, and frames need not pass it. Any thread.
  virtual bool active() const = 0;
  // Takes a frame that is to be forwarded and passes on what becomes of it, now or later. It may change the bytes.
  virtual void on_frame(Nanos now, const Passing& p, FrameSink& out) = 0;
  // When on_timeout() wants to be called; kNever: not at all.
  virtual Nanos next_timeout() const = 0;
  virtual void on_timeout(Nanos now, FrameSink& out) = 0;
  // The VF is gone, its id may be another's next.
  virtual void forget(std::uint16_t vf) = 0;
};

}  // namespace softrnic::sw
