// Group membership of HostStack: IGMPv3 (RFC 3376) with a fall back to version 2 (RFC 2236), and MLDv2 (RFC 3810). A
// group is joined for every source, so a membership is "exclude nothing".
#include <algorithm>

#include "protocols/neigh/host_stack.h"
#include "protocols/wire/eth.h"
#include "protocols/wire/ipv4.h"
#include "protocols/wire/ipv6.h"

namespace softrnic::neigh {
namespace {

using wire::GroupRecord;

constexpr unsigned kRobustness = 2;                      // RFC 3376 s8.1
constexpr Nanos kUnsolicitedInterval = 1'000'000'000;    // RFC 3376 s8.11
constexpr Nanos kOlderQuerierPresent = 260'000'000'000;  // RFC 3376 s8.12
constexpr std::uint32_t kAllIgmpV3Routers = 0xE0000016;
constexpr std::uint32_t kAllRouters = 0xE0000002;
constexpr std::uint32_t kIpv4Header = wire::Ipv4Header::kSize + 4;  // with the router alert option
constexpr Gid kAllMldV2Routers{{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16}};

// Groups that every host is in and nobody reports: 224.0.0.1 (RFC 3376 s5), ff02::1 and those of a smaller scope
// (RFC 3810 s6).
bool reported(const Gid& g) {
  if (is_ipv4(g)) return to_ipv4(g) != 0xE0000001;
  static constexpr Gid all_nodes{{0xFF, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  return (g.raw[1] & 0x0F) >= 2 && !(g == all_nodes);
}

// Codes from 2^(bits-1) on are floating point: 1 bit, 3 of exponent, the rest mantissa (RFC 3376 s4.1.1,
// RFC 3810 s5.1.3).
std::uint32_t response_units(std::uint32_t code, unsigned bits) {
  const std::uint32_t top = 1u << (bits - 1);
  if (code < top) return code;
  const unsigned mantissa_bits = bits - 4;
  const std::uint32_t mantissa = (code & ((1u << mantissa_bits) - 1)) | 1u << mantissa_bits;
  return mantissa << ((code >> mantissa_bits & 7) + 3);
}

// An IPv4 header with the router alert option, which IGMP needs (RFC 3376 s4).
void store_igmp_ipv4(std::uint8_t* p, std::uint32_t src, std::uint32_t dst, std::size_t message) {
  wire::Ipv4Header ip;
  ip.tos = 0xC0;
  ip.total_length = static_cast<std::uint16_t>(kIpv4Header + message);
  ip.ttl = 1;
  ip.protocol = wire::kIpProtoIgmp;
  ip.src = src;
  ip.dst = dst;
  ip.store(p);
  p[0] = 0x46;
  store_be32(p + wire::Ipv4Header::kSize, 0x94040000);
  store_be16(p + 10, 0);
  store_be16(p + 10, static_cast<std::uint16_t>(~wire::inet_fold(wire::inet_sum(p, kIpv4Header))));
}

}  // namespace

bool HostStack::member(const Gid& group, std::uint16_t vlan) const {
  for (const Group& g : groups_)
    if (g.vlan == vlan && g.ip == group) return g.users != 0;
  return false;
}

bool HostStack::join(Nanos now, const Gid& group, std::uint16_t vlan) {
  const auto it =
      std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.vlan == vlan && g.ip == group; });
  if (it == groups_.end() && groups_.size() >= kMaxGroups) return false;
  Group& g = it != groups_.end() ? *it : groups_.emplace_back();
  g.ip = group;
  g.vlan = vlan;
  if (g.users++ != 0 || !reported(group)) return true;
  g.record = GroupRecord::change_to_exclude;
  g.repeats = kRobustness;
  g.due = now;
  return true;
}

void HostStack::leave(Nanos now, const Gid& group, std::uint16_t vlan) {
  const auto it =
      std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.vlan == vlan && g.ip == group; });
  if (it == groups_.end() || it->users == 0 || --it->users != 0) return;
  if (!reported(group)) {
    groups_.erase(it);
    return;
  }
  it->record = GroupRecord::change_to_include;
  it->repeats = kRobustness;
  it->due = now;
}

