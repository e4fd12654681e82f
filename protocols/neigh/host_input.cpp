// The receive side of HostStack: ARP, Neighbour Discovery and echo.
#include <algorithm>

#include "protocols/neigh/host_stack.h"
#include "protocols/wire/eth.h"
#include "protocols/wire/ipv4.h"
#include "protocols/wire/ipv6.h"
#include "protocols/wire/vlan.h"

namespace softrnic::neigh {
namespace {

constexpr std::size_t kMaxEvents = 256;
constexpr std::uint8_t kHopByHop = 0;

Gid ipv4_at(const std::uint8_t* p) { return from_ipv4(load_be32(p)); }

}  // namespace

bool HostStack::malformed() {
  ++counters_.malformed;
  return true;
}

bool HostStack::on_packet(Nanos now, Bytes frame) {
  if (frame.size() < wire::EthHeader::kSize) return false;
  const wire::EthView eth(frame.data());
  Input in;
  in.dst = load_mac(eth.dst());
  in.src = load_mac(eth.src());
  in.ethertype = eth.ethertype();
  in.body = frame.subspan(wire::EthHeader::kSize);
  if (in.ethertype == wire::kEthertypeVlan) {
    if (in.body.size() < wire::VlanTag::kSize) return false;
    const wire::VlanView tag(in.body.data());
    in.vlan = wire::VlanTag::vlan_of(tag.tci());
    in.ethertype = tag.ethertype();
    in.body = in.body.subspan(wire::VlanTag::kSize);
  }
  // Our own frames come back where a hub or a capture is in the way.
  if (!is_unicast(in.src) || in.src == options_.mac) return false;
  if ((in.dst[0] & 1) == 0 && in.dst != options_.mac) return false;
  if (events_.size() > kMaxEvents) events_.pop_front();
  switch (in.ethertype) {
    case wire::kEthertypeArp:
      return on_arp(now, in);
    case wire::kEthertypeIpv4:
      return on_ipv4(now, in);
    case wire::kEthertypeIpv6:
      return on_ipv6(now, in);
    default:
      return false;
  }
}

// ---- ARP (RFC 826) -----------------------------------------------------------------------------------------------

bool HostStack::on_arp(Nanos now, const Input& in) {
  if (in.body.size() < wire::ArpPacket::kSize || !wire::ArpPacket::is_ethernet_ipv4(in.body.data())) return malformed();
  const wire::ArpPacket arp = wire::ArpPacket::load(in.body.data());
  if (arp.operation != wire::ArpPacket::kRequest && arp.operation != wire::ArpPacket::kReply) return malformed();
  const Mac sender_mac = load_mac(arp.sender_mac);
  if (!is_unicast(sender_mac)) return malformed();
  const Gid sender = from_ipv4(arp.sender_ip), target = from_ipv4(arp.target_ip);

  if (Own* mine = find(sender, in.vlan); mine != nullptr && sender_mac != options_.mac) {
    conflict(now, *mine, sender_mac);
    return true;
  }
  Own* asked = find(target, in.vlan);
  const bool request = arp.operation == wire::ArpPacket::kRequest;
  // Another station probes for the address that we are probing for (RFC 5227 s2.1.1).
  if (asked != nullptr && asked->tentative && request && is_unspecified(sender) && sender_mac != options_.mac) {
    conflict(now, *asked, sender_mac);
    return true;
  }
  const bool for_us = asked != nullptr && !asked->tentative;
  if (on_link(sender, in.vlan)) {
    const NeighbourKey key{sender, in.vlan};
    if (!request) {
      cache_.on_advertisement(now, key, sender_mac, for_us, true);
    } else if (for_us) {
      cache_.on_source(now, key, sender_mac, true);
    } else {
      // RFC 826: a sender that is known is brought up to date whomever it asks for; announcements among them.
      cache_.on_source(now, key, sender_mac, false);
    }
  }
  if (request && for_us) send_arp_reply(in, arp);
  return true;
}

void HostStack::send_arp_reply(const Input& in, const wire::ArpPacket& request) {
  wire::ArpPacket reply;
  reply.operation = wire::ArpPacket::kReply;
  std::memcpy(reply.sender_mac, options_.mac.data(), 6);
  reply.sender_ip = request.target_ip;
  std::memcpy(reply.target_mac, request.sender_mac, 6);
  reply.target_ip = request.sender_ip;
  reply.store(new_frame(load_mac(request.sender_mac), in.vlan, wire::kEthertypeArp, wire::ArpPacket::kSize));
}

// ---- IPv4 --------------------------------------------------------------------------------------------------------

bool HostStack::on_ipv4(Nanos now, const Input& in) {
  if (in.body.size() < wire::Ipv4Header::kSize) return false;
  const wire::Ipv4View ip(in.body.data());
  if (ip.protocol() != wire::kIpProtoIcmp && ip.protocol() != wire::kIpProtoIgmp) return false;
  const std::size_t header = ip.header_length(), total = ip.total_length();
  if (ip.version() != 4 || header < wire::Ipv4Header::kSize || total < header || total > in.body.size())
    return malformed();
  if (wire::inet_fold(wire::inet_sum(in.body.data(), header)) != 0xFFFFu) return malformed();
  if (ip.is_fragment()) return true;  // nothing here is ever longer than a packet
  const Gid src = ipv4_at(ip.src()), dst = ipv4_at(ip.dst());
  const Bytes message = in.body.subspan(header, total - header);
  if (message.size() < wire::kIcmpEchoSize || !wire::icmp_checksum_ok(message.data(), message.size()))
    return malformed();
  if (ip.protocol() == wire::kIpProtoIgmp) {
    on_igmp(now, in, dst, message);
  } else if (message[0] == wire::kIcmpEcho && message[1] == 0) {
    reply_echo4(in, src, dst, message);
  }
  return true;
}

// RFC 792 p14: source and destination reversed, type 0, the rest as it came. RFC 1122 s3.2.2.6: not for broadcasts.
void HostStack::reply_echo4(const Input& in, const Gid& src, const Gid& dst, Bytes message) {
  if (own(dst, in.vlan) == nullptr || in.dst != options_.mac || is_multicast(src) || is_unspecified(src)) return;
  ++counters_.echo_requests;
  if (wire::Ipv4Header::kSize + message.size() > options_.mtu) return;
  std::uint8_t* p = new_frame(in.src, in.vlan, wire::kEthertypeIpv4, wire::Ipv4Header::kSize + message.size());
  wire::Ipv4Header ip;
  ip.total_length = static_cast<std::uint16_t>(wire::Ipv4Header::kSize + message.size());
  ip.protocol = wire::kIpProtoIcmp;
  ip.src = to_ipv4(dst);
  ip.dst = to_ipv4(src);
  ip.store(p);
  p += wire::Ipv4Header::kSize;
  std::memcpy(p, message.data(), message.size());
  p[0] = wire::kIcmpEchoReply;
  wire::icmp_store_checksum(p, message.size());
}

// ---- IPv6 --------------------------------------------------------------------------------------------------------

bool HostStack::on_ipv6(Nanos now, const Input& in) {
  if (in.body.size() < wire::Ipv6Header::kSize) return false;
  const wire::Ipv6View ip(in.body.data());
  std::uint8_t next = ip.next_header();
  if (next != wire::kIpProtoIcmpv6 && next != kHopByHop) return false;
  if (ip.version() != 6 || wire::Ipv6Header::kSize + ip.payload_length() > in.body.size()) return malformed();
  Bytes message = in.body.subspan(wire::Ipv6Header::kSize, ip.payload_length());
  bool alert = false;
  if (next == kHopByHop) {
    if (message.size() < 8) return malformed();
    const std::size_t size = 8 + 8u * message[1];
    if (size > message.size()) return malformed();
    next = message[0];
    alert = wire::has_mld_alert(message.first(size));
    message = message.subspan(size);
    if (next != wire::kIpProtoIcmpv6) return false;
  }
  const Gid src = ip.src(), dst = ip.dst();
  if (message.size() < wire::kIcmpv6EchoSize || is_multicast(src) ||
      wire::icmpv6_checksum(src, dst, message.data(), message.size()) != 0)
    return malformed();
  switch (message[0]) {
    case wire::kIcmpv6Echo:
      reply_echo6(in, src, dst, message);
      break;
    case wire::kNdpSolicitation:
    case wire::kNdpAdvertisement:
      if (ip.hop_limit() != wire::kNdpHopLimit) return malformed();  // RFC 4861 s7.1
      on_ndp(now, in, src, dst, message);
      break;
    case wire::kMldQuery:
      if (ip.hop_limit() != 1 || !alert) return malformed();  // RFC 3810 s6.2
      on_mld(now, in, src, message);
      break;
    default:
      break;  // RFC 4443 s2.4 (b): unknown informational messages are discarded
  }
  return true;
}

// RFC 4443 s4.2: an echo to a group is answered from a unicast address.
void HostStack::reply_echo6(const Input& in, const Gid& src, const Gid& dst, Bytes message) {
  const bool group = is_multicast(dst);
  if (is_unspecified(src) || (!group && own(dst, in.vlan) == nullptr)) return;
  const Gid from = group ? source_for(src, in.vlan) : dst;
  if (is_unspecified(from)) return;
  ++counters_.echo_requests;
  if (wire::Ipv6Header::kSize + message.size() > options_.mtu) return;
  std::uint8_t* p = new_ipv6(in.src, in.vlan, from, src, wire::kIpProtoIcmpv6, 64, message.size());
  std::memcpy(p, message.data(), message.size());
  p[0] = wire::kIcmpv6EchoReply;
  wire::icmpv6_store_checksum(from, src, p, message.size());
}

// ---- Neighbour Discovery (RFC 4861 s7.2) -------------------------------------------------------------------------

void HostStack::on_ndp(Nanos now, const Input& in, const Gid& src, const Gid& dst, Bytes message) {
  wire::NdpMessage m;
  if (!wire::NdpMessage::load(message.data(), message.size(), &m)) {
    malformed();
    return;
  }
  if (m.type == wire::kNdpSolicitation) {
    // RFC 4861 s7.1.1: the unspecified source only probes for duplicates, in the group of the address, without a MAC.
    if (is_unspecified(src) && (m.has_mac || !(dst == solicited_node_group(m.target)))) {
      malformed();
      return;
    }
    on_solicitation(now, in, src, m);
    return;
  }
  const bool solicited = (m.flags & wire::NdpMessage::kSolicited) != 0;
  if (solicited && is_multicast(dst)) {  // RFC 4861 s7.1.2
    malformed();
    return;
  }
  if (Own* mine = find(m.target, in.vlan)) {
    conflict(now, *mine, m.has_mac ? load_mac(m.mac) : in.src);  // RFC 4862 s5.4.4
    return;
  }
  // Without the option the sender's own address stands for it (RFC 4861 s4.4 wants it in answers to multicast).
  const Mac mac = m.has_mac ? load_mac(m.mac) : in.src;
  if (!is_unicast(mac)) return;
  cache_.on_advertisement(now, {m.target, in.vlan}, mac, solicited, (m.flags & wire::NdpMessage::kOverride) != 0);
}

void HostStack::on_solicitation(Nanos now, const Input& in, const Gid& src, const wire::NdpMessage& m) {
  Own* mine = find(m.target, in.vlan);
  if (mine == nullptr) return;
  if (mine->tentative) {  // RFC 4862 s5.4.3: only another probe matters
    if (is_unspecified(src)) conflict(now, *mine, in.src);
    return;
  }
  const bool known_source = !is_unspecified(src);
  if (known_source && m.has_mac && is_unicast(load_mac(m.mac)) && on_link(src, in.vlan))
    cache_.on_source(now, {src, in.vlan}, load_mac(m.mac), true);
  if (!known_source) {  // RFC 4861 s7.2.4: to all nodes, not as solicited
    announce(*mine);
    return;
  }
  wire::NdpMessage na;
  na.type = wire::kNdpAdvertisement;
  na.flags = wire::NdpMessage::kSolicited | wire::NdpMessage::kOverride;
  na.target = m.target;
  na.has_mac = true;
  std::memcpy(na.mac, options_.mac.data(), 6);
  const Mac to = m.has_mac && is_unicast(load_mac(m.mac)) ? load_mac(m.mac) : in.src;
  na.store(new_ipv6(to, in.vlan, m.target, src, wire::kIpProtoIcmpv6, wire::kNdpHopLimit, na.size()), m.target, src);
}

}  // namespace softrnic::neigh
