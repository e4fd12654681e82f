#include "protocols/cm/rdma_cm.h"

namespace softrnic::cm {

namespace {

constexpr std::size_t kSrc = 4, kDst = 20, kIpv4InField = 12;

void store_address(std::uint8_t* p, const Gid& g, bool ipv4) {
  std::memcpy(p, g.raw, 16);
  if (ipv4) std::memset(p, 0, kIpv4InField);
}

Gid load_address(const std::uint8_t* p, bool ipv4) {
  Gid g;
  std::memcpy(g.raw, p, 16);
  if (ipv4) {
    std::memset(g.raw, 0, kIpv4InField);
    g.raw[10] = g.raw[11] = 0xFF;
  }
  return g;
}

}  // namespace

std::optional<PortSpace> port_space_of(std::uint64_t service_id) {
  for (const PortSpace ps : {PortSpace::ipoib, PortSpace::tcp, PortSpace::udp, PortSpace::ib}) {
    if (service_id >> 16 == static_cast<std::uint64_t>(ps)) return ps;
  }
  return std::nullopt;
}

void IpHeader::write(std::uint8_t* p) const {
  p[0] = 0;
  p[1] = static_cast<std::uint8_t>(ip_version << 4);
  store_be16(p + 2, src_port);
  store_address(p + kSrc, src, ip_version == 4);
  store_address(p + kDst, dst, ip_version == 4);
}

std::optional<IpHeader> IpHeader::read(Bytes private_data) {
  if (private_data.size() < kSize || private_data[0] != 0) return std::nullopt;
  IpHeader h;
  h.ip_version = private_data[1] >> 4;
  if (h.ip_version != 4 && h.ip_version != 6) return std::nullopt;
  h.src_port = load_be16(&private_data[2]);
  h.src = load_address(&private_data[kSrc], h.ip_version == 4);
  h.dst = load_address(&private_data[kDst], h.ip_version == 4);
  return h;
}

}  // namespace softrnic::cm
