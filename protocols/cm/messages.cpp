#include "protocols/cm/messages.h"

namespace softrnic::cm {

namespace {

void store_flag(std::uint8_t* p, unsigned bit, bool value) {
  if (value) *p = static_cast<std::uint8_t>(*p | 1u << bit);
}

Gid load_gid(const std::uint8_t* p) {
  Gid g;
  std::memcpy(g.raw, p, sizeof g.raw);
  return g;
}

std::uint8_t high5(unsigned v) { return static_cast<std::uint8_t>(v << 3); }

// Transport service type and extended transport type; what has no name here becomes `rd`, which nobody has.
Transport transport_of(unsigned service_type, unsigned extended) {
  if (service_type == 3 && extended != 1) return Transport::rd;
  return static_cast<Transport>(service_type);
}

}  // namespace

ReqPath ReqPath::read(const std::uint8_t* p) {
  ReqPath r;
  r.local_lid = load_be16(p);
  r.remote_lid = load_be16(p + 2);
  r.local_gid = load_gid(p + 4);
  r.remote_gid = load_gid(p + 20);
  r.flow_label = load_be32(p + 36) >> 12;
  r.packet_rate = p[39] & 0x3F;
  r.traffic_class = p[40];
  r.hop_limit = p[41];
  r.sl = p[42] >> 4;
  r.subnet_local = (p[42] & 0x08) != 0;
  r.local_ack_timeout = p[43] >> 3;
  return r;
}

void ReqPath::write(std::uint8_t* p) const {
  store_be16(p, local_lid);
  store_be16(p + 2, remote_lid);
  std::memcpy(p + 4, local_gid.raw, 16);
  std::memcpy(p + 20, remote_gid.raw, 16);
  store_be32(p + 36, flow_label << 12 | (packet_rate & 0x3Fu));
  p[40] = traffic_class;
  p[41] = hop_limit;
  p[42] = static_cast<std::uint8_t>(sl << 4);
  store_flag(p + 42, 3, subnet_local);
  p[43] = high5(local_ack_timeout);
}

ReqMessage ReqMessage::read(const std::uint8_t* p) {
  ReqMessage m;
  m.local_comm_id = load_be32(p);
  m.vendor_id = load_be24(p + 5);
  m.service_id = load_be64(p + 8);
  m.local_ca_guid = load_be64(p + 16);
  m.local_qkey = load_be32(p + 28);
  m.local_qpn = load_be24(p + 32);
  m.responder_resources = p[35];
  m.local_eecn = load_be24(p + 36);
  m.initiator_depth = p[39];
  m.remote_eecn = load_be24(p + 40);
  m.remote_cm_response_timeout = p[43] >> 3;
  m.transport = transport_of(p[43] >> 1 & 3, p[51] & 7);
  m.flow_control = (p[43] & 1) != 0;
  m.starting_psn = load_be24(p + 44);
  m.local_cm_response_timeout = p[47] >> 3;
  m.retry_count = p[47] & 7;
  m.pkey = load_be16(p + 48);
  m.path_mtu = p[50] >> 4;
  m.rdc_exists = (p[50] & 0x08) != 0;
  m.rnr_retry_count = p[50] & 7;
  m.max_cm_retries = p[51] >> 4;
  m.srq = (p[51] & 0x08) != 0;
  m.primary = ReqPath::read(p + 52);
  m.alternate = ReqPath::read(p + 52 + ReqPath::kSize);
  return m;
}
static_assert(52 + 2 * ReqPath::kSize == ReqMessage::kPrivateData);

void ReqMessage::write(std::uint8_t* p) const {
  store_be32(p, local_comm_id);
  store_be24(p + 5, vendor_id);
  store_be64(p + 8, service_id);
  store_be64(p + 16, local_ca_guid);
  store_be32(p + 28, local_qkey);
  store_be24(p + 32, local_qpn);
  p[35] = responder_resources;
  store_be24(p + 36, local_eecn);
  p[39] = initiator_depth;
  store_be24(p + 40, remote_eecn);
  p[43] = static_cast<std::uint8_t>(high5(remote_cm_response_timeout) | static_cast<unsigned>(transport) << 1);
  store_flag(p + 43, 0, flow_control);
  store_be24(p + 44, starting_psn);
  p[47] = static_cast<std::uint8_t>(high5(local_cm_response_timeout) | (retry_count & 7u));
  store_be16(p + 48, pkey);
  p[50] = static_cast<std::uint8_t>(path_mtu << 4 | (rnr_retry_count & 7u));
  store_flag(p + 50, 3, rdc_exists);
  p[51] = static_cast<std::uint8_t>(max_cm_retries << 4 | (transport == Transport::xrc ? 1u : 0u));
  store_flag(p + 51, 3, srq);
  primary.write(p + 52);
  alternate.write(p + 52 + ReqPath::kSize);
}

MraMessage MraMessage::read(const std::uint8_t* p) {
  return {load_be32(p), load_be32(p + 4), static_cast<MessageRef>(p[8] >> 6), static_cast<std::uint8_t>(p[9] >> 3)};
}

void MraMessage::write(std::uint8_t* p) const {
  store_be32(p, local_comm_id);
  store_be32(p + 4, remote_comm_id);
  p[8] = static_cast<std::uint8_t>(static_cast<unsigned>(message) << 6);
  p[9] = high5(service_timeout);
}

RejMessage RejMessage::read(const std::uint8_t* p) {
  return {load_be32(p), load_be32(p + 4), static_cast<MessageRef>(p[8] >> 6), static_cast<std::uint8_t>(p[9] >> 1),
          static_cast<RejReason>(load_be16(p + 10))};
}

void RejMessage::write(std::uint8_t* p) const {
  store_be32(p, local_comm_id);
  store_be32(p + 4, remote_comm_id);
  p[8] = static_cast<std::uint8_t>(static_cast<unsigned>(message) << 6);
  p[9] = static_cast<std::uint8_t>(info_length << 1);
  store_be16(p + 10, static_cast<std::uint16_t>(reason));
}

RepMessage RepMessage::read(const std::uint8_t* p) {
  RepMessage m;
  m.local_comm_id = load_be32(p);
  m.remote_comm_id = load_be32(p + 4);
  m.local_qkey = load_be32(p + 8);
  m.local_qpn = load_be24(p + 12);
  m.vendor_id = static_cast<std::uint32_t>(p[15]) << 16 | static_cast<std::uint32_t>(p[19]) << 8 | p[23];
  m.local_eecn = load_be24(p + 16);
  m.starting_psn = load_be24(p + 20);
  m.responder_resources = p[24];
  m.initiator_depth = p[25];
  m.target_ack_delay = p[26] >> 3;
  m.failover = static_cast<Failover>(p[26] >> 1 & 3);
  m.flow_control = (p[26] & 1) != 0;
  m.rnr_retry_count = p[27] >> 5;
  m.srq = (p[27] & 0x10) != 0;
  m.local_ca_guid = load_be64(p + 28);
  return m;
}

void RepMessage::write(std::uint8_t* p) const {
  store_be32(p, local_comm_id);
  store_be32(p + 4, remote_comm_id);
  store_be32(p + 8, local_qkey);
  store_be32(p + 12, local_qpn << 8 | (vendor_id >> 16 & 0xFF));
  store_be32(p + 16, local_eecn << 8 | (vendor_id >> 8 & 0xFF));
  store_be32(p + 20, starting_psn << 8 | (vendor_id & 0xFF));
  p[24] = responder_resources;
  p[25] = initiator_depth;
  p[26] = static_cast<std::uint8_t>(high5(target_ack_delay) | static_cast<unsigned>(failover) << 1);
  store_flag(p + 26, 0, flow_control);
  p[27] = static_cast<std::uint8_t>(rnr_retry_count << 5);
  store_flag(p + 27, 4, srq);
  store_be64(p + 28, local_ca_guid);
}

LapMessage LapMessage::read(const std::uint8_t* p) {
  LapMessage m;
  m.local_comm_id = load_be32(p);
  m.remote_comm_id = load_be32(p + 4);
  m.remote_qpn = load_be24(p + 12);
  m.remote_cm_response_timeout = p[15] >> 3;
  m.path.local_lid = load_be16(p + 20);
  m.path.remote_lid = load_be16(p + 22);
  m.path.local_gid = load_gid(p + 24);
  m.path.remote_gid = load_gid(p + 40);
  m.path.flow_label = load_be24(p + 56) >> 4;
  m.path.traffic_class = p[59];
  m.path.hop_limit = p[60];
  m.path.packet_rate = p[61] & 0x3F;
  m.path.sl = p[62] >> 4;
  m.path.subnet_local = (p[62] & 0x08) != 0;
  m.path.local_ack_timeout = p[63] >> 3;
  return m;
}

void LapMessage::write(std::uint8_t* p) const {
  store_be32(p, local_comm_id);
  store_be32(p + 4, remote_comm_id);
  store_be24(p + 12, remote_qpn);
  p[15] = high5(remote_cm_response_timeout);
  store_be16(p + 20, path.local_lid);
  store_be16(p + 22, path.remote_lid);
  std::memcpy(p + 24, path.local_gid.raw, 16);
  std::memcpy(p + 40, path.remote_gid.raw, 16);
  store_be24(p + 56, path.flow_label << 4);
  p[59] = path.traffic_class;
  p[60] = path.hop_limit;
  p[61] = path.packet_rate & 0x3F;
  p[62] = static_cast<std::uint8_t>(path.sl << 4);
  store_flag(p + 62, 3, path.subnet_local);
  p[63] = high5(path.local_ack_timeout);
}

SidrRepMessage SidrRepMessage::read(const std::uint8_t* p) {
  SidrRepMessage m;
  m.request_id = load_be32(p);
  m.status = static_cast<SidrStatus>(p[4]);
  m.info_length = p[5];
  m.vendor_id = static_cast<std::uint32_t>(load_be16(p + 6)) << 8 | p[11];
  m.qpn = load_be24(p + 8);
  m.service_id = load_be64(p + 12);
  m.qkey = load_be32(p + 20);
  return m;
}

void SidrRepMessage::write(std::uint8_t* p) const {
  store_be32(p, request_id);
  p[4] = static_cast<std::uint8_t>(status);
  p[5] = info_length;
  store_be16(p + 6, static_cast<std::uint16_t>(vendor_id >> 8));
  store_be32(p + 8, qpn << 8 | (vendor_id & 0xFF));
  store_be64(p + 12, service_id);
  store_be32(p + 20, qkey);
}

}  // namespace softrnic::cm
