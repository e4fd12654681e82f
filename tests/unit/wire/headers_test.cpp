// Layout of the headers: what is written stands where the specification puts it, and reads back.
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "protocols/wire/bth.h"
#include "protocols/wire/eth.h"
#include "protocols/wire/eths.h"
#include "protocols/wire/grh.h"
#include "protocols/wire/inet_checksum.h"
#include "protocols/wire/ipv4.h"
#include "protocols/wire/ipv6.h"
#include "protocols/wire/udp.h"
#include "protocols/wire/vlan.h"

using namespace softrnic;
using namespace softrnic::wire;

namespace {

std::string hex(const std::uint8_t* p, std::size_t n) {
  static const char kDigits[] = "0123456789abcdef";
  std::string s;
  for (std::size_t i = 0; i < n; ++i) {
    s += kDigits[p[i] >> 4];
    s += kDigits[p[i] & 15];
  }
  return s;
}

// The bytes that write() makes, as hex; it writes no more than kSize of them.
template <class Header>
std::string written(const Header& h) {
  std::array<std::uint8_t, Header::kSize + 1> b;
  b.fill(0xEE);
  h.write(b.data());
  CHECK(b.back() == 0xEE);
  return hex(b.data(), Header::kSize);
}

Gid gid(std::uint8_t first) {
  Gid g;
  for (int i = 0; i < 16; ++i) g.raw[i] = static_cast<std::uint8_t>(first + i);
  return g;
}

}  // namespace

TEST_CASE("IBA 9.2: BTH", "[wire]") {
  Bth b;
  b.opcode = 0x17;
  b.pad_count = 2;
  b.pkey = 0x8001;
  b.dest_qpn = 0x123456;
  b.psn = 0xABCDEF;
  std::uint8_t p[kBthSize];
  b.write(p);
  CHECK(hex(p, kBthSize) == "176080010012345600abcdef");
  b.solicited = b.ack_req = b.fecn = true;
  b.mig_req = false;
  b.write(p);
  CHECK(hex(p, kBthSize) == "17a080018012345680abcdef");
  b.fecn = false;
  b.becn = true;
  b.write(p);

  const BthView v(p);
  CHECK(v.opcode() == 0x17);
  CHECK(v.solicited());
  CHECK_FALSE(v.mig_req());
  CHECK(v.pad_count() == 2);
  CHECK(v.tver() == 0);
  CHECK(v.pkey() == 0x8001);
  CHECK_FALSE(v.fecn());
  CHECK(v.becn());
  CHECK(v.dest_qpn() == 0x123456);
  CHECK(v.ack_req());
  CHECK(v.psn() == 0xABCDEF);
  p[1] = 0x0F;
  CHECK(v.tver() == 15);
}

TEST_CASE("IBA 9.2: reserved bits are ignored", "[wire]") {
  const std::uint8_t p[kBthSize] = {0x04, 0x00, 0xFF, 0xFF, 0x3F, 0x12, 0x34, 0x56, 0x7F, 0xAB, 0xCD, 0xEF};
  const BthView v(p);
  CHECK_FALSE(v.fecn());
  CHECK_FALSE(v.becn());
  CHECK(v.dest_qpn() == 0x123456);
  CHECK_FALSE(v.ack_req());
  CHECK(v.psn() == 0xABCDEF);
}

TEST_CASE("IBA 9.3.2: DETH", "[wire]") {
  CHECK(written(Deth{0x80010000, 0x123456}) == "8001000000123456");
  const std::uint8_t p[] = {0x80, 1, 0, 0, 0xFF, 0x12, 0x34, 0x56};
  CHECK(Deth::read(p).qkey == 0x80010000);
  CHECK(Deth::read(p).src_qpn == 0x123456);  // the reserved byte is ignored
}

TEST_CASE("IBA 9.3.4: RETH", "[wire]") {
  const Reth h{0x0102030405060708, 0x11121314, 0x21222324};
  CHECK(written(h) == "01020304050607081112131421222324");
  std::uint8_t p[Reth::kSize];
  h.write(p);
  CHECK(Reth::read(p).va == h.va);
  CHECK(Reth::read(p).rkey == h.rkey);
  CHECK(Reth::read(p).length == h.length);
}

TEST_CASE("IBA 9.3.6: AtomicETH", "[wire]") {
  const AtomicEth h{0x0102030405060708, 0x11121314, 0x2122232425262728, 0x3132333435363738};
  CHECK(written(h) == "01020304050607081112131421222324252627283132333435363738");
  std::uint8_t p[AtomicEth::kSize];
  h.write(p);
  CHECK(AtomicEth::read(p).va == h.va);
  CHECK(AtomicEth::read(p).rkey == h.rkey);
  CHECK(AtomicEth::read(p).swap_or_add == h.swap_or_add);
  CHECK(AtomicEth::read(p).compare == h.compare);
}

TEST_CASE("IBA 9.3.5, 9.3.5.3: AETH and AtomicAckETH", "[wire]") {
  CHECK(written(Aeth{0x60, 0xABCDEF}) == "60abcdef");
  CHECK(written(AtomicAckEth{0x0102030405060708}) == "0102030405060708");
  const std::uint8_t p[] = {0x1F, 0xAB, 0xCD, 0xEF, 1, 2, 3, 4};
  CHECK(Aeth::read(p).syndrome == 0x1F);
  CHECK(Aeth::read(p).msn == 0xABCDEF);
  CHECK(AtomicAckEth::read(p).original == 0x1FABCDEF01020304);
}

