// What rdma_cm lays over the CM (annex A11: RDMA IP CM service).
#include "protocols/cm/rdma_cm.h"

#include <catch2/catch.hpp>
#include <vector>

#include "protocols/cm/types.h"

namespace softrnic::cm {

TEST_CASE("Annex A11: service IDs are made of a port space and a port", "[cm]") {
  CHECK(service_id(PortSpace::tcp, 18515) == 0x0000000001064853);
  CHECK(service_id(PortSpace::udp, 0xFFFF) == 0x000000000111FFFF);
  CHECK(service_id(PortSpace::ib, 1) == 0x00000000013F0001);
  CHECK(service_id(PortSpace::ipoib, 2) == 0x0000000000020002);
  for (const PortSpace ps : {PortSpace::tcp, PortSpace::udp, PortSpace::ib, PortSpace::ipoib}) {
    CHECK(port_space_of(service_id(ps, 7471)) == ps);
    CHECK(port_of(service_id(ps, 7471)) == 7471);
  }
  CHECK_FALSE(port_space_of(0x0000000001054853).has_value());
  CHECK_FALSE(port_space_of(0x1000000001064853).has_value());
}

TEST_CASE("Annex A11: the addresses in front of the private data, IPv4", "[cm]") {
  IpHeader h;
  h.src_port = 0x1234;
  h.src = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 1}};
  h.dst = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 2}};
  std::vector<std::uint8_t> p(IpHeader::kSize, 0xEE);
  h.write(p.data());
  std::vector<std::uint8_t> want(36);
  want[1] = 0x40;
  want[2] = 0x12;
  want[3] = 0x34;
  want[16] = want[32] = 10;
  want[19] = 1;
  want[35] = 2;
  CHECK(p == want);
  const auto r = IpHeader::read(p);
  REQUIRE(r.has_value());
  CHECK(r->ip_version == 4);
  CHECK(r->src_port == 0x1234);
  CHECK(r->src == h.src);
  CHECK(r->dst == h.dst);
}

TEST_CASE("Annex A11: the addresses in front of the private data, IPv6", "[cm]") {
  IpHeader h;
  h.ip_version = 6;
  h.src = {{0xFE, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}};
  h.dst = {{0xFE, 0x80, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1}};
  std::vector<std::uint8_t> p(IpHeader::kSize);
  h.write(p.data());
  CHECK(p[1] == 0x60);
  CHECK(p[4] == 0xFE);
  CHECK(p[35] == 1);
  const auto r = IpHeader::read(p);
  REQUIRE(r.has_value());
  CHECK(r->src == h.src);
  CHECK(r->dst == h.dst);
}

TEST_CASE("Annex A11: other private data is not taken for addresses", "[cm]") {
  std::vector<std::uint8_t> p(IpHeader::kSize);
  IpHeader().write(p.data());
  CHECK(IpHeader::read(p).has_value());
  CHECK_FALSE(IpHeader::read(Bytes(p).first(35)).has_value());
  p[0] = 0x10;
  CHECK_FALSE(IpHeader::read(p).has_value());
  p[0] = 0;
  for (const std::uint8_t version : {0, 1, 5, 7, 15}) {
    p[1] = static_cast<std::uint8_t>(version << 4);
    CHECK_FALSE(IpHeader::read(p).has_value());
  }
  p[1] = 0x4F;  // the low bits are reserved
  CHECK(IpHeader::read(p).has_value());
}

TEST_CASE("rdma_cm: what is left to applications", "[cm]") {
  CHECK(kMaxConnectData == kReqPrivateData - IpHeader::kSize);
  CHECK(kMaxConnectData == 56);
  CHECK(kMaxAcceptData == kRepPrivateData);
  CHECK(kMaxRejectData == kRejPrivateData);
  CHECK(kMaxResolveData == kSidrReqPrivateData - IpHeader::kSize);
  CHECK(kMaxResolveData == 180);
  CHECK(kMaxResolveReplyData == kSidrRepPrivateData);
}

}  // namespace softrnic::cm
