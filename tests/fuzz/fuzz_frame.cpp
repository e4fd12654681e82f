// RoCE framing under arbitrary bytes.
//
// First byte odd: the rest is a frame from the network. Even: the rest describes a path and a transport
// packet; what is written for them must come apart into the same.
#include <cstring>

#include "protocols/common/bytes.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/icrc.h"
#include "tests/fuzz/fuzz_target.h"

namespace softrnic::fuzz {
namespace {

using roce::FrameError;
using roce::RxFrame;

void check_parsed(const Input& frame, const RxFrame& f) {
  const std::uint8_t* begin = frame.data();
  const std::uint8_t* end = begin + frame.size();
  FUZZ_CHECK(f.l3 >= begin + 14 && f.l3 < end);
  FUZZ_CHECK(f.transport.data() > f.l3 && f.transport.size() >= 12 && f.transport.size() % 4 == 0);
  FUZZ_CHECK(f.transport.data() + f.transport.size() + 4 <= end);
  FUZZ_CHECK((f.transport[1] & 0x0F) == 0);
  std::uint8_t area[40];
  roce::write_grh_area(f, area);
  FUZZ_CHECK(area[f.ipv4 ? 20 : 0] >> 4 == (f.ipv4 ? 4 : 6));
}

void from_network(const Input& frame) {
  RxFrame f;
  if (roce::parse(frame, &f) != FrameError::none) return;
  check_parsed(frame, f);
  // At most one of the two values is the ICRC of this frame.
  Input changed = frame;
  const std::size_t at = static_cast<std::size_t>(f.transport.data() - frame.data()) + f.transport.size();
  changed[at] ^= 1;
  RxFrame g;
  FUZZ_CHECK(roce::parse(changed, &g) == FrameError::none);
  FUZZ_CHECK(!(roce::icrc_ok(f) && roce::icrc_ok(g)));
}

roce::PathParams read_path(Reader& in) {
  roce::PathParams p;
  const std::uint8_t kind = in.u8();
  p.version = kind & 1 ? roce::Version::v1 : roce::Version::v2;
  p.has_vlan = (kind & 2) != 0;
  for (auto& b : p.sgid.raw) b = in.u8();
  for (auto& b : p.dgid.raw) b = in.u8();
  if (kind & 4) {
    for (Gid* gid : {&p.sgid, &p.dgid}) {
      std::memset(gid->raw, 0, 10);
      gid->raw[10] = gid->raw[11] = 0xFF;
    }
  } else {
    p.sgid.raw[0] = p.dgid.raw[0] = 0xFE;
  }
  p.vlan_id = p.has_vlan ? in.u16() & 0xFFF : 0;
  p.priority = p.has_vlan ? in.u8() & 7 : 0;
  p.traffic_class = in.u8();
  p.flow_label = in.u32() & 0xFFFFF;
  p.hop_limit = in.u8();
  p.udp_sport = in.u16();
  return p;
}

void round_trip(Reader& in) {
  const roce::PathParams p = read_path(in);
  Input transport = in.rest();
  transport.resize(transport.size() < 12 ? 12 : (transport.size() + 3) & ~std::size_t{3});
  transport[1] &= 0xF0;
  roce::HeaderTemplate t(p);
  const auto length = static_cast<std::uint32_t>(transport.size());
  Input frame(t.size() + length + 4);
  t.write(frame.data(), length);
  std::memcpy(frame.data() + t.size(), transport.data(), length);
  wire::icrc_store(frame.data() + t.size() + length, t.icrc(frame.data(), length));

  RxFrame f;
  FUZZ_CHECK(roce::parse(frame, &f) == FrameError::none);
  check_parsed(frame, f);
  FUZZ_CHECK(roce::icrc_ok(f));
  FUZZ_CHECK(f.version == p.version && f.sgid == p.sgid && f.dgid == p.dgid && f.has_vlan == p.has_vlan);
  FUZZ_CHECK(f.vlan_tci == (p.priority << 13 | p.vlan_id));
  FUZZ_CHECK(f.traffic_class == p.traffic_class && f.hop_limit == p.hop_limit);
  FUZZ_CHECK(f.transport.size() == length && std::memcmp(f.transport.data(), transport.data(), length) == 0);
}

// A description for round_trip().
Input describe(std::uint8_t kind, std::size_t transport) {
  Input v = {0, kind};
  for (int i = 0; i < 32; ++i) v.push_back(static_cast<std::uint8_t>(i * 5 + 1));
  for (int i = 0; i < 11; ++i) v.push_back(static_cast<std::uint8_t>(0x40 + i));
  for (std::size_t i = 0; i < transport; ++i) v.push_back(static_cast<std::uint8_t>(i));
  return v;
}

}  // namespace

std::vector<Input> seeds() {
  std::vector<Input> out;
  for (const std::uint8_t kind : {0, 1, 2, 3, 4, 6}) {
    for (const std::size_t transport : {12, 16, 28, 300}) {
      Input d = describe(kind, transport);
      out.push_back(d);
      // The frame itself as one from the network.
      Reader in(d.data() + 1, d.size() - 1);
      roce::HeaderTemplate t(read_path(in));
      Input f(1 + t.size() + transport + 4, 0);
      f[0] = 1;
      t.write(f.data() + 1, static_cast<std::uint32_t>(transport));
      wire::icrc_store(f.data() + f.size() - 4, t.icrc(f.data() + 1, static_cast<std::uint32_t>(transport)));
      out.push_back(f);
    }
  }
  return out;
}

}  // namespace softrnic::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  softrnic::fuzz::Reader in(data, size);
  if (in.u8() & 1) {
    softrnic::fuzz::from_network(in.rest());
  } else {
    softrnic::fuzz::round_trip(in);
  }
  return 0;
}
