// Address handles, and what a completion with its GRH says about the sender.
#include <netinet/in.h>

#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {

nic::AddressVector to_address_vector(const ibv_ah_attr& attr) {
  nic::AddressVector av;
  memcpy(av.dgid.raw, attr.grh.dgid.raw, sizeof av.dgid.raw);
  av.flow_label = attr.grh.flow_label;
  av.sgid_index = attr.grh.sgid_index;
  av.hop_limit = attr.grh.hop_limit;
  av.traffic_class = attr.grh.traffic_class;
  av.sl = attr.sl;
  av.src_path_bits = attr.src_path_bits;
  av.static_rate = attr.static_rate;
  av.port_num = attr.port_num;
  av.dlid = attr.dlid;
  av.is_global = attr.is_global != 0;
  return av;
}

ibv_ah_attr from_address_vector(const nic::AddressVector& av) {
  ibv_ah_attr attr{};
  memcpy(attr.grh.dgid.raw, av.dgid.raw, sizeof attr.grh.dgid.raw);
  attr.grh.flow_label = av.flow_label;
  attr.grh.sgid_index = av.sgid_index;
  attr.grh.hop_limit = av.hop_limit;
  attr.grh.traffic_class = av.traffic_class;
  attr.dlid = av.dlid;
  attr.sl = av.sl;
  attr.src_path_bits = av.src_path_bits;
  attr.static_rate = av.static_rate;
  attr.is_global = av.is_global;
  attr.port_num = av.port_num;
  return attr;
}

namespace {

constexpr std::uint8_t kNextHeaderIba = 0x1B;  // GRH.NxtHdr of an IBA transport header (IBA 8.3)

// A RoCE v2 packet over IPv4 has its IP header in the last 20 bytes of the GRH area, the first 20 undefined.
struct Ipv4Header {
  std::uint8_t version_ihl, tos;
  std::uint8_t length_to_offset[6];
  std::uint8_t ttl, protocol;
  std::uint8_t checksum[2];
  std::uint8_t saddr[4], daddr[4];
};
static_assert(sizeof(Ipv4Header) == 20);

enum class L3 { ipv4, ipv6, unknown };

// Six bits of undefined bytes may look like IPv6, so an IPv4 header whose checksum is right is believed first.
L3 classify(const ibv_grh& grh, const Ipv4Header& ip4) {
  if (ip4.version_ihl == 0x45) {
    std::uint32_t sum = 0;
    const auto* p = reinterpret_cast<const std::uint8_t*>(&ip4);
    for (std::size_t i = 0; i < sizeof ip4; i += 2) sum += static_cast<std::uint32_t>(p[i] << 8 | p[i + 1]);
    while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
    if (sum == 0xFFFF) return L3::ipv4;
  }
  return (ntohl(grh.version_tclass_flow) >> 28) == 6 ? L3::ipv6 : L3::unknown;
}

Gid mapped(const std::uint8_t (&ip4)[4]) {
  Gid gid{};
  gid.raw[10] = gid.raw[11] = 0xFF;
  memcpy(gid.raw + 12, ip4, 4);
  return gid;
}

// Index of the own GID `gid` of `type` (GidRecord::type), or -1.
int find_gid(nic::Context& context, const Gid& gid, std::uint8_t type) {
  for (std::uint32_t i = 0; i < context.num_gids() && i < 256; ++i) {
    control::GidRecord record;
    if (context.gid(i, &record) == 0 && record.gid == gid && record.type == type) return static_cast<int>(i);
  }
  return -1;
}

int fill_global_route(nic::Context& context, const ibv_grh& grh, ibv_global_route* route) {
  Ipv4Header ip4;
  memcpy(&ip4, reinterpret_cast<const char*>(&grh) + sizeof(ibv_grh) - sizeof ip4, sizeof ip4);
  Gid own;
  std::uint8_t type;
  switch (classify(grh, ip4)) {
    case L3::ipv4: {
      own = mapped(ip4.daddr);
      type = 1;
      Gid peer = mapped(ip4.saddr);
      memcpy(route->dgid.raw, peer.raw, sizeof peer.raw);
      route->hop_limit = ip4.ttl;
      route->traffic_class = ip4.tos;
      break;
    }
    case L3::ipv6:
      if (grh.next_hdr != IPPROTO_UDP && grh.next_hdr != kNextHeaderIba) return EPROTONOSUPPORT;
      memcpy(own.raw, grh.dgid.raw, sizeof own.raw);
      type = grh.next_hdr == IPPROTO_UDP ? 1 : 0;
      route->dgid = grh.sgid;
      route->hop_limit = grh.hop_limit;
      route->traffic_class = static_cast<std::uint8_t>(ntohl(grh.version_tclass_flow) >> 20);
      break;
    default:
      return EPROTONOSUPPORT;
  }
  int index = find_gid(context, own, type);
  if (index < 0) return EINVAL;  // sent to a multicast group, or to an address that is gone
  route->sgid_index = static_cast<std::uint8_t>(index);
  return 0;
}

}  // namespace
}  // namespace softrnic::shim

