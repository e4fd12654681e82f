#include "engine/nic/address.h"

#include <cerrno>
#include <cstring>

#include "engine/nic/vf_impl.h"
#include "protocols/neigh/address.h"
#include "protocols/wire/vlan.h"

namespace softrnic::nic {
namespace {

using neigh::is_link_local;
using wire::kNoVlan;

constexpr std::size_t kReuseDelay = 1024;  // freed numbers are used again as late as this

bool is_zero(const Gid& g) { return g == Gid{}; }

// MAC of an interface from a modified EUI-64 interface identifier (RFC 4291 appendix A).
void mac_of_link_local(const Gid& g, std::uint8_t mac[6]) {
  mac[0] = g.raw[8] ^ 2;
  mac[1] = g.raw[9];
  mac[2] = g.raw[10];
  mac[3] = g.raw[13];
  mac[4] = g.raw[14];
  mac[5] = g.raw[15];
}

// Device that has the GID, or -1.
int local_device(Vf::Impl& v, const Gid& gid) {
  SpinGuard g(v.gids_lock);
  for (const auto& r : v.gids) {
    if (r.gid == gid) return static_cast<int>(r.device);
  }
  return -1;
}

// The kernel resolves a unicast destination by the family of the source address; a RoCE v1 source with a link-local
// destination needs no resolution.
bool same_family(const control::GidRecord& source, const Gid& dgid) {
  if (source.type == 0 && is_link_local(dgid)) return true;
  return roce::is_ipv4_mapped(source.gid) == roce::is_ipv4_mapped(dgid);
}

}  // namespace

bool is_multicast_gid(const Gid& gid) {
  return gid.raw[0] == 0xFF || (roce::is_ipv4_mapped(gid) && (gid.raw[12] & 0xF0) == 0xE0);
}

int resolve_address(const Context& ctx, const AddressVector& av, std::uint32_t flow_label, ResolvedAddress* out) {
  if (av.port_num != 1 || !av.is_global || is_zero(av.dgid)) return EINVAL;
  control::GidRecord source;
  if (ctx.gid(av.sgid_index, &source) != 0 || is_zero(source.gid)) return EINVAL;
  const control::DeviceRecord& device = ctx.device();

  out->multicast = is_multicast_gid(av.dgid);
  if (!out->multicast && !same_family(source, av.dgid)) return EINVAL;
  const int target = out->multicast ? -1 : local_device(ctx.vf().impl(), av.dgid);
  out->local = target >= 0;

  roce::PathParams& p = out->params;
  p.version = source.type == 0 ? roce::Version::v1 : roce::Version::v2;
  std::memcpy(p.src_mac, device.mac, 6);
  if (out->multicast) {
    roce::multicast_mac(av.dgid, p.dst_mac);
  } else if (target >= 0) {
    std::memcpy(p.dst_mac, ctx.vf().devices()[static_cast<std::size_t>(target)].mac, 6);
  } else if (is_link_local(av.dgid)) {
    mac_of_link_local(av.dgid, p.dst_mac);
  }  // else zero: the NIC process knows the neighbours
  p.has_vlan = source.vlan_id != kNoVlan;
  p.vlan_id = p.has_vlan ? source.vlan_id & 0xFFF : 0;
  p.priority = av.sl & 7;
  p.sgid = source.gid;
  p.dgid = av.dgid;
  p.traffic_class = av.traffic_class;
  p.flow_label = av.flow_label & 0xFFFFF;
  // As the kernel does it for RoCE: that of the route, whatever the vector says, which is 1 in many programs. (Only
  // towards a group the vector's counts.)
  constexpr std::uint8_t kHopLimitOfRoutes = 64;
  p.hop_limit = out->multicast && av.hop_limit != 0 ? av.hop_limit : kHopLimitOfRoutes;
  p.udp_sport = roce::udp_sport_of_flow_label(p.flow_label != 0 ? p.flow_label : flow_label);
  return 0;
}

AddressTable::~AddressTable() {
  for (auto& c : chunks_) delete[] c.load(std::memory_order_relaxed);
}

std::uint32_t AddressTable::add(PdHandle pd, const ResolvedAddress& address) {
  std::uint32_t number;
  if (next_ < kChunk * kChunks && freed_.size() < kReuseDelay) {
    number = next_++;
    auto& chunk = chunks_[number / kChunk];
    if (chunk.load(std::memory_order_relaxed) == nullptr) {
      chunk.store(new AddressEntry[kChunk], std::memory_order_release);
    }
  } else if (!freed_.empty()) {
    number = freed_.front();
    freed_.pop_front();
  } else {
    return 0;
  }
  AddressEntry& e = chunks_[number / kChunk].load(std::memory_order_relaxed)[number % kChunk];
  e.pd = pd;
  e.headers = roce::HeaderTemplate(address.params);
  e.dgid = address.params.dgid;
  e.multicast = address.multicast;
  e.local = address.local;
  e.live.store(true, std::memory_order_release);
  return number;
}

void AddressTable::remove(std::uint32_t number) {
  AddressEntry& e = chunks_[number / kChunk].load(std::memory_order_relaxed)[number % kChunk];
  e.live.store(false, std::memory_order_release);
  freed_.push_back(number);
}

}  // namespace softrnic::nic
