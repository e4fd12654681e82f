#include "engine/control/server/host_devices.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netpacket/packet.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "protocols/neigh/address.h"

namespace softrnic::control {
namespace {

// An identifier of our own, with the bit set that marks an OUI as locally administered: it can be
// no vendor's, and is neither 0 nor 0xFFFFFF, which programs take for "unknown".
constexpr std::uint32_t kVendorId = 0x02534E;
constexpr std::uint32_t kVendorPartId = 0x0001;
constexpr std::uint8_t kLinkLayerEthernet = 2;  // IBV_LINK_LAYER_ETHERNET
constexpr std::uint8_t kNodeTypeCa = 1;         // IBV_NODE_CA
using neigh::is_link_local;
using wire::kNoVlan;

constexpr std::size_t kMaxGids = 256;      // of a device: the index is 8 bits wide in an address vector
constexpr std::size_t kMaxAllGids = 1024;  // of all devices together: they fit into a message

constexpr std::uint32_t kHostLocalMtu = 4096;  // whatever the interfaces' is: their wires are not used

using Mac = std::array<std::uint8_t, 6>;

Gid mapped_ipv4(const in_addr& a) {
  Gid gid{};
  gid.raw[10] = gid.raw[11] = 0xFF;
  std::memcpy(gid.raw + 12, &a, 4);
  return gid;
}

bool is_mapped_ipv4(const Gid& gid) {
  static constexpr std::uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::memcmp(gid.raw, prefix, sizeof(prefix)) == 0;
}

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001B3u;
  return hash;
}

Gid link_local(const Mac& mac) {
  Gid gid{};
  gid.raw[0] = 0xFE;
  gid.raw[1] = 0x80;
  const auto id = eui64_of(mac);
  std::copy(id.begin(), id.end(), gid.raw + 8);
  return gid;
}

DeviceRecord roce_device(std::size_t number, const Mac& mac, const std::string& netdev, std::uint32_t mtu) {
  DeviceRecord d{};
  std::strncpy(d.name, ("roce" + std::to_string(number)).c_str(), sizeof(d.name) - 1);
  const auto guid = eui64_of(mac);
  std::memcpy(&d.node_guid, guid.data(), 8);
  d.sys_image_guid = d.node_guid;
  d.vendor_id = kVendorId;
  d.vendor_part_id = kVendorPartId;
  d.hw_ver = 1;
  std::strncpy(d.fw_ver, SOFTRNIC_VERSION, sizeof(d.fw_ver) - 1);
  d.active_mtu = mtu;
  d.max_msg_sz = 0x80000000u;  // IBA 9.7.7: up to 2^31 bytes
  d.max_qp = 65536;
  d.max_qp_wr = 16384;
  d.max_sge = 32;
  d.max_sge_rd = 32;
  d.max_cq = 65536;
  d.max_cqe = 1u << 22;
  d.max_mr = 1u << 24;
  d.max_pd = 65536;
  d.max_srq = 65536;
  d.max_srq_wr = 32767;
  d.max_srq_sge = 32;
  d.max_ah = 1u << 20;
  d.max_mw = 1u << 20;
  d.max_inline = 1024;
  d.max_qp_rd_atom = 128;
  d.max_qp_init_rd_atom = 128;
  d.max_mcast_grp = 8192;
  d.max_mcast_qp_attach = 240;
  d.max_mr_size = UINT64_MAX;
  d.link_layer = kLinkLayerEthernet;
  std::copy(mac.begin(), mac.end(), d.mac);
  d.node_type = kNodeTypeCa;
  std::strncpy(d.netdev, netdev.c_str(), sizeof(d.netdev) - 1);
  return d;
}

// Entries of each of so many devices.
std::size_t gid_limit(std::size_t devices) {
  return std::min(kMaxGids, kMaxAllGids / std::max<std::size_t>(devices, 1));
}

// An address is a RoCE v1 and a RoCE v2 entry. `first`: where the device's entries begin.
void add_gids(DeviceConfig* config, std::size_t first, std::uint32_t device, const Gid& gid, unsigned ifindex,
              std::uint16_t vlan, std::size_t limit) {
  if (config->gids.size() - first + 2 > limit) return;
  for (std::uint8_t type = 0; type < 2; ++type) {
    GidRecord g{};
    g.gid = gid;
    g.type = type;
    g.device = device;
    g.index = static_cast<std::uint32_t>(config->gids.size() - first);
    g.ndev_ifindex = ifindex;
    g.vlan_id = vlan;
    config->gids.push_back(g);
  }
}

// Order of a port's addresses.
int rank(const PortView::Address& a) {
  if (is_link_local(a.gid)) return a.vlan == kNoVlan ? 0 : 3;
  return is_mapped_ipv4(a.gid) ? 1 : 2;
}

// Order of the table after the link-local entry: primary IPv4, other IPv4, IPv6, loopback IPv4, loopback IPv6.
int rank(const HostAddress& a, const HostView& host) {
  const bool ipv4 = is_mapped_ipv4(a.gid);
  if (a.loopback) return ipv4 ? 4 : 5;
  if (!ipv4) return 3;
  return a.netdev == host.primary_netdev ? 1 : 2;
}

}  // namespace