TEST_CASE("IBA 9.3.7: immediate data passes as it is", "[wire]") {
  const std::uint8_t p[] = {1, 2, 3, 4};
  CHECK(written(ImmDt::read(p)) == "01020304");
}

TEST_CASE("IBA 9.3.8: IETH", "[wire]") {
  CHECK(written(Ieth{0x01020304}) == "01020304");
  const std::uint8_t p[] = {1, 2, 3, 4};
  CHECK(Ieth::read(p).rkey == 0x01020304);
}

TEST_CASE("Ethernet header and VLAN tag", "[wire]") {
  const EthHeader h{{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}, kEthertypeVlan};
  std::uint8_t p[18];
  h.store(p);
  VlanTag{VlanTag::make_tci(5, 0x123), kEthertypeIpv6}.store(p + 14);
  CHECK(hex(p, 18) == "0102030405060708090a0b0c8100a12386dd");
  CHECK(EthView(p).dst()[5] == 6);
  CHECK(EthView(p).src()[0] == 7);
  CHECK(EthView(p).ethertype() == 0x8100);
  CHECK(VlanView(p + 14).tci() == 0xA123);
  CHECK(VlanView(p + 14).ethertype() == 0x86DD);
  CHECK(VlanTag::make_tci(15, 0xFFFF) == 0xEFFF);  // 3 and 12 bits, DEI stays 0
}

TEST_CASE("RFC 791 s3.1: IPv4 header", "[wire]") {
  Ipv4Header h;
  h.tos = 0x6A;
  h.total_length = 0x0123;
  h.id = 0x4567;
  h.ttl = 17;
  h.protocol = kIpProtoUdp;
  h.src = 0x0A000001;
  h.dst = 0x0A000002;
  std::uint8_t p[20];
  h.store(p);
  CHECK(hex(p, 10) == "456a0123456740001111");
  CHECK(hex(p + 12, 8) == "0a0000010a000002");
  const Ipv4View v(p);
  CHECK(v.version() == 4);
  CHECK(v.header_length() == 20);
  CHECK(v.tos() == 0x6A);
  CHECK(v.total_length() == 0x0123);
  CHECK(v.id() == 0x4567);
  CHECK_FALSE(v.is_fragment());
  CHECK(v.ttl() == 17);
  CHECK(v.protocol() == 17);
  CHECK(load_be32(v.src()) == 0x0A000001);
  CHECK(load_be32(v.dst()) == 0x0A000002);
  CHECK(v.checksum_ok());
  for (int i = 0; i < 20; ++i) {
    p[i] ^= 0x10;
    CHECK_FALSE(v.checksum_ok());
    p[i] ^= 0x10;
  }
  store_be16(p + 6, 0x2000);
  CHECK(v.is_fragment());
  CHECK(v.fragment_offset() == 0);
  store_be16(p + 6, 0x0003);
  CHECK(v.is_fragment());
  CHECK(v.fragment_offset() == 3);
}

TEST_CASE("RFC 1071: Internet checksum", "[wire]") {
  // The example of section 3.
  const std::uint8_t p[] = {0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7};
  CHECK(inet_fold(inet_sum(p, 8)) == 0xDDF2);
  CHECK(inet_sum(p, 3) == 0x0001 + 0xF200);  // an odd last byte is a high byte
  CHECK(inet_fold(0xFFFF0001) == 1);
  CHECK(inet_fold(0xFFFFFFFF) == 0xFFFF);
  const std::vector<std::uint8_t> most(65535, 0xFF);
  CHECK(inet_fold(inet_sum(most.data(), most.size())) == 0xFF00);
}

TEST_CASE("RFC 8200 s3: IPv6 header", "[wire]") {
  Ipv6Header h;
  h.traffic_class = 0x6A;
  h.flow_label = 0xFFF12345;  // 20 bits are used
  h.payload_length = 0x0123;
  h.next_header = kIpProtoUdp;
  h.hop_limit = 17;
  h.src = gid(0x20);
  h.dst = gid(0x30);
  std::uint8_t p[40];
  h.store(p);
  CHECK(hex(p, 8) == "66a1234501231111");
  const Ipv6View v(p);
  CHECK(v.version() == 6);
  CHECK(v.traffic_class() == 0x6A);
  CHECK(v.flow_label() == 0x12345);
  CHECK(v.payload_length() == 0x0123);
  CHECK(v.next_header() == 17);
  CHECK(v.hop_limit() == 17);
  CHECK(v.src() == gid(0x20));
  CHECK(v.dst() == gid(0x30));
}

TEST_CASE("IBA 8.3, 8.3.4: GRH", "[wire]") {
  GrhHeader h;
  h.next_header = kGrhNextHeaderIba;
  h.payload_length = 28;
  h.hop_limit = 1;
  h.src = gid(0x20);
  h.dst = gid(0x30);
  std::uint8_t p[40];
  h.store(p);
  CHECK(hex(p, 8) == "60000000001c1b01");
  CHECK(GrhView(p).next_header() == 0x1B);
  CHECK(GrhView(p).dst() == gid(0x30));
}

TEST_CASE("RFC 768: UDP header", "[wire]") {
  std::uint8_t p[8];
  UdpHeader{0xC001, 4791, 0x20, 0x1234}.store(p);
  CHECK(hex(p, 8) == "c00112b700201234");
  CHECK(UdpView(p).src_port() == 0xC001);
  CHECK(UdpView(p).dst_port() == 4791);
  CHECK(UdpView(p).length() == 0x20);
  CHECK(UdpView(p).checksum() == 0x1234);
}
