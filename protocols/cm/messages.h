// The messages of communication management as values. Each is the fields between the MAD header and the private data:
// `read` and `write` take the kMadDataSize bytes behind the header; `write` expects zeros there and leaves the private
// data, which lies at kPrivateData and is kPrivateDataSize long.
#pragma once

#include "protocols/cm/types.h"

namespace softrnic::cm {

inline constexpr std::uint8_t kClassVersion = 2;
inline constexpr std::uint16_t kFirstAttribute = 0x0010;  // of MessageType::req; the others follow in order

inline constexpr std::uint16_t attribute_of(MessageType type) {
  return static_cast<std::uint16_t>(kFirstAttribute + static_cast<unsigned>(type));
}

// One path of a REQ, in the words of its sender.
struct ReqPath {
  static constexpr std::size_t kSize = 44;
  std::uint16_t local_lid = 0;
  std::uint16_t remote_lid = 0;
  Gid local_gid{};
  Gid remote_gid{};
  std::uint32_t flow_label = 0;
  std::uint8_t packet_rate = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  std::uint8_t sl = 0;
  bool subnet_local = false;
  std::uint8_t local_ack_timeout = 0;

  static ReqPath read(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
};

// IBA table 106
struct ReqMessage {
  static constexpr MessageType kType = MessageType::req;
  static constexpr std::size_t kPrivateData = 140, kPrivateDataSize = kReqPrivateData;
  CommId local_comm_id = kNoId;
  std::uint32_t vendor_id = 0;
  std::uint64_t service_id = 0;
  std::uint64_t local_ca_guid = 0;
  std::uint32_t local_qkey = 0;
  std::uint32_t local_qpn = 0;
  std::uint8_t responder_resources = 0;
  std::uint32_t local_eecn = 0;
  std::uint8_t initiator_depth = 0;
  std::uint32_t remote_eecn = 0;
  std::uint8_t remote_cm_response_timeout = 0;
  Transport transport = Transport::rc;  // `xrc` as the extended transport type 1, any other such as `rd`: unsupported
  bool flow_control = false;
  std::uint32_t starting_psn = 0;
  std::uint8_t local_cm_response_timeout = 0;
  std::uint8_t retry_count = 0;
  std::uint16_t pkey = 0;
  std::uint8_t path_mtu = 0;
  bool rdc_exists = false;
  std::uint8_t rnr_retry_count = 0;
  std::uint8_t max_cm_retries = 0;
  bool srq = false;
  ReqPath primary;
  ReqPath alternate;  // all zeros: none

  bool has_alternate() const { return alternate.local_lid != 0 || alternate.local_gid != Gid{}; }
  static ReqMessage read(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
};

// IBA table 107
struct MraMessage {
  static constexpr MessageType kType = MessageType::mra;
  static constexpr std::size_t kPrivateData = 10, kPrivateDataSize = kMraPrivateData;
  CommId local_comm_id = kNoId;
  CommId remote_comm_id = kNoId;
  MessageRef message = MessageRef::req;
  std::uint8_t service_timeout = 0;

  static MraMessage read(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
};

// IBA table 108. The additional rejection information lies at kInfo.
struct RejMessage {
  static constexpr MessageType kType = MessageType::rej;
  static constexpr std::size_t kInfo = 12, kPrivateData = 84, kPrivateDataSize = kRejPrivateData;
  CommId local_comm_id = kNoId;
  CommId remote_comm_id = kNoId;
  MessageRef message = MessageRef::req;
  std::uint8_t info_length = 0;  // 7 bits
  RejReason reason = RejReason::consumer_defined;

  static RejMessage read(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
};

// IBA table 110
struct RepMessage {
  static constexpr MessageType kType = MessageType::rep;
  static constexpr std::size_t kPrivateData = 36, kPrivateDataSize = kRepPrivateData;
  CommId local_comm_id = kNoId;
  CommId remote_comm_id = kNoId;
  std::uint32_t local_qkey = 0;
  std::uint32_t local_qpn = 0;
  std::uint32_t vendor_id = 0;
  std::uint32_t local_eecn = 0;  // XRC: the target's QP number
  std::uint32_t starting_psn = 0;
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t target_ack_delay = 0;
  Failover failover = Failover::accepted;
  bool flow_control = false;
  std::uint8_t rnr_retry_count = 0;
  bool srq = false;
  std::uint64_t local_ca_guid = 0;

  static RepMessage read(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
};

// RTU and DREP have nothing but the communication IDs.
template <MessageType type>
struct IdMessage {
  static constexpr MessageType kType = type;
  static constexpr std::size_t kPrivateData = 8, kPrivateDataSize = kRtuPrivateData;
  CommId local_comm_id = kNoId;
  CommId remote_comm_id = kNoId;

