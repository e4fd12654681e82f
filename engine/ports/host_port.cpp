#include "engine/ports/host_port.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace softrnic::ports {
namespace {

constexpr std::size_t kEthHeader = 14;

// One writer: no need for a locked instruction.
void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

neigh::HostOptions host_options(const EthdevPort& device, const neigh::Mac& mac, const PortConfig& config) {
  neigh::HostOptions o;
  o.mac = mac;
  o.mtu = device.mtu();
  o.detect_duplicates = config.detect_duplicates;
  o.seed = std::random_device{}();
  return o;
}

}  // namespace

HostPort::HostPort(std::unique_ptr<EthdevPort> device, const PortConfig& config, Nanos now)
    : device_(std::move(device)),
      mac_(config.mac.value_or(default_mac(config.device, device_->device_mac()))),
      host_(host_options(*device_, mac_, config)) {
  // A link-local address in every VLAN there is (RFC 4291 s2.1: each interface has one).
  std::vector<std::uint16_t> vlans{neigh::kNoVlan};
  for (const neigh::OwnAddress& a : config.addresses)
    if (std::find(vlans.begin(), vlans.end(), a.vlan) == vlans.end()) vlans.push_back(a.vlan);
  for (const std::uint16_t vlan : vlans) host_.add_address(now, {neigh::link_local_of(mac_), 64, vlan});
  for (const neigh::OwnAddress& a : config.addresses) host_.add_address(now, a);
  for (const neigh::Route& r : config.routes) host_.routes().add(r);
  if (device_->kernel_ifindex() != 0) {
    const bool tap = is_driver(config.device, "net_tap");
    wakeup_ = PacketWakeup::open(device_->kernel_ifindex(),
                                 tap ? PacketWakeup::Direction::sent : PacketWakeup::Direction::received);
  }
}

HostPort::~HostPort() = default;

PortCounters HostPort::counters() const {
  const Counters& c = counters_;
  PortCounters out;
  out.rx_frames = c.rx_frames;
  out.rx_bytes = c.rx_bytes;
  out.tx_frames = c.tx_frames;
  out.tx_bytes = c.tx_bytes;
  out.rx_other_station = c.rx_other_station;
  out.rx_own = c.rx_own;
  out.tx_unreachable = c.tx_unreachable;
  out.tx_too_long = c.tx_too_long;
  out.tx_no_buffer = c.tx_no_buffer;
  return out;
}

int HostPort::receive(Nanos now, int budget, OnFrame on_frame_callback, void* ctx) {
  struct Call {
    HostPort* port;
    Nanos now;
    OnFrame on_frame;
    void* ctx;
  } call{this, now, on_frame_callback, ctx};
  const int taken = device_->receive(
      budget,
      [](void* p, MutableBytes frame) {
        const Call& c = *static_cast<Call*>(p);
        c.port->on_frame(c.now, frame, c.on_frame, c.ctx);
      },
      &call);
  if (taken != 0) {
    transmit_own(now);
    report_events();
  }
  return taken;
}

void HostPort::on_frame(Nanos now, MutableBytes frame, OnFrame on_frame_callback, void* ctx) {
  add(counters_.rx_frames, 1);
  add(counters_.rx_bytes, frame.size());
  if (frame.size() < kEthHeader) return;
  const bool group = (frame[0] & 1) != 0;
  if (!group && std::memcmp(frame.data(), mac_.data(), 6) != 0) {
    add(counters_.rx_other_station, 1);
  } else if (host_.on_packet(now, frame)) {
    add(counters_.rx_own, 1);
  } else if (std::memcmp(frame.data() + 6, mac_.data(), 6) != 0) {  // not our own, come back
    on_frame_callback(ctx, frame);
  }
}

void HostPort::send(Nanos now, const Gid& dgid, std::uint16_t vlan, Bytes frame) {
  const std::size_t header = kEthHeader + (vlan != neigh::kNoVlan ? 4 : 0);
  if (frame.size() > header + device_->mtu()) {
    add(counters_.tx_too_long, 1);
    return;
  }
  neigh::Mac to;
  switch (host_.send(now, dgid, vlan, frame, &to)) {
    case neigh::HostStack::Verdict::unreachable:
      add(counters_.tx_unreachable, 1);
      return;
    case neigh::HostStack::Verdict::held:
      transmit_own(now);  // the question
      return;
    case neigh::HostStack::Verdict::ready:
      break;
  }
  const MutableBytes out = device_->begin();
  if (out.empty()) {
    add(counters_.tx_no_buffer, 1);
    return;
  }
  std::memcpy(out.data() + 12, frame.data() + 12, frame.size() - 12);
  std::memcpy(out.data(), to.data(), 6);
  std::memcpy(out.data() + 6, mac_.data(), 6);
  device_->commit(frame.size());
  add(counters_.tx_frames, 1);
  add(counters_.tx_bytes, frame.size());
}

// Frames of the host itself, and those that waited for a neighbour, as far as the device takes them.
void HostPort::transmit_own(Nanos now) {
  while (device_->has_room()) {
    const MutableBytes out = device_->begin();
    if (out.empty()) break;
    const std::size_t length = host_.poll_transmit(now, out);
    if (length == 0) break;
    device_->commit(length);
    add(counters_.tx_frames, 1);
    add(counters_.tx_bytes, length);
  }
}

void HostPort::on_timeout(Nanos now) {
  host_.on_timeout(now);
  transmit_own(now);
  report_events();
}

void HostPort::report_events() {
  neigh::HostEvent event;
  while (host_.poll_event(&event))
    if (on_event_) on_event_(event);
}

void HostPort::set_group_member(Nanos now, const Gid& mgid, bool member) {
  // The group of an IPv4 RoCE v2 packet is an IPv4 group; its GID is the mapped address.
  for (const neigh::OwnAddress& a : host_.addresses()) {
    if (!neigh::is_link_local(a.ip)) continue;  // one a VLAN
    member ? static_cast<void>(host_.join(now, mgid, a.vlan)) : host_.leave(now, mgid, a.vlan);
  }
  transmit_own(now);
}

void HostPort::drain_wakeup() {
  if (wakeup_) wakeup_->drain();
}

}  // namespace softrnic::ports