using namespace softrnic;
using namespace softrnic::shim;

SOFTRNIC_ABI ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  return guarded([&]() -> ibv_ah* {
    auto ah = std::make_unique<Ah>();
    nic::ProtectionDomain* domain = to_shim(pd).nic;
    int rc = domain->context->create_ah(domain, to_address_vector(*attr), &ah->nic);
    if (rc != 0) return made<ibv_ah>(rc, nullptr);
    ah->ib = {pd->context, pd, ah->nic->number};
    return &ah.release()->ib;
  });
}

SOFTRNIC_ABI int ibv_destroy_ah(ibv_ah* ah) {
  int rc = to_shim(ah).nic->pd->context->destroy_ah(to_shim(ah).nic);
  if (rc == 0) delete &to_shim(ah);
  return status(rc);
}

SOFTRNIC_ABI int ibv_init_ah_from_wc(ibv_context* context, uint8_t port_num, ibv_wc* wc, ibv_grh* grh,
                                     ibv_ah_attr* attr) {
  memset(attr, 0, sizeof *attr);
  attr->dlid = wc->slid;
  attr->sl = wc->sl;
  attr->src_path_bits = wc->dlid_path_bits;
  attr->port_num = port_num;
  if (!(wc->wc_flags & IBV_WC_GRH)) return 0;
  attr->is_global = 1;
  attr->grh.flow_label = ntohl(grh->version_tclass_flow) & 0xFFFFF;
  int rc = fill_global_route(*to_shim(context).nic, *grh, &attr->grh);
  if (rc == 0) return 0;
  errno = rc;
  return -1;
}

SOFTRNIC_ABI ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port_num) {
  ibv_ah_attr attr;
  if (ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr) != 0) return nullptr;
  return ibv_create_ah(pd, &attr);
}

// The Ethernet address behind a GID, as far as it follows from the GID itself: our own addresses, multicast groups
// (RFC 1112, RFC 2464), and link-local addresses made of a MAC address (RFC 4291 appendix A). 0 or a negative errno
// value.
SOFTRNIC_ABI int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attr, uint8_t eth_mac[ETHERNET_LL_SIZE],
                                             uint16_t* vid) {
  nic::Context& nic = *to_shim(context).nic;
  control::GidRecord own;
  if (attr->port_num != 1 || nic.gid(attr->grh.sgid_index, &own) != 0) return -EINVAL;
  if (vid) *vid = own.vlan_id;
  const std::uint8_t* g = attr->grh.dgid.raw;
  Gid gid;
  memcpy(gid.raw, g, sizeof gid.raw);
  if (find_gid(nic, gid, own.type) >= 0) {
    memcpy(eth_mac, nic.device().mac, ETHERNET_LL_SIZE);
    return 0;
  }
  if (g[0] == 0xFF) {
    bool ipv4 = g[10] == 0xFF && g[11] == 0xFF && memcmp(g + 2, Gid{}.raw, 8) == 0;
    const std::uint8_t v4[] = {0x01, 0x00, 0x5E, static_cast<std::uint8_t>(g[13] & 0x7F), g[14], g[15]};
    const std::uint8_t v6[] = {0x33, 0x33, g[12], g[13], g[14], g[15]};
    memcpy(eth_mac, ipv4 ? v4 : v6, ETHERNET_LL_SIZE);
    return 0;
  }
  if (g[0] == 0xFE && (g[1] & 0xC0) == 0x80 && g[11] == 0xFF && g[12] == 0xFE) {
    const std::uint8_t eui[] = {static_cast<std::uint8_t>(g[8] ^ 2), g[9], g[10], g[13], g[14], g[15]};
    memcpy(eth_mac, eui, ETHERNET_LL_SIZE);
    return 0;
  }
  return -EHOSTUNREACH;
}
