// Wakes a sleeping NIC process when a frame arrives on a kernel interface: a packet socket that nobody reads, since the
// rings of DPDK's net_af_packet have no receive interrupt.
#pragma once

#include <memory>

#include "engine/switch/unique_fd.h"

namespace softrnic::ports {

class PacketWakeup {
 public:
  // Which frames wake: those that the interface received, or those that the kernel sends by it (the NIC is at the other
  // end of a tap).
  enum class Direction { received, sent };
  // Null with errno set when the socket cannot be made.
  static std::unique_ptr<PacketWakeup> open(unsigned ifindex, Direction direction);

  // Readable when a frame has arrived since drain().
  int fd() const { return fd_.get(); }
  // True when it was readable.
  bool drain();

 private:
  sw::UniqueFd fd_;
};

}  // namespace softrnic::ports
