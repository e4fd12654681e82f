// A port of the NIC: a network device and the host that lives on it, with its own MAC and IP addresses.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
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
  std::uint64_t rx_other_station = 0;                                      // not for our MAC, dropped
  std::uint64_t rx_too_short = 0;                                          // for an Ethernet header, dropped
  std::uint64_t rx_reflected = 0;                                          // our own, come back, dropped
  std::uint64_t rx_own = 0;                                                // neighbour discovery, echo and the like
  std::uint64_t tx_unreachable = 0;                                        // no route, or the neighbour does not answer
  std::uint64_t tx_too_long = 0;                                           // longer than the MTU
  std::uint64_t tx_dropped = 0;  // the device took no more, e.g. because its link is down
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

  // Switch's thread, or before it runs:
  neigh::HostStack& host() { return host_; }
  // Called for events of neighbours and addresses.
  void set_on_event(std::function<void(const neigh::HostEvent&)> on_event) { on_event_ = std::move(on_event); }
  // 0 or an errno value: EEXIST it is there, EINVAL no address of a host.
  int add_address(Nanos now, const neigh::OwnAddress& address);
  // EADDRNOTAVAIL there is none; EPERM the link-local address made from the MAC belongs to the port.
  int remove_address(Nanos now, const Gid& ip, std::uint16_t vlan);

  int receive(Nanos now, int budget, OnFrame on_frame, void* ctx) override;
  bool has_room() override;
  void send(Nanos now, const Gid& dgid, std::uint16_t vlan, MutableBytes frame) override;
  bool flush() override;
  void set_group_member(Nanos now, const Gid& mgid, bool member) override;
  Nanos next_timeout() const override { return host_.next_timeout(); }
  void on_timeout(Nanos now) override;
  int wakeup_fd() const override { return wakeup_ ? wakeup_->fd() : -1; }
  bool drain_wakeup() override { return wakeup_ && wakeup_->drain(); }

 private:
  struct Counters {
    std::atomic<std::uint64_t> rx_frames{0}, rx_bytes{0}, tx_frames{0}, tx_bytes{0};
    std::atomic<std::uint64_t> rx_other_station{0}, rx_too_short{0}, rx_reflected{0}, rx_own{0}, tx_unreachable{0},
        tx_too_long{0}, tx_dropped{0};
  };
  void on_frame(Nanos now, MutableBytes frame, OnFrame on_frame, void* ctx);
  MutableBytes begin_frame();
  bool drop_if_stalled();
  void transmit_own(Nanos now);
  void report_events();
  void enter_vlan(Nanos now, std::uint16_t vlan);
  void leave_vlan_if_unused(Nanos now, std::uint16_t vlan);

  std::unique_ptr<EthdevPort> device_;
  const neigh::Mac mac_;
  neigh::HostStack host_;
  std::vector<std::uint16_t> vlans_;  // that the port is in; each has the link-local address
  std::map<Gid, unsigned> groups_;    // multicast groups of the VFs, and how many VFs are members
  std::unique_ptr<PacketWakeup> wakeup_;
  Nanos now_ = 0;            // of the last call that said it
  Nanos progress_ = 0;       // when the device last took frames, or had none to take
  std::uint64_t taken_ = 0;  // how many it had taken then
  bool own_waits_ = false;   // the host has frames that the device has no room for
  std::function<void(const neigh::HostEvent&)> on_event_;
  Counters counters_;
};

}  // namespace softrnic::ports