// ---- queries -------------------------------------------------------------------------------------------------------

void HostStack::on_igmp(Nanos now, const Input& in, const Gid& dst, Bytes message) {
  if (message[0] != wire::kIgmpQuery || !is_multicast(dst)) return;
  const Gid group = from_ipv4(load_be32(message.data() + 4));
  const bool v3 = message.size() >= wire::kIgmpV3QueryMin;
  if (!v3 && message.size() != wire::kIgmpV2Size) return;  // RFC 3376 s7.1: of no version
  const std::uint32_t tenths = v3 ? response_units(message[1], 8) : message[1];
  if (!v3) {
    if (tenths == 0) return;  // version 1
    auto it = std::find_if(queriers_.begin(), queriers_.end(), [&](const Querier& q) { return q.vlan == in.vlan; });
    Querier& q = it != queriers_.end() ? *it : queriers_.emplace_back();
    q.vlan = in.vlan;
    q.until = now + kOlderQuerierPresent;
  }
  on_query(now, group, true, in.vlan, tenths * Nanos{100'000'000});
}

void HostStack::on_mld(Nanos now, const Input& in, const Gid& src, Bytes message) {
  const std::size_t size = message.size();
  const bool v2 = size >= wire::kMldV2QueryMin;
  if (!is_link_local(src) || (!v2 && size != wire::kMldQueryMin)) {  // RFC 3810 s5.1.14, s8.1
    malformed();
    return;
  }
  Gid group;
  std::memcpy(group.raw, message.data() + 8, 16);
  const std::uint32_t code = load_be16(message.data() + 4);
  const std::uint32_t ms = v2 ? response_units(code, 16) : code;
  on_query(now, group, false, in.vlan, ms * Nanos{1'000'000});
}

// Answers after a random part of the time the router gives (RFC 3376 s5.2). A change that still has to be reported
// says as much as an answer.
void HostStack::on_query(Nanos now, const Gid& group, bool ipv4, std::uint16_t vlan, Nanos max_delay) {
  const Nanos at = now + random_delay(max_delay);
  for (Group& g : groups_) {
    if (g.vlan != vlan || is_ipv4(g.ip) != ipv4 || g.users == 0 || !reported(g.ip)) continue;
    if (!is_unspecified(group) && !(g.ip == group)) continue;
    if (g.repeats != 0 && g.record != GroupRecord::mode_is_exclude) continue;
    g.record = GroupRecord::mode_is_exclude;
    g.repeats = 1;
    g.due = std::min(g.due, at);
  }
}

// ---- reports -------------------------------------------------------------------------------------------------------

bool HostStack::igmp_v2_querier(Nanos now, std::uint16_t vlan) const {
  return std::any_of(queriers_.begin(), queriers_.end(),
                     [&](const Querier& q) { return q.vlan == vlan && now < q.until; });
}

void HostStack::report_groups(Nanos now) {
  struct Batch {
    bool ipv4;
    std::uint16_t vlan;
    std::vector<const Group*> groups;
  };
  std::vector<Batch> batches;
  for (Group& g : groups_) {
    if (g.due > now) continue;
    g.due = --g.repeats != 0 ? now + kUnsolicitedInterval : kNever;
    if (is_ipv4(g.ip) && igmp_v2_querier(now, g.vlan)) {
      report_igmp_v2(g);
      continue;
    }
    const auto same = [&](const Batch& b) { return b.ipv4 == is_ipv4(g.ip) && b.vlan == g.vlan; };
    auto it = std::find_if(batches.begin(), batches.end(), same);
    if (it == batches.end()) it = batches.insert(it, {is_ipv4(g.ip), g.vlan, {}});
    it->groups.push_back(&g);
  }
  for (const Batch& b : batches) b.ipv4 ? report_igmp_v3(b.vlan, b.groups) : report_mld(b.vlan, b.groups);
  std::erase_if(groups_, [](const Group& g) { return g.users == 0 && g.due == kNever; });
}

