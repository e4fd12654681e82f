#include "engine/ports/host_port.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

namespace softrnic::ports {
namespace {

constexpr std::size_t kEthHeader = 14;
// A device that takes nothing for so long has no link: what more is for it is lost, as with any NIC.
constexpr Nanos kStalled = 100'000'000;

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
  now_ = progress_ = now;
  enter_vlan(now, neigh::kNoVlan);
  for (const neigh::OwnAddress& a : config.addresses) add_address(now, a);
  for (const neigh::Route& r : config.routes) host_.routes().add(r);
  if (device_->kernel_ifindex() != 0) {
    const bool tap = is_driver(config.device, "net_tap");
    wakeup_ = PacketWakeup::open(device_->kernel_ifindex(),
                                 tap ? PacketWakeup::Direction::sent : PacketWakeup::Direction::received);
  }
}

HostPort::~HostPort() = default;

// Each VLAN is an interface, which has a link-local address (RFC 4291 s2.1) and the host's groups.
void HostPort::enter_vlan(Nanos now, std::uint16_t vlan) {
  if (std::find(vlans_.begin(), vlans_.end(), vlan) != vlans_.end()) return;
  vlans_.push_back(vlan);
  host_.add_address(now, {neigh::link_local_of(mac_), 64, vlan});
  for (const auto& [mgid, members] : groups_) host_.join(now, mgid, vlan);
}

void HostPort::leave_vlan_if_unused(Nanos now, std::uint16_t vlan) {
  if (vlan == neigh::kNoVlan) return;
  const Gid link_local = neigh::link_local_of(mac_);
  for (const neigh::OwnAddress& a : host_.configured())
    if (a.vlan == vlan && a.ip != link_local) return;
  host_.remove_address(now, link_local, vlan);
  for (const auto& [mgid, members] : groups_) host_.leave(now, mgid, vlan);
  std::erase(vlans_, vlan);
}

int HostPort::add_address(Nanos now, const neigh::OwnAddress& address) {
  for (const neigh::OwnAddress& a : host_.configured())
    if (a.ip == address.ip && a.vlan == address.vlan) return EEXIST;
  enter_vlan(now, address.vlan);
  if (host_.add_address(now, address)) return transmit_own(now), 0;
  leave_vlan_if_unused(now, address.vlan);
  return EINVAL;
}

int HostPort::remove_address(Nanos now, const Gid& ip, std::uint16_t vlan) {
  if (ip == neigh::link_local_of(mac_)) return EPERM;
  if (!host_.remove_address(now, ip, vlan)) return EADDRNOTAVAIL;
  leave_vlan_if_unused(now, vlan);
  transmit_own(now);
  return 0;
}

PortCounters HostPort::counters() const {
  const Counters& c = counters_;
  PortCounters out;
  out.rx_frames = c.rx_frames;
  out.rx_bytes = c.rx_bytes;
  out.tx_frames = c.tx_frames;
  out.tx_bytes = c.tx_bytes;
  out.rx_other_station = c.rx_other_station;
  out.rx_too_short = c.rx_too_short;
  out.rx_reflected = c.rx_reflected;
  out.rx_own = c.rx_own;
  out.tx_unreachable = c.tx_unreachable;
  out.tx_too_long = c.tx_too_long;
  out.tx_dropped = c.tx_dropped;
  return out;
}

int HostPort::receive(Nanos now, int budget, OnFrame on_frame_callback, void* ctx) {
  now_ = now;
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
  if (frame.size() < kEthHeader) return add(counters_.rx_too_short, 1);
  const bool group = (frame[0] & 1) != 0;
  if (!group && std::memcmp(frame.data(), mac_.data(), 6) != 0) {
    add(counters_.rx_other_station, 1);
  } else if (host_.on_packet(now, frame)) {
    add(counters_.rx_own, 1);
  } else if (std::memcmp(frame.data() + 6, mac_.data(), 6) == 0) {
    add(counters_.rx_reflected, 1);
  } else {
    on_frame_callback(ctx, frame);
  }
}

bool HostPort::has_room() { return device_->has_room() || drop_if_stalled(); }

MutableBytes HostPort::begin_frame() {
  if (device_->unsent() == 0) progress_ = now_;
  return device_->begin();
}

// True when frames were given up, because the device has taken none for too long.
bool HostPort::drop_if_stalled() {
  if (device_->taken() != taken_) {
    taken_ = device_->taken();
    progress_ = now_;
  }
  if (now_ - progress_ < kStalled) return false;
  add(counters_.tx_dropped, device_->discard());
  progress_ = now_;
  return true;
}

void HostPort::send(Nanos now, const Gid& dgid, std::uint16_t vlan, MutableBytes frame) {
  now_ = now;
  const std::size_t header = kEthHeader + (vlan != neigh::kNoVlan ? 4 : 0);
  if (frame.size() > header + device_->mtu()) {
    add(counters_.tx_too_long, 1);
    return;
  }
  std::memcpy(frame.data() + 6, mac_.data(), 6);
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
  std::memcpy(frame.data(), to.data(), 6);
  const MutableBytes out = begin_frame();
  if (out.empty()) {
    add(counters_.tx_dropped, 1);
    return;
  }
  std::memcpy(out.data(), frame.data(), frame.size());
  device_->commit(frame.size());
  add(counters_.tx_frames, 1);
  add(counters_.tx_bytes, frame.size());
}

// Frames of the host itself, and those that waited for a neighbour, as far as the device takes them.
void HostPort::transmit_own(Nanos now) {
  own_waits_ = true;
  while (device_->has_room()) {
    const MutableBytes out = begin_frame();
    if (out.empty()) return;
    const std::size_t length = host_.poll_transmit(now, out);
    if (length == 0) {
      own_waits_ = false;
      return;
    }
    device_->commit(length);
    add(counters_.tx_frames, 1);
    add(counters_.tx_bytes, length);
  }
}

bool HostPort::flush() {
  if (own_waits_) transmit_own(now_);
  if (device_->flush()) return !own_waits_;
  drop_if_stalled();
  return false;
}

void HostPort::on_timeout(Nanos now) {
  now_ = now;
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
  unsigned& members = groups_[mgid];
  members += member ? 1 : -1;
  const bool first = member && members == 1, last = !member && members == 0;
  if (members == 0) groups_.erase(mgid);
  if (!first && !last) return;
  for (const std::uint16_t vlan : vlans_)
    first ? static_cast<void>(host_.join(now, mgid, vlan)) : host_.leave(now, mgid, vlan);
  transmit_own(now);
}

}  // namespace softrnic::ports
