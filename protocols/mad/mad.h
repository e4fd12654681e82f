// Management datagrams: the header that every MAD begins with, and how the general services interface (QP 1) addresses
// them. A MAD is always 256 bytes, one UD SEND Only to the peer's QP 1.
#pragma once

#include <array>

#include "protocols/common/bytes.h"
#include "protocols/common/types.h"

namespace softrnic::mad {

inline constexpr std::size_t kMadSize = 256;
inline constexpr std::size_t kMadDataSize = 232;  // behind the header

inline constexpr std::uint32_t kGsiQpn = 1;
inline constexpr std::uint32_t kGsiQkey = 0x80010000;

inline constexpr std::uint8_t kBaseVersion = 1;

enum class MgmtClass : std::uint8_t { subn_lid = 0x01, subn_adm = 0x03, perf = 0x04, cm = 0x07, subn_directed = 0x81 };

enum class Method : std::uint8_t { get = 0x01, set = 0x02, send = 0x03, trap = 0x05, get_resp = 0x81 };

// The common MAD header as values.
struct MadHeader {
  static constexpr std::size_t kSize = 24;
  std::uint8_t base_version = kBaseVersion;
  MgmtClass mgmt_class = MgmtClass::cm;
  std::uint8_t class_version = 0;
  Method method = Method::send;
  std::uint16_t status = 0;
  std::uint16_t class_specific = 0;
  std::uint64_t transaction_id = 0;
  std::uint16_t attribute_id = 0;
  std::uint32_t attribute_modifier = 0;

  static MadHeader read(const std::uint8_t* p) {
    return {p[0],
            static_cast<MgmtClass>(p[1]),
            p[2],
            static_cast<Method>(p[3]),
            load_be16(p + 4),
            load_be16(p + 6),
            load_be64(p + 8),
            load_be16(p + 16),
            load_be32(p + 20)};
  }
  void write(std::uint8_t* p) const {
    p[0] = base_version;
    p[1] = static_cast<std::uint8_t>(mgmt_class);
    p[2] = class_version;
    p[3] = static_cast<std::uint8_t>(method);
    store_be16(p + 4, status);
    store_be16(p + 6, class_specific);
    store_be64(p + 8, transaction_id);
    store_be16(p + 16, attribute_id);
    store_be16(p + 18, 0);
    store_be32(p + 20, attribute_modifier);
  }
};
static_assert(MadHeader::kSize + kMadDataSize == kMadSize);

// Where a MAD came from or goes to, seen from this end of it: a received MAD has the GRH's SGID in `remote_gid`, one to
// send has it in `local_gid`. A reply goes back on the route of what it answers.
struct MadRoute {
  Gid local_gid{};
  Gid remote_gid{};
  std::uint32_t remote_qpn = kGsiQpn;
  std::uint16_t pkey = 0xFFFF;
  std::uint16_t local_lid = 0;  // 0 on Ethernet
  std::uint16_t remote_lid = 0;
  std::uint8_t sl = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  std::uint32_t flow_label = 0;
  // The caller's own: which port, GID table entry, RoCE version, VLAN. Copied from a MAD to what answers it.
  std::uint64_t context = 0;

  // The same wire seen from the other end: what a MAD sent on this route arrives with, where both ends are here.
  MadRoute reversed() const {
    MadRoute r = *this;
    r.local_gid = remote_gid;
    r.remote_gid = local_gid;
    r.local_lid = remote_lid;
    r.remote_lid = local_lid;
    return r;
  }
  friend bool operator==(const MadRoute&, const MadRoute&) = default;
};

// A MAD to send: a UD SEND Only on `route` with Q_Key kGsiQkey.
struct OutMad {
  MadRoute route;
  std::array<std::uint8_t, kMadSize> data;
};

}  // namespace softrnic::mad
