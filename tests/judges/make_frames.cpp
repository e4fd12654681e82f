// Writes a capture with one well-formed frame of every opcode of RC, UC and UD in every framing, for
// check_capture.py to judge: make_frames FILE [--damage]. With --damage one payload bit of one frame is
// wrong, which the judge must find.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "engine/observe/pcapng.h"
#include "protocols/ib/opcode.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"
#include "tests/support/frames.h"

using namespace softrnic;

namespace {

constexpr std::uint32_t kMtu = 256;

// Payload lengths of an opcode worth a frame.
std::vector<std::uint32_t> lengths_of(const ib::OpcodeInfo& info) {
  switch (info.payload) {
    case ib::PayloadRule::empty:
      return {0};
    case ib::PayloadRule::full:
      return {kMtu};
    case ib::PayloadRule::one_to_mtu:
      return {1, 2, 3, 4, kMtu};
    case ib::PayloadRule::up_to_mtu:
      return {0, 1, 2, 3, 4, 255, kMtu};
  }
  return {};
}

// BTH through pad of one packet.
std::vector<std::uint8_t> make_transport(std::uint8_t opcode, std::uint32_t length) {
  const ib::OpcodeInfo& info = ib::opcode_info(opcode);
  const std::uint32_t pad = (4 - length % 4) % 4;
  std::vector<std::uint8_t> t(info.header_len + length + pad);
  std::uint8_t* p = t.data();
  wire::Bth bth;
  bth.opcode = opcode;
  bth.pad_count = static_cast<std::uint8_t>(pad);
  bth.dest_qpn = 0x1011;
  bth.psn = 0xABCDE0u + opcode;
  bth.ack_req = (opcode & ib::kTransportMask) == ib::kTransportRc && info.request && info.last;
  bth.write(p);
  if (info.deth != 0) wire::Deth{0x01234567, 0x2022}.write(p + info.deth);
  if (info.reth != 0) wire::Reth{0x7F0000001000, 0x12345678, info.only() ? length : 3 * kMtu}.write(p + info.reth);
  if (info.atomic_eth != 0) wire::AtomicEth{0x7F0000001008, 0x12345678, 7, 0}.write(p + info.atomic_eth);
  if (info.aeth != 0) wire::Aeth{0x1F, 5}.write(p + info.aeth);
  if (info.atomic_ack_eth != 0) wire::AtomicAckEth{0x0102030405060708}.write(p + info.atomic_ack_eth);
  if (info.imm_dt != 0) wire::ImmDt{0xDDCCBBAA}.write(p + info.imm_dt);
  if (info.ieth != 0) wire::Ieth{0x12345678}.write(p + info.ieth);
  for (std::uint32_t i = 0; i < length; ++i) p[info.header_len + i] = static_cast<std::uint8_t>('A' + i % 26);
  return t;
}

struct Path {
  const char* name;
  roce::HeaderTemplate headers;
};

std::vector<Path> all_paths() {
  const std::uint8_t ipv4[2][16] = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 1},
                                    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 2}};
  const std::uint8_t ipv6[2][16] = {{0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xFF, 0xFE, 0, 0, 1},
                                    {0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xFF, 0xFE, 0, 0, 2}};
  std::vector<Path> out;
  for (const bool vlan : {false, true}) {
    for (const int kind : {0, 1, 2}) {
      roce::PathParams p;
      p.version = kind == 2 ? roce::Version::v1 : roce::Version::v2;
      std::memcpy(p.sgid.raw, kind == 0 ? ipv4[0] : ipv6[0], 16);
      std::memcpy(p.dgid.raw, kind == 0 ? ipv4[1] : ipv6[1], 16);
      const std::uint8_t mac[6] = {0x52, 0x54, 0, 0, 0, 1};
      std::memcpy(p.src_mac, mac, 6);
      std::memcpy(p.dst_mac, mac, 6);
      p.dst_mac[5] = 2;
      p.has_vlan = vlan;
      p.vlan_id = 100;
      p.priority = 3;
      p.traffic_class = 0x6A;
      p.flow_label = 0x12345;
      p.udp_sport = roce::udp_sport_of_flow_label(p.flow_label);
      out.push_back({kind == 0 ? "RoCE v2 IPv4" : kind == 1 ? "RoCE v2 IPv6" : "RoCE v1", roce::HeaderTemplate(p)});
    }
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: make_frames FILE [--damage]\n");
    return 2;
  }
  bool damage = argc > 2 && std::strcmp(argv[2], "--damage") == 0;
  const int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  observe::PcapngWriter w(fd);
  int e = fd < 0 ? errno : w.begin("make_frames");
  std::uint64_t time = 1'700'000'000'000'000'000u;
  for (const Path& path : all_paths()) {
    std::uint32_t interface = 0;
    if (e == 0) e = w.add_interface(path.name, observe::LinkType::ethernet, &interface);
    for (unsigned opcode = 0; opcode < 256 && e == 0; ++opcode) {
      const ib::OpcodeInfo& info = ib::opcode_info(static_cast<std::uint8_t>(opcode));
      if (!info.known()) continue;
      for (const std::uint32_t length : lengths_of(info)) {
        auto f = make_frame(path.headers, make_transport(static_cast<std::uint8_t>(opcode), length));
        if (damage && length == kMtu) {
          f[f.size() - 10] ^= 1;
          damage = false;
        }
        e = w.write_packet(interface, time += 1000, f, static_cast<std::uint32_t>(f.size()), observe::Direction::out,
                           info.name);
      }
    }
  }
  if (e == 0) e = w.finish(time);
  if (e != 0) std::fprintf(stderr, "make_frames: %s: %s\n", argv[1], std::strerror(e));
  return e == 0 ? 0 : 1;
}