Mac derive_mac(std::string_view identity) {
  const std::uint64_t hash = fnv1a(identity);
  Mac mac{};
  for (std::size_t i = 0; i < mac.size(); ++i) mac[i] = static_cast<std::uint8_t>(hash >> (8 * i));
  mac[0] = static_cast<std::uint8_t>((mac[0] & 0xFC) | 0x02);  // unicast, locally administered
  return mac;
}

std::array<std::uint8_t, 8> eui64_of(const Mac& mac) {
  return {static_cast<std::uint8_t>(mac[0] ^ 0x02), mac[1], mac[2], 0xFF, 0xFE, mac[3], mac[4], mac[5]};
}

HostView read_host() {
  HostView host;
  host.primary_netdev = "lo";
  host.primary_ifindex = ::if_nametoindex("lo");
  host.identity = first_line("/etc/machine-id");
  if (host.identity.empty()) {
    char name[256]{};
    if (::gethostname(name, sizeof(name) - 1) == 0) host.identity = name;
  }
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return host;
  bool have_primary = false;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    HostAddress a;
    a.netdev = i->ifa_name;
    a.ifindex = ::if_nametoindex(i->ifa_name);
    a.loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
    if (i->ifa_addr->sa_family == AF_INET) {
      a.gid = mapped_ipv4(reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr);
      if (!a.loopback && !have_primary) {
        have_primary = true;
        host.primary_netdev = a.netdev;
        host.primary_ifindex = a.ifindex;
      }
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(a.gid.raw, &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr, 16);
    } else {
      continue;
    }
    host.addresses.push_back(a);
  }
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_PACKET || host.primary_netdev != i->ifa_name) continue;
    const auto* ll = reinterpret_cast<const sockaddr_ll*>(i->ifa_addr);
    if (ll->sll_halen == host.mac.size()) std::copy_n(ll->sll_addr, host.mac.size(), host.mac.begin());
  }
  ::freeifaddrs(list);
  return host;
}

