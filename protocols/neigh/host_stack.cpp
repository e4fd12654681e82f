#include "protocols/neigh/host_stack.h"

#include <algorithm>

#include "protocols/wire/eth.h"
#include "protocols/wire/ipv6.h"
#include "protocols/wire/vlan.h"

namespace softrnic::neigh {
namespace {

constexpr Nanos kSecond = 1'000'000'000;
// RFC 5227 s1.1: PROBE_NUM, PROBE_MIN, ANNOUNCE_WAIT, ANNOUNCE_NUM, ANNOUNCE_INTERVAL, DEFEND_INTERVAL.
constexpr unsigned kArpProbes = 3;
constexpr unsigned kAnnouncements = 2;
constexpr Nanos kProbeInterval = kSecond;
constexpr Nanos kAnnounceWait = 2 * kSecond;
constexpr Nanos kAnnounceInterval = 2 * kSecond;
constexpr Nanos kDefendInterval = 10 * kSecond;
constexpr unsigned kNdpProbes = 1;  // DupAddrDetectTransmits, RFC 4862 s5.1

constexpr Gid kAllNodes{{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

}  // namespace

HostStack::HostStack(const HostOptions& options)
    : options_(options), random_(options.seed * 2 + 1), cache_(options.timing, options.seed) {}

Nanos HostStack::random_delay(Nanos most) {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return (random_ >> 20) % (most + 1);
}

// ---- addresses ---------------------------------------------------------------------------------------------------

const HostStack::Own* HostStack::find(const Gid& ip, std::uint16_t vlan) const {
  for (const Own& o : own_)
    if (o.address.vlan == vlan && o.address.ip == ip) return &o;
  return nullptr;
}
HostStack::Own* HostStack::find(const Gid& ip, std::uint16_t vlan) {
  return const_cast<Own*>(static_cast<const HostStack*>(this)->find(ip, vlan));
}

const OwnAddress* HostStack::own(const Gid& ip, std::uint16_t vlan) const {
  const Own* o = find(ip, vlan);
  return o != nullptr && !o->tentative ? &o->address : nullptr;
}

std::vector<OwnAddress> HostStack::addresses() const {
  std::vector<OwnAddress> all;
  for (const Own& o : own_)
    if (!o.tentative) all.push_back(o.address);
  return all;
}

std::vector<OwnAddress> HostStack::configured() const {
  std::vector<OwnAddress> all;
  for (const Own& o : own_) all.push_back(o.address);
  return all;
}

bool HostStack::add_address(Nanos now, const OwnAddress& address) {
  const bool ipv4 = is_ipv4(address.ip);
  if (is_multicast(address.ip) || is_unspecified(address.ip) || find(address.ip, address.vlan) != nullptr) return false;
  if (address.prefix_length > (ipv4 ? 32 : 128)) return false;
  if (!ipv4 && !join(now, solicited_node_group(address.ip), address.vlan)) return false;
  if (!is_link_local(address.ip)) routes_.add({address.ip, address.prefix_length, Gid{}, address.vlan});
  Own o;
  o.address = address;
  o.tentative = options_.detect_duplicates;
  o.steps = !o.tentative ? kAnnouncements : ipv4 ? kArpProbes : kNdpProbes;
  own_.push_back(o);
  step(now, own_.back());
  return true;
}

bool HostStack::remove_address(Nanos now, const Gid& ip, std::uint16_t vlan) {
  const Own* o = find(ip, vlan);
  if (o == nullptr) return false;
  const OwnAddress gone = o->address;  // `ip` may be the one in there
  own_.erase(own_.begin() + (o - own_.data()));
  if (!is_ipv4(gone.ip)) leave(now, solicited_node_group(gone.ip), gone.vlan);
  // The prefix stays on the link while another address has it.
  const auto same = [&](const Own& other) {
    return other.address.vlan == gone.vlan && other.address.prefix_length == gone.prefix_length &&
           same_prefix(other.address.ip, gone.ip, gone.prefix_length);
  };
  if (std::none_of(own_.begin(), own_.end(), same)) routes_.remove(gone.ip, gone.prefix_length, gone.vlan);
  return true;
}

// The next probe or announcement of an address, or the end of its detection.
void HostStack::step(Nanos now, Own& o) {
  if (o.tentative && o.steps == 0) {
    o.tentative = false;
    o.steps = kAnnouncements;
    events_.push_back({HostEvent::Kind::address_ready, o.address.ip, o.address.vlan, options_.mac});
  }
  --o.steps;
  if (o.tentative) {
    probe(o);
    o.due = now + (o.steps > 0 || !is_ipv4(o.address.ip) ? kProbeInterval : kAnnounceWait);
  } else {
    announce(o);
    o.due = o.steps > 0 ? now + kAnnounceInterval : kNever;
  }
}

void HostStack::conflict(Nanos now, Own& o, const Mac& mac) {
  const HostEvent::Kind kind = o.tentative ? HostEvent::Kind::address_duplicate : HostEvent::Kind::address_conflict;
  events_.push_back({kind, o.address.ip, o.address.vlan, mac});
  if (o.tentative) {
    remove_address(now, o.address.ip, o.address.vlan);
  } else if (o.defended == 0 || now - o.defended >= kDefendInterval) {  // RFC 5227 s2.4 (b)
    o.defended = now;
    announce(o);
  }
}

bool HostStack::on_link(const Gid& ip, std::uint16_t vlan) const {
  Gid hop;
  return !is_multicast(ip) && !is_unspecified(ip) && routes_.next_hop(ip, vlan, &hop) && hop == ip;
}

// The address to speak to `dst` from: one that shares its prefix, else any of its family and scope.
Gid HostStack::source_for(const Gid& dst, std::uint16_t vlan) const {
  const Own* best = nullptr;
  for (const Own& o : own_) {
    if (o.tentative || o.address.vlan != vlan || is_ipv4(o.address.ip) != is_ipv4(dst)) continue;
    if (is_link_local(dst) != is_link_local(o.address.ip)) continue;
    if (same_prefix(o.address.ip, dst, o.address.prefix_length)) return o.address.ip;
    if (best == nullptr) best = &o;
  }
  if (best != nullptr) return best->address.ip;
  return is_ipv4(dst) ? from_ipv4(0) : link_local_in(vlan);
}

Gid HostStack::link_local_in(std::uint16_t vlan) const {
  for (const Own& o : own_)
    if (!o.tentative && o.address.vlan == vlan && is_link_local(o.address.ip)) return o.address.ip;
  return Gid{};
}

// ---- frames of our own -------------------------------------------------------------------------------------------

std::uint8_t* HostStack::new_frame(const Mac& dst, std::uint16_t vlan, std::uint16_t ethertype, std::size_t body) {
  const std::size_t header = wire::EthHeader::kSize + (vlan != kNoVlan ? wire::VlanTag::kSize : 0);
  std::vector<std::uint8_t>* frame = &discard_;
  if (output_.size() < kMaxOutput) {
    frame = &output_.emplace_back();
  } else {
    ++counters_.output_dropped;
  }
  frame->assign(header + body, 0);
  wire::EthHeader eth;
  std::memcpy(eth.dst, dst.data(), 6);
  std::memcpy(eth.src, options_.mac.data(), 6);
  eth.ethertype = vlan != kNoVlan ? wire::kEthertypeVlan : ethertype;
  eth.store(frame->data());
  if (vlan != kNoVlan)
    wire::VlanTag{wire::VlanTag::make_tci(0, vlan), ethertype}.store(frame->data() + wire::EthHeader::kSize);
  return frame->data() + header;
}

std::uint8_t* HostStack::new_ipv6(const Mac& mac, std::uint16_t vlan, const Gid& src, const Gid& dst,
                                  std::uint8_t next_header, std::uint8_t hop_limit, std::size_t payload) {
  std::uint8_t* p = new_frame(mac, vlan, wire::kEthertypeIpv6, wire::Ipv6Header::kSize + payload);
  wire::Ipv6Header ip;
  ip.payload_length = static_cast<std::uint16_t>(payload);
  ip.next_header = next_header;
  ip.hop_limit = hop_limit;
  ip.src = src;
  ip.dst = dst;
  ip.store(p);
  return p + wire::Ipv6Header::kSize;
}

// Tells everybody: an ARP announcement (RFC 5227 s2.3) or an unsolicited advertisement (RFC 4861 s7.2.6).
void HostStack::announce(const Own& o) {
  const OwnAddress& a = o.address;
  if (is_ipv4(a.ip)) {
    wire::ArpPacket arp;
    std::memcpy(arp.sender_mac, options_.mac.data(), 6);
    arp.sender_ip = arp.target_ip = to_ipv4(a.ip);
    arp.store(new_frame(kBroadcastMac, a.vlan, wire::kEthertypeArp, wire::ArpPacket::kSize));
    return;
  }
  wire::NdpMessage na;
  na.type = wire::kNdpAdvertisement;
  na.flags = wire::NdpMessage::kOverride;
  na.target = a.ip;
  na.has_mac = true;
  std::memcpy(na.mac, options_.mac.data(), 6);
  na.store(
      new_ipv6(multicast_mac(kAllNodes), a.vlan, a.ip, kAllNodes, wire::kIpProtoIcmpv6, wire::kNdpHopLimit, na.size()),
      a.ip, kAllNodes);
}

// Asks whether anybody has a tentative address (RFC 5227 s2.1.1, RFC 4862 s5.4.2).
void HostStack::probe(const Own& o) {
  const OwnAddress& a = o.address;
  if (is_ipv4(a.ip)) {
    wire::ArpPacket arp;
    std::memcpy(arp.sender_mac, options_.mac.data(), 6);
    arp.target_ip = to_ipv4(a.ip);
    arp.store(new_frame(kBroadcastMac, a.vlan, wire::kEthertypeArp, wire::ArpPacket::kSize));
    return;
  }
  const Gid dst = solicited_node_group(a.ip);
  wire::NdpMessage ns;
  ns.target = a.ip;
  ns.store(new_ipv6(multicast_mac(dst), a.vlan, Gid{}, dst, wire::kIpProtoIcmpv6, wire::kNdpHopLimit, ns.size()), Gid{},
           dst);
}

void HostStack::solicit(const NeighbourCache::Solicit& s) {
  const Gid& target = s.key.ip;
  const Gid src = source_for(target, s.key.vlan);
  if (is_ipv4(target)) {
    wire::ArpPacket arp;
    std::memcpy(arp.sender_mac, options_.mac.data(), 6);
    arp.sender_ip = to_ipv4(src);
    arp.target_ip = to_ipv4(target);
    arp.store(new_frame(s.unicast ? s.mac : kBroadcastMac, s.key.vlan, wire::kEthertypeArp, wire::ArpPacket::kSize));
    return;
  }
  const Gid dst = s.unicast ? target : solicited_node_group(target);
  wire::NdpMessage ns;
  ns.target = target;
  ns.has_mac = !is_unspecified(src);  // RFC 4861 s4.3: not with the unspecified source
  std::memcpy(ns.mac, options_.mac.data(), 6);
  ns.store(new_ipv6(s.unicast ? s.mac : multicast_mac(dst), s.key.vlan, src, dst, wire::kIpProtoIcmpv6,
                    wire::kNdpHopLimit, ns.size()),
           src, dst);
}

// ---- frames of others --------------------------------------------------------------------------------------------

HostStack::Verdict HostStack::send(Nanos now, const Gid& dst, std::uint16_t vlan, Bytes frame, Mac* mac) {
  if (is_multicast(dst)) {
    *mac = multicast_mac(dst);
    return Verdict::ready;
  }
  NeighbourKey key{{}, vlan};
  if (!routes_.next_hop(dst, vlan, &key.ip)) {
    ++counters_.no_route;
    return Verdict::unreachable;
  }
  switch (cache_.use(now, key, mac)) {
    case NeighbourCache::Result::ready:
      return Verdict::ready;
    case NeighbourCache::Result::pending:
      if (cache_.hold(key, frame)) return Verdict::held;
      break;
    case NeighbourCache::Result::failed:
      break;
  }
  ++counters_.unreachable;
  return Verdict::unreachable;
}

// ---- the five calls ----------------------------------------------------------------------------------------------

std::size_t HostStack::poll_transmit(Nanos now, MutableBytes out) {
  NeighbourCache::Solicit s;
  while (cache_.poll_solicit(&s)) solicit(s);
  while (!output_.empty()) {
    const std::vector<std::uint8_t> frame = std::move(output_.front());
    output_.pop_front();
    if (frame.size() > out.size()) continue;
    std::memcpy(out.data(), frame.data(), frame.size());
    return frame.size();
  }
  NeighbourCache::Ready ready;
  while (cache_.poll_ready(&ready)) {
    if (ready.frame.size() > out.size()) continue;
    std::memcpy(out.data(), ready.frame.data(), ready.frame.size());
    std::memcpy(out.data(), ready.mac.data(), 6);
    std::memcpy(out.data() + 6, options_.mac.data(), 6);
    return ready.frame.size();
  }
  return 0;
}

Nanos HostStack::next_timeout() const {
  Nanos at = cache_.next_timeout();
  for (const Own& o : own_) at = std::min(at, o.due);
  for (const Group& g : groups_) at = std::min(at, g.due);
  return at;
}

void HostStack::on_timeout(Nanos now) {
  if (cache_.next_timeout() <= now) cache_.on_timeout(now);
  for (Own& o : own_)
    if (o.due <= now) step(now, o);
  report_groups(now);
}

bool HostStack::poll_event(HostEvent* out) {
  NeighbourKey failed;
  while (cache_.poll_failed(&failed))
    events_.push_back({HostEvent::Kind::neighbour_failed, failed.ip, failed.vlan, Mac{}});
  if (events_.empty()) return false;
  *out = events_.front();
  events_.pop_front();
  return true;
}

}  // namespace softrnic::neigh
