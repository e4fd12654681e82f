// A network device of DPDK: frames in, frames out, one queue each way. Used by one thread, statistics and link state
// excepted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/ports/port_config.h"
#include "protocols/common/types.h"

namespace softrnic::ports {

struct EthdevStats {
  std::uint64_t rx_frames = 0, rx_bytes = 0, tx_frames = 0, tx_bytes = 0;
  std::uint64_t rx_missed = 0, rx_errors = 0, rx_no_buffer = 0, tx_errors = 0;
  std::uint64_t rx_too_long = 0;  // longer than the MTU, dropped
};

class EthdevPort {
 public:
  // Opens and starts the device. 0 or an errno value with a sentence for the user: ENODEV no such device, EINVAL bad
  // arguments or MTU, EPERM, ENOMEM, ...
  static int open(const PortConfig& config, std::unique_ptr<EthdevPort>* out, std::string* why);
  ~EthdevPort();
  EthdevPort(const EthdevPort&) = delete;
  EthdevPort& operator=(const EthdevPort&) = delete;

  const std::string& name() const;
  std::uint32_t mtu() const;  // bytes of an IP packet
  const neigh::Mac& device_mac() const;
  unsigned kernel_ifindex() const;  // of the kernel's interface under the device; 0: none
  bool link_up() const;
  EthdevStats stats() const;

  // Takes up to `budget` frames; calls on_frame(ctx, frame) for each, the VLAN tag in its place. Returns their number.
  using OnFrame = void (*)(void* ctx, MutableBytes frame);
  int receive(int budget, OnFrame on_frame, void* ctx);

  // A buffer for a frame of up to mtu() + 18 bytes, or an empty one when the device takes no more now.
  MutableBytes begin();
  // Sends the first `length` bytes of the buffer. Frames leave in bursts, at the latest with flush().
  void commit(std::size_t length);
  // True when begin() would give a buffer.
  bool has_room();
  // Gives up what the device does not take. Returns the number of frames lost.
  unsigned discard();
  // False when the device did not take everything.
  bool flush();
  unsigned unsent() const;      // frames that it has not taken yet
  std::uint64_t taken() const;  // frames that it has taken so far

 private:
  EthdevPort();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace softrnic::ports