DeviceConfig host_devices(const HostView& host) {
  const Mac mac = host.mac == Mac{} ? derive_mac(host.identity) : host.mac;
  DeviceConfig config;
  DeviceRecord device = roce_device(0, mac, host.primary_netdev, kHostLocalMtu);

  std::vector<HostAddress> table;
  table.push_back({link_local(mac), host.primary_netdev, host.primary_ifindex, false});
  std::vector<HostAddress> rest = host.addresses;
  // 127.0.0.1 works whatever the state of the machine's interfaces.
  const in_addr loopback4{htonl(INADDR_LOOPBACK)};
  rest.push_back({mapped_ipv4(loopback4), "lo", ::if_nametoindex("lo"), true});
  std::stable_sort(rest.begin(), rest.end(),
                   [&](const HostAddress& a, const HostAddress& b) { return rank(a, host) < rank(b, host); });
  for (const HostAddress& a : rest) {
    const bool known = std::any_of(table.begin(), table.end(), [&](const HostAddress& t) { return t.gid == a.gid; });
    if (!known) table.push_back(a);
  }
  // Without an outside IPv4 address the loopback one takes its place, so that index 3 is always RoCE v2 over IPv4.
  if (table.size() > 2 && !is_mapped_ipv4(table[1].gid)) {
    const auto it =
        std::find_if(table.begin(), table.end(), [](const HostAddress& a) { return is_mapped_ipv4(a.gid); });
    std::rotate(table.begin() + 1, it, it + 1);
  }

  for (const HostAddress& a : table) add_gids(&config, 0, 0, a.gid, a.ifindex, kNoVlan, kMaxGids);
  device.num_gids = static_cast<std::uint32_t>(config.gids.size());
  config.devices.push_back(device);
  return config;
}

namespace {

// Of one device.
std::vector<GidRecord> merge_table(const std::vector<GidRecord>& old, const std::vector<GidRecord>& fresh,
                                   std::size_t limit) {
  auto same = [](const GidRecord& a, const GidRecord& b) {
    return a.gid == b.gid && a.type == b.type && a.vlan_id == b.vlan_id;
  };
  auto contains = [&](const std::vector<GidRecord>& table, const GidRecord& g) {
    return std::any_of(table.begin(), table.end(), [&](const GidRecord& t) { return same(t, g); });
  };
  std::vector<GidRecord> out = old;
  for (GidRecord& g : out) {
    if (!contains(fresh, g)) g.gid = Gid{};
  }
  for (GidRecord g : fresh) {
    if (contains(out, g)) continue;
    // The types alternate, so that an address keeps its pair of neighbours.
    auto place =
        std::find_if(out.begin(), out.end(), [&](const GidRecord& t) { return t.gid == Gid{} && t.type == g.type; });
    g.index = static_cast<std::uint32_t>(place - out.begin());
    if (place != out.end()) {
      *place = g;
    } else if (out.size() < limit) {
      out.push_back(g);
    }
  }
  while (!out.empty() && out.back().gid == Gid{}) out.pop_back();
  return out;
}

}  // namespace

std::vector<GidRecord> merge_gids(const std::vector<GidRecord>& old, const std::vector<GidRecord>& fresh) {
  std::uint32_t devices = 0;
  for (const auto* table : {&old, &fresh})
    for (const GidRecord& g : *table) devices = std::max(devices, g.device + 1);
  std::vector<GidRecord> out;
  for (std::uint32_t device = 0; device < devices; ++device) {
    std::vector<GidRecord> before, now;
    auto of_device = [device](const GidRecord& g) { return g.device == device; };
    std::ranges::copy_if(old, std::back_inserter(before), of_device);
    std::ranges::copy_if(fresh, std::back_inserter(now), of_device);
    std::ranges::copy(merge_table(before, now, gid_limit(devices)), std::back_inserter(out));
  }
  return out;
}

DeviceConfig port_devices(const std::vector<PortView>& ports) {
  DeviceConfig config;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const PortView& port = ports[i];
    std::vector<PortView::Address> table = port.addresses;
    std::stable_sort(table.begin(), table.end(),
                     [](const PortView::Address& a, const PortView::Address& b) { return rank(a) < rank(b); });
    const std::size_t first = config.gids.size();
    for (const PortView::Address& a : table)
      add_gids(&config, first, static_cast<std::uint32_t>(i), a.gid, port.ifindex, a.vlan, gid_limit(ports.size()));
    DeviceRecord device = roce_device(i, port.mac, port.netdev, port.roce_mtu);
    device.num_gids = static_cast<std::uint32_t>(config.gids.size() - first);
    config.devices.push_back(device);
  }
  return config;
}

}  // namespace softrnic::control
