// The messages byte by byte, as the tables of the specification place their fields.
#include <catch2/catch.hpp>
#include <vector>

#include "protocols/cm/messages.h"

namespace softrnic::cm {
namespace {

// A field of a message: byte behind the MAD header, value of that many bytes.
struct Field {
  std::size_t at;
  std::vector<std::uint8_t> bytes;
};

// Every byte of the message area up to the private data is as listed, or zero.
template <class M>
void check_layout(const M& m, const std::vector<Field>& fields) {
  std::vector<std::uint8_t> want(mad::kMadDataSize);
  for (const Field& f : fields) std::copy(f.bytes.begin(), f.bytes.end(), want.begin() + static_cast<long>(f.at));
  std::vector<std::uint8_t> got(mad::kMadDataSize);
  m.write(got.data());
  CHECK(got == want);
  // And back: what was read writes the same bytes.
  std::vector<std::uint8_t> again(mad::kMadDataSize);
  M::read(got.data()).write(again.data());
  CHECK(again == want);
}

Gid gid(std::uint8_t fill) {
  Gid g;
  std::fill(std::begin(g.raw), std::end(g.raw), fill);
  return g;
}
std::vector<std::uint8_t> sixteen(std::uint8_t fill) { return std::vector<std::uint8_t>(16, fill); }

ReqPath path(std::uint8_t seed) {
  ReqPath p;
  p.local_lid = 0x1122;
  p.remote_lid = 0x3344;
  p.local_gid = gid(seed);
  p.remote_gid = gid(static_cast<std::uint8_t>(seed + 1));
  p.flow_label = 0xABCDE;
  p.packet_rate = 0x2A;
  p.traffic_class = 0x55;
  p.hop_limit = 0x40;
  p.sl = 0xC;
  p.subnet_local = true;
  p.local_ack_timeout = 0x13;
  return p;
}

}  // namespace

TEST_CASE("MAD header: its fields lie where every class expects them", "[mad]") {
  mad::MadHeader h;
  h.class_version = 2;
  h.status = 0x1122;
  h.class_specific = 0x3344;
  h.transaction_id = 0x0102030405060708;
  h.attribute_id = 0x0010;
  h.attribute_modifier = 0x0A0B0C0D;
  std::uint8_t p[mad::MadHeader::kSize];
  h.write(p);
  const std::uint8_t want[] = {1, 7, 2, 3, 0x11, 0x22, 0x33, 0x44, 1,  2,  3,  4,
                               5, 6, 7, 8, 0,    0x10, 0,    0,    10, 11, 12, 13};
  CHECK(std::equal(std::begin(p), std::end(p), std::begin(want), std::end(want)));
  const mad::MadHeader r = mad::MadHeader::read(p);
  CHECK(r.mgmt_class == mad::MgmtClass::cm);
  CHECK(r.method == mad::Method::send);
  CHECK(r.transaction_id == h.transaction_id);
  CHECK(r.attribute_modifier == h.attribute_modifier);
}

TEST_CASE("IBA table 106: REQ", "[cm]") {
  ReqMessage m;
  m.local_comm_id = 0x01020304;
  m.vendor_id = 0x0A0B0C;
  m.service_id = 0x1112131415161718;
  m.local_ca_guid = 0x2122232425262728;
  m.local_qkey = 0x31323334;
  m.local_qpn = 0x414243;
  m.responder_resources = 0x44;
  m.local_eecn = 0x515253;
  m.initiator_depth = 0x54;
  m.remote_eecn = 0x616263;
  m.remote_cm_response_timeout = 0x15;
  m.transport = Transport::uc;
  m.flow_control = true;
  m.starting_psn = 0x717273;
  m.local_cm_response_timeout = 0x0A;
  m.retry_count = 5;
  m.pkey = 0x8001;
  m.path_mtu = 4;
  m.rdc_exists = true;
  m.rnr_retry_count = 6;
  m.max_cm_retries = 0xD;
  m.srq = true;
  m.primary = path(0x81);
  m.alternate = path(0x91);
  std::vector<Field> fields = {
      {0, {1, 2, 3, 4}},
      {5, {0x0A, 0x0B, 0x0C}},
      {8, {0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18}},
      {16, {0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28}},
      {28, {0x31, 0x32, 0x33, 0x34}},
      {32, {0x41, 0x42, 0x43, 0x44}},
      {36, {0x51, 0x52, 0x53, 0x54}},
      {40, {0x61, 0x62, 0x63, 0x15 << 3 | 1 << 1 | 1}},
      {44, {0x71, 0x72, 0x73, 0x0A << 3 | 5}},
      {48, {0x80, 0x01, 4 << 4 | 8 | 6, 0xD << 4 | 8}},
  };
  for (const std::uint8_t second : {0, 1}) {
    const std::size_t at = 52 + 44u * second;
    fields.push_back({at, {0x11, 0x22, 0x33, 0x44}});
    fields.push_back({at + 4, sixteen(static_cast<std::uint8_t>(0x81 + 0x10 * second))});
    fields.push_back({at + 20, sixteen(static_cast<std::uint8_t>(0x82 + 0x10 * second))});
    fields.push_back({at + 36, {0xAB, 0xCD, 0xE0, 0x2A, 0x55, 0x40, 0xC8, 0x13 << 3}});
  }
  check_layout(m, fields);
  CHECK(m.has_alternate());
}

TEST_CASE("IBA table 106: the transport of a REQ may be an extended one", "[cm]") {
  ReqMessage m;
  m.transport = Transport::xrc;
  std::uint8_t p[mad::kMadDataSize] = {};
  m.write(p);
  CHECK((p[43] >> 1 & 3) == 3);
  CHECK((p[51] & 7) == 1);
  CHECK(ReqMessage::read(p).transport == Transport::xrc);
  p[51] = 2;  // no such extended transport
  CHECK(ReqMessage::read(p).transport == Transport::rd);
}

TEST_CASE("IBA tables 107, 108, 110: MRA, REJ, REP", "[cm]") {
  check_layout(MraMessage{0x01020304, 0x05060708, MessageRef::rep, 0x1F},
               {{0, {1, 2, 3, 4, 5, 6, 7, 8, 1 << 6, 0x1F << 3}}});
  check_layout(RejMessage{0x01020304, 0x05060708, MessageRef::other, 72, RejReason::consumer_defined},
               {{0, {1, 2, 3, 4, 5, 6, 7, 8, 2 << 6, 72 << 1, 0, 28}}});
  RepMessage m;
  m.local_comm_id = 0x01020304;
  m.remote_comm_id = 0x05060708;
  m.local_qkey = 0x11121314;
  m.local_qpn = 0x212223;
  m.vendor_id = 0xA1A2A3;
  m.local_eecn = 0x313233;
  m.starting_psn = 0x414243;
  m.responder_resources = 0x51;
  m.initiator_depth = 0x52;
  m.target_ack_delay = 0x0F;
  m.failover = Failover::rejected;
  m.flow_control = true;
  m.rnr_retry_count = 5;
  m.srq = true;
  m.local_ca_guid = 0x6162636465666768;
  check_layout(m, {{0, {1, 2, 3, 4, 5, 6, 7, 8}},
                   {8, {0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0xA1}},
                   {16, {0x31, 0x32, 0x33, 0xA2, 0x41, 0x42, 0x43, 0xA3}},
                   {24, {0x51, 0x52, 0x0F << 3 | 2 << 1 | 1, 5 << 5 | 0x10}},
                   {28, {0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68}}});
}

TEST_CASE("IBA tables 111, 112, 113: RTU, DREQ, DREP", "[cm]") {
  check_layout(RtuMessage{0x01020304, 0x05060708}, {{0, {1, 2, 3, 4, 5, 6, 7, 8}}});
  check_layout(DreqMessage{0x01020304, 0x05060708, 0x111213}, {{0, {1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13}}});
  check_layout(DrepMessage{0x01020304, 0x05060708}, {{0, {1, 2, 3, 4, 5, 6, 7, 8}}});
}

TEST_CASE("IBA tables 115, 116: LAP, APR", "[cm]") {
  LapMessage m;
  m.local_comm_id = 0x01020304;
  m.remote_comm_id = 0x05060708;
  m.remote_qpn = 0x111213;
  m.remote_cm_response_timeout = 0x11;
  m.path = path(0x41);
  check_layout(m, {{0, {1, 2, 3, 4, 5, 6, 7, 8}},
                   {12, {0x11, 0x12, 0x13, 0x11 << 3}},
                   {20, {0x11, 0x22, 0x33, 0x44}},
                   {24, sixteen(0x41)},
                   {40, sixteen(0x42)},
                   {56, {0xAB, 0xCD, 0xE0, 0x55, 0x40, 0x2A, 0xC8, 0x13 << 3}}});
  check_layout(AprMessage{0x01020304, 0x05060708, 72, ApStatus::invalid_sl}, {{0, {1, 2, 3, 4, 5, 6, 7, 8, 72, 13}}});
}

TEST_CASE("IBA tables 119, 120: SIDR_REQ, SIDR_REP", "[cm]") {
  check_layout(SidrReqMessage{0x01020304, 0x8001, 0x1112131415161718},
               {{0, {1, 2, 3, 4, 0x80, 1, 0, 0, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18}}});
  SidrRepMessage m;
  m.request_id = 0x01020304;
  m.status = SidrStatus::no_qp;
  m.info_length = 12;
  m.vendor_id = 0xA1A2A3;
  m.qpn = 0x212223;
  m.service_id = 0x1112131415161718;
  m.qkey = 0x31323334;
  check_layout(m, {{0, {1, 2, 3, 4, 3, 12, 0xA1, 0xA2, 0x21, 0x22, 0x23, 0xA3}},
                   {12, {0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x31, 0x32, 0x33, 0x34}}});
}

TEST_CASE("make_mad: header, information and private data", "[cm]") {
  const std::uint8_t data[] = {1, 2, 3}, info[] = {9, 8};
  const Mad m = make_mad(0x42, RejMessage{1, 2, MessageRef::req, 2, RejReason::no_qp}, data, info, 7);
  const mad::MadHeader h = mad::MadHeader::read(m.data());
  CHECK(h.class_version == 2);
  CHECK(h.attribute_id == 0x0012);
  CHECK(h.transaction_id == 0x42);
  CHECK(h.attribute_modifier == 7);
  CHECK(m[24 + 12] == 9);
  CHECK(m[24 + 84] == 1);
  CHECK(m[24 + 87] == 0);
}

}  // namespace softrnic::cm