void HostStack::report_igmp_v2(const Group& g) {
  const bool leaves = g.record == GroupRecord::change_to_include;
  const Gid dst = leaves ? from_ipv4(kAllRouters) : g.ip;
  std::uint8_t* p = new_frame(multicast_mac(dst), g.vlan, wire::kEthertypeIpv4, kIpv4Header + wire::kIgmpV2Size);
  store_igmp_ipv4(p, to_ipv4(source_for(dst, g.vlan)), to_ipv4(dst), wire::kIgmpV2Size);
  p += kIpv4Header;
  p[0] = leaves ? wire::kIgmpV2Leave : wire::kIgmpV2Report;
  store_be32(p + 4, to_ipv4(g.ip));
  wire::icmp_store_checksum(p, wire::kIgmpV2Size);
}

void HostStack::report_igmp_v3(std::uint16_t vlan, const std::vector<const Group*>& groups) {
  const std::size_t most = (options_.mtu - kIpv4Header - wire::kIgmpV3ReportSize) / wire::kIgmpV3RecordSize;
  for (std::size_t done = 0; done < groups.size();) {
    const std::size_t count = std::min(most, groups.size() - done);
    const std::size_t size = wire::kIgmpV3ReportSize + count * wire::kIgmpV3RecordSize;
    const Gid dst = from_ipv4(kAllIgmpV3Routers);
    std::uint8_t* p = new_frame(multicast_mac(dst), vlan, wire::kEthertypeIpv4, kIpv4Header + size);
    store_igmp_ipv4(p, to_ipv4(source_for(dst, vlan)), kAllIgmpV3Routers, size);
    p += kIpv4Header;
    p[0] = wire::kIgmpV3Report;
    store_be16(p + 6, static_cast<std::uint16_t>(count));
    std::uint8_t* record = p + wire::kIgmpV3ReportSize;
    for (std::size_t i = 0; i < count; ++i, record += wire::kIgmpV3RecordSize) {
      record[0] = static_cast<std::uint8_t>(groups[done + i]->record);
      store_be32(record + 4, to_ipv4(groups[done + i]->ip));
    }
    wire::icmp_store_checksum(p, size);
    done += count;
  }
}

void HostStack::report_mld(std::uint16_t vlan, const std::vector<const Group*>& groups) {
  constexpr std::size_t kHopByHopSize = 8;
  const std::size_t header = wire::Ipv6Header::kSize + kHopByHopSize + wire::kMldV2ReportSize;
  const std::size_t most = (options_.mtu - header) / wire::kMldV2RecordSize;
  const Gid src = link_local_in(vlan);  // RFC 3810 s5.2.13: or unspecified
  for (std::size_t done = 0; done < groups.size();) {
    const std::size_t count = std::min(most, groups.size() - done);
    const std::size_t size = wire::kMldV2ReportSize + count * wire::kMldV2RecordSize;
    std::uint8_t* p =
        new_ipv6(multicast_mac(kAllMldV2Routers), vlan, src, kAllMldV2Routers, 0, 1, kHopByHopSize + size);
    wire::store_mld_hop_by_hop(p);
    p += kHopByHopSize;
    p[0] = wire::kMldV2Report;
    store_be16(p + 6, static_cast<std::uint16_t>(count));
    std::uint8_t* record = p + wire::kMldV2ReportSize;
    for (std::size_t i = 0; i < count; ++i, record += wire::kMldV2RecordSize) {
      record[0] = static_cast<std::uint8_t>(groups[done + i]->record);
      std::memcpy(record + 4, groups[done + i]->ip.raw, 16);
    }
    wire::icmpv6_store_checksum(src, kAllMldV2Routers, p, size);
    done += count;
  }
}

}  // namespace softrnic::neigh
