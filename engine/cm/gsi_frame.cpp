#include "engine/cm/gsi_frame.h"

#include <algorithm>
#include <cstring>

#include "protocols/ib/opcode.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"
#include "protocols/wire/vlan.h"

namespace softrnic::rdmacm {
namespace {

using wire::kNoVlan;

constexpr std::uint8_t kUdSendOnly = 0x64;  // IBA 9.2.1
constexpr std::size_t kTransportSize = wire::kBthSize + wire::Deth::kSize + mad::kMadSize;
constexpr std::size_t kIcrcSize = 4;

}  // namespace

const control::GidRecord* GidTable::find(std::uint32_t device, std::uint32_t index) const {
  for (const control::GidRecord& g : gids)
    if (g.device == device && g.index == index) return g.gid != Gid{} ? &g : nullptr;
  return nullptr;
}

const control::GidRecord* GidTable::find(const Gid& gid, std::uint8_t type, std::uint16_t vlan) const {
  for (const control::GidRecord& g : gids)
    if (g.gid == gid && g.type == type && g.vlan_id == vlan) return &g;
  return nullptr;
}

const control::GidRecord* GidTable::find(const Gid& gid, std::uint8_t type) const {
  for (const control::GidRecord& g : gids)
    if (g.gid == gid && g.type == type) return &g;
  return nullptr;
}

bool build_mad_frame(const GidTable& table, const mad::OutMad& mad, std::vector<std::uint8_t>* frame) {
  const control::GidRecord* source = table.find(device_of(mad.route.context), gid_index_of(mad.route.context));
  if (source == nullptr || source->gid != mad.route.local_gid) return false;
  const control::DeviceRecord& device = table.devices[source->device];
  roce::PathParams p;
  p.version = source->type == 0 ? roce::Version::v1 : roce::Version::v2;
  std::copy_n(device.mac, 6, p.src_mac);
  // Where the destination is not of this NIC, the port finds its MAC.
  if (const control::GidRecord* own = table.find(mad.route.remote_gid, source->type); own != nullptr)
    std::copy_n(table.devices[own->device].mac, 6, p.dst_mac);
  p.has_vlan = source->vlan_id != kNoVlan;
  p.vlan_id = p.has_vlan ? source->vlan_id : 0;
  p.priority = mad.route.sl & 7;
  p.sgid = mad.route.local_gid;
  p.dgid = mad.route.remote_gid;
  p.traffic_class = mad.route.traffic_class;
  p.flow_label = mad.route.flow_label & 0xFFFFF;
  p.hop_limit = mad.route.hop_limit > 1 ? mad.route.hop_limit : 64;
  p.udp_sport = roce::udp_sport_of_flow_label(
      p.flow_label != 0 ? p.flow_label : roce::flow_label_of_qpns(mad::kGsiQpn, mad.route.remote_qpn));

  roce::HeaderTemplate header(p);
  frame->assign(header.size() + kTransportSize + kIcrcSize, 0);
  std::uint8_t* transport = frame->data() + header.size();
  header.write(frame->data(), kTransportSize);
  wire::Bth bth;
  bth.opcode = kUdSendOnly;
  bth.pkey = mad.route.pkey;
  bth.dest_qpn = mad.route.remote_qpn;
  bth.write(transport);
  wire::Deth{mad::kGsiQkey, mad::kGsiQpn}.write(transport + wire::kBthSize);
  std::memcpy(transport + wire::kBthSize + wire::Deth::kSize, mad.data.data(), mad.data.size());
  const std::uint32_t icrc = header.icrc(frame->data(), kTransportSize);
  std::memcpy(transport + kTransportSize, &icrc, sizeof(icrc));
  return true;
}

bool parse_mad_frame(const GidTable& table, Bytes frame, mad::MadRoute* route, Bytes* mad) {
  roce::RxFrame rx;
  if (roce::parse(frame, &rx) != roce::FrameError::none || rx.transport.size() != kTransportSize) return false;
  const wire::BthView bth(rx.transport.data());
  const auto deth = wire::Deth::read(rx.transport.data() + wire::kBthSize);
  if (bth.opcode() != kUdSendOnly || bth.dest_qpn() != mad::kGsiQpn || deth.qkey != mad::kGsiQkey || !roce::icrc_ok(rx))
    return false;
  const std::uint8_t type = rx.version == roce::Version::v2 ? 1 : 0;
  const control::GidRecord* own = table.find(rx.dgid, type, rx.vlan());
  if (own == nullptr) return false;
  *route = {};
  route->local_gid = rx.dgid;
  route->remote_gid = rx.sgid;
  route->remote_qpn = deth.src_qpn;
  route->pkey = bth.pkey();
  route->traffic_class = rx.traffic_class;
  route->hop_limit = rx.hop_limit;
  route->context = context_of(own->device, own->index);
  *mad = rx.transport.subspan(wire::kBthSize + wire::Deth::kSize);
  return true;
}

}  // namespace softrnic::rdmacm