  static IdMessage read(const std::uint8_t* p) { return {load_be32(p), load_be32(p + 4)}; }
  void write(std::uint8_t* p) const {
    store_be32(p, local_comm_id);
    store_be32(p + 4, remote_comm_id);
  }
};
using RtuMessage = IdMessage<MessageType::rtu>;    // IBA table 111
using DrepMessage = IdMessage<MessageType::drep>;  // IBA table 113
static_assert(kRtuPrivateData == kDrepPrivateData);

// IBA table 112
struct DreqMessage {
  static constexpr MessageType kType = MessageType::dreq;
  static constexpr std::size_t kPrivateData = 12, kPrivateDataSize = kDreqPrivateData;
  CommId local_comm_id = kNoId;
  CommId remote_comm_id = kNoId;
  std::uint32_t remote_qpn = 0;

  static DreqMessage read(const std::uint8_t* p) { return {load_be32(p), load_be32(p + 4), load_be24(p + 8)}; }
  void write(std::uint8_t* p) const {
    store_be32(p, local_comm_id);
    store_be32(p + 4, remote_comm_id);
    store_be24(p + 8, remote_qpn);
  }
};

// IBA table 115. `path.local_ack_timeout` and the rest are the alternate path's.
struct LapMessage {
  static constexpr MessageType kType = MessageType::lap;
  static constexpr std::size_t kPrivateData = 64, kPrivateDataSize = kLapPrivateData;
  CommId local_comm_id = kNoId;
  CommId remote_comm_id = kNoId;
  std::uint32_t remote_qpn = 0;
  std::uint8_t remote_cm_response_timeout = 0;
  ReqPath path;

  static LapMessage read(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
};

// IBA table 116. The additional information lies at kInfo.
struct AprMessage {
  static constexpr MessageType kType = MessageType::apr;
  static constexpr std::size_t kInfo = 12, kPrivateData = 84, kPrivateDataSize = kAprPrivateData;
  CommId local_comm_id = kNoId;
  CommId remote_comm_id = kNoId;
  std::uint8_t info_length = 0;
  ApStatus status = ApStatus::ok;

  static AprMessage read(const std::uint8_t* p) {
    return {load_be32(p), load_be32(p + 4), p[8], static_cast<ApStatus>(p[9])};
  }
  void write(std::uint8_t* p) const {
    store_be32(p, local_comm_id);
    store_be32(p + 4, remote_comm_id);
    p[8] = info_length;
    p[9] = static_cast<std::uint8_t>(status);
  }
};

// IBA table 119
struct SidrReqMessage {
  static constexpr MessageType kType = MessageType::sidr_req;
  static constexpr std::size_t kPrivateData = 16, kPrivateDataSize = kSidrReqPrivateData;
  CommId request_id = kNoId;
  std::uint16_t pkey = 0;
  std::uint64_t service_id = 0;

  static SidrReqMessage read(const std::uint8_t* p) { return {load_be32(p), load_be16(p + 4), load_be64(p + 8)}; }
  void write(std::uint8_t* p) const {
    store_be32(p, request_id);
    store_be16(p + 4, pkey);
    store_be64(p + 8, service_id);
  }
};

// IBA table 120. The additional information lies at kInfo.
struct SidrRepMessage {
  static constexpr MessageType kType = MessageType::sidr_rep;
  static constexpr std::size_t kInfo = 24, kPrivateData = 96, kPrivateDataSize = kSidrRepPrivateData;
  CommId request_id = kNoId;
  SidrStatus status = SidrStatus::ok;
  std::uint8_t info_length = 0;
  std::uint32_t vendor_id = 0;
  std::uint32_t qpn = 0;
  std::uint64_t service_id = 0;
  std::uint32_t qkey = 0;

  static SidrRepMessage read(const std::uint8_t* p);
  void write(std::uint8_t* p) const;
};

template <class M>
inline constexpr bool kFillsMad = M::kPrivateData + M::kPrivateDataSize == mad::kMadDataSize;
static_assert(kFillsMad<ReqMessage> && kFillsMad<MraMessage> && kFillsMad<RejMessage> && kFillsMad<RepMessage>);
static_assert(kFillsMad<RtuMessage> && kFillsMad<DreqMessage> && kFillsMad<DrepMessage> && kFillsMad<LapMessage>);
static_assert(kFillsMad<AprMessage> && kFillsMad<SidrReqMessage> && kFillsMad<SidrRepMessage>);

using Mad = std::array<std::uint8_t, mad::kMadSize>;

// A whole MAD. `info` goes to M::kInfo where there is one; nothing is longer than the message allows.
template <class M>
Mad make_mad(std::uint64_t transaction_id, const M& message, Bytes private_data = {}, Bytes info = {},
             std::uint32_t attribute_modifier = 0) {
  Mad m{};
  mad::MadHeader header;
  header.class_version = kClassVersion;
  header.transaction_id = transaction_id;
  header.attribute_id = attribute_of(M::kType);
  header.attribute_modifier = attribute_modifier;
  header.write(m.data());
  std::uint8_t* data = m.data() + mad::MadHeader::kSize;
  message.write(data);
  if constexpr (requires { M::kInfo; }) {
    if (!info.empty()) std::memcpy(data + M::kInfo, info.data(), info.size());
  }
  if (!private_data.empty()) std::memcpy(data + M::kPrivateData, private_data.data(), private_data.size());
  return m;
}

}  // namespace softrnic::cm
