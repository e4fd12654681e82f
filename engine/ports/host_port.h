// A port of the NIC: a network device and the host that lives on it, with its own MAC and IP addresses.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/ports/ethdev_port.h"
#include "engine/ports/packet_wakeup.h"
#include "engine/ports/port_config.h"
#include "engine/switch/uplink.h"
#include "protocols/neigh/host_stack.h"

namespace softrnic::ports {

struct PortCounters {
  std::uint64_t rx_frames = 0, rx_bytes = 0, tx_frames = 0, tx_bytes = 0;  // all that passed the device
  std::uint64_t rx_other_station = 0;    // not for our MAC, dropped
  std::uint64_t rx_own = 0;              // neighbour discovery, echo and the like
  std::uint64_t tx_unreachable = 0;      // no route, or the neighbour does not answer
  std::uint64_t tx_too_long = 0;         // longer than the MTU
  std::uint64_t tx_no_buffer = 0;        // the device took no more
};

class HostPort final : public sw::Uplink {
 public:
  // Starts a port on an opened device. DPDK must run.
  HostPort(std::unique_ptr<EthdevPort> device, const PortConfig& config, Nanos now);
  ~HostPort() override;

  // What the port is; these may be called from any thread.
  const std::string& name() const { return device_->name(); }
  const neigh::Mac& mac() const { return mac_; }
  std::uint32_t mtu() const { return device_->mtu(); }
  const EthdevPort& device() const { return *device_; }
  PortCounters counters() const;

  // Switch's thread:
  neigh::HostStack& host() { return host_; }
  // Called for events of neighbours and addresses.
  void set_on_event(std::function<void(const neigh::HostEvent&)> on_event) { on_event_ = std::move(on_event); }

  int receive(Nanos now, int budget, OnFrame on_frame, void* ctx) override;
  bool has_room() override { return device_->has_room(); }
  void send(Nanos now, const Gid& dgid, std::uint16_t vlan, Bytes frame) override;
  void flush() override { device_->flush(); }
  void set_group_member(Nanos now, const Gid& mgid, bool member) override;
  Nanos next_timeout() const override { return host_.next_timeout(); }
  void on_timeout(Nanos now) override;
  int wakeup_fd() const override { return wakeup_ ? wakeup_->fd() : -1; }
  void drain_wakeup() override;

 private:
  struct Counters {
    std::atomic<std::uint64_t> rx_frames{0}, rx_bytes{0}, tx_frames{0}, tx_bytes{0};
    std::atomic<std::uint64_t> rx_other_station{0}, rx_own{0}, tx_unreachable{0}, tx_too_long{0}, tx_no_buffer{0};
  };
  void on_frame(Nanos now, MutableBytes frame, OnFrame on_frame, void* ctx);
  void transmit_own(Nanos now);
  void report_events();

  std::unique_ptr<EthdevPort> device_;
  const neigh::Mac mac_;
  neigh::HostStack host_;
  std::unique_ptr<PacketWakeup> wakeup_;
  std::function<void(const neigh::HostEvent&)> on_event_;
  Counters counters_;
};

}  // namespace softrnic::ports
