// The values of communication management: codes of the messages' fields, paths, what a consumer asks of the CM agent
// and what the agent tells it.
#pragma once

#include <array>

#include "protocols/common/bytes.h"
#include "protocols/common/types.h"
#include "protocols/mad/mad.h"

namespace softrnic::cm {

// A communication ID: names a connection, a service ID resolution or a listener of an agent, and is what the wire calls
// the local communication ID (of SIDR: the request ID). Never reused before 2^32 others were. 0: none.
using CommId = std::uint32_t;
inline constexpr CommId kNoId = 0;

// An encoded time: 4.096 us * 2^code; `code` is 0 to 31.
inline constexpr Nanos time_of_code(unsigned code) { return Nanos{4096} << code; }

// Transport of a connection. The side that asks for an XRC connection has its initiator, the other its target.
enum class Transport : std::uint8_t { rc = 0, uc = 1, rd = 2, xrc = 3 };

enum class RejReason : std::uint16_t {
  no_qp = 1,
  no_eec = 2,
  no_resources = 3,
  timeout = 4,
  unsupported = 5,
  invalid_comm_id = 6,
  invalid_comm_instance = 7,
  invalid_service_id = 8,
  invalid_transport_type = 9,
  stale_connection = 10,
  rdc_not_exist = 11,
  invalid_gid = 12,
  invalid_lid = 13,
  invalid_sl = 14,
  invalid_traffic_class = 15,
  invalid_hop_limit = 16,
  invalid_packet_rate = 17,
  invalid_alt_gid = 18,
  invalid_alt_lid = 19,
  invalid_alt_sl = 20,
  invalid_alt_traffic_class = 21,
  invalid_alt_hop_limit = 22,
  invalid_alt_packet_rate = 23,
  port_cm_redirect = 24,
  port_redirect = 25,
  invalid_mtu = 26,
  insufficient_responder_resources = 27,
  consumer_defined = 28,
  invalid_rnr_retry = 29,
  duplicate_local_comm_id = 30,
  invalid_class_version = 31,
  invalid_flow_label = 32,
  invalid_alt_flow_label = 33,
  vendor_option_not_supported = 35,
};

// Which message an MRA or a REJ is about.
enum class MessageRef : std::uint8_t { req = 0, rep = 1, other = 2 };  // other: LAP of an MRA, none of a REJ

enum class ApStatus : std::uint8_t {
  ok = 0,
  invalid_comm_id = 1,
  unsupported = 2,
  rejected = 3,
  redirect = 4,
  is_current = 5,
  invalid_qpn = 6,
  invalid_lid = 7,
  invalid_gid = 8,
  invalid_flow_label = 9,
  invalid_traffic_class = 10,
  invalid_hop_limit = 11,
  invalid_packet_rate = 12,
  invalid_sl = 13,
};

enum class SidrStatus : std::uint8_t {
  ok = 0,
  unsupported = 1,
  rejected = 2,
  no_qp = 3,
  redirect = 4,
  unsupported_version = 5,
};

enum class Failover : std::uint8_t { accepted = 0, unsupported = 1, rejected = 2 };

// A path between two ports as REQ carries it, seen from this side.
struct Path {
  Gid local_gid{};
  Gid remote_gid{};
  std::uint16_t local_lid = 0;
  std::uint16_t remote_lid = 0;
  std::uint32_t flow_label = 0;  // 20 bits
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 1;         // 0 and 1: the peer is in this subnet
  std::uint8_t sl = 0;                // 0..15
  std::uint8_t rate = 0;              // code of a static rate, 6 bits
  std::uint8_t packet_life_time = 0;  // encoded time, 5 bits
  bool subnet_local = true;           // of a received path; of one to send it follows from hop_limit
};

// Enhanced connection establishment: vendors' options of a connection, passed through.
struct Ece {
  std::uint32_t vendor_id = 0;  // 24 bits
  std::uint32_t attr_mod = 0;
};

// Lengths of the messages' private data, in bytes.
inline constexpr std::size_t kReqPrivateData = 92;
inline constexpr std::size_t kMraPrivateData = 222;
inline constexpr std::size_t kRejPrivateData = 148;
inline constexpr std::size_t kRepPrivateData = 196;
inline constexpr std::size_t kRtuPrivateData = 224;
inline constexpr std::size_t kDreqPrivateData = 220;
inline constexpr std::size_t kDrepPrivateData = 224;
inline constexpr std::size_t kLapPrivateData = 168;
inline constexpr std::size_t kAprPrivateData = 148;
inline constexpr std::size_t kSidrReqPrivateData = 216;
inline constexpr std::size_t kSidrRepPrivateData = 136;
inline constexpr std::size_t kMaxPrivateData = 224;
inline constexpr std::size_t kAriSize = 72;  // additional information of REJ, APR and SIDR_REP

// ---- what a consumer asks for ---------------------------------------------------------------------------------------

// A connection request. What the peer is told, in the words of the peer's QP attributes: `responder_resources` is how
// many RDMA READs and atomics this side answers at a time, `initiator_depth` how many it will have open.
struct ReqParams {
  std::uint64_t service_id = 0;
  Transport transport = Transport::rc;  // rc, uc, xrc
  std::uint32_t qpn = 0;                // 24 bits
  std::uint32_t starting_psn = 0;       // 24 bits: the first PSN this side wants to receive
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t remote_cm_response_timeout = 0;  // encoded: how fast the peer must answer
  std::uint8_t local_cm_response_timeout = 0;   // encoded: how fast this side answers
  std::uint8_t retry_count = 0;                 // 3 bits, of the peer's QP
  std::uint8_t rnr_retry_count = 0;             // 3 bits
  std::uint8_t max_cm_retries = 0;              // 4 bits: times a message is sent again, also by the peer
  bool flow_control = false;
  bool srq = false;
  std::uint8_t path_mtu = 0;  // code, 1 (256) to 5 (4096)
  Path path;
  mad::MadRoute route;  // of the CM's messages; `pkey` is also the connection's
  Ece ece;
  Bytes private_data;  // at most kReqPrivateData
};

struct RepParams {
  std::uint32_t qpn = 0;
  std::uint32_t starting_psn = 0;
  std::uint8_t responder_resources = 0;  // what this side grants, not more than the REQ's event said
  std::uint8_t initiator_depth = 0;
  std::uint8_t rnr_retry_count = 0;
  bool flow_control = false;
  bool srq = false;
  Ece ece;
  Bytes private_data;  // at most kRepPrivateData
};

struct SidrReqParams {
  std::uint64_t service_id = 0;
  Nanos timeout = 0;  // for an answer, of each transmission
  std::uint8_t max_cm_retries = 0;
  mad::MadRoute route;
  Bytes private_data;  // at most kSidrReqPrivateData
};

struct SidrRepParams {
  SidrStatus status = SidrStatus::ok;
  std::uint32_t qpn = 0;
  std::uint32_t qkey = 0;
  Ece ece;
  Bytes info;          // at most kAriSize
  Bytes private_data;  // at most kSidrRepPrivateData
};

enum class Result : std::uint8_t {
  ok,
  bad_argument,  // EINVAL: a field out of its range, too much private data
  bad_state,     // EINVAL: not what one does in the ID's state, or no such ID
  connected,     // EISCONN: establish() of what is established
  in_use,        // EADDRINUSE: the service ID has a listener
  no_room,       // ENOMEM: the agent's tables are full
};

// ---- what the agent tells -------------------------------------------------------------------------------------------

// State of a communication ID, as ib_cm of the kernel names them.
enum class State : std::uint8_t {
  idle,  // over; destroy() it
  listen,
  req_sent,
  req_rcvd,
  mra_req_sent,
  mra_req_rcvd,
  rep_sent,
  rep_rcvd,
  mra_rep_sent,
  mra_rep_rcvd,
  established,
  dreq_sent,
  dreq_rcvd,
  timewait,
  sidr_req_sent,
  sidr_req_rcvd,
};

enum class EventKind : std::uint8_t {
  req_received,       // a new ID `id` asks `listener`: accept(), mra(), reject() or drop()
  req_error,          // nobody answered connect(); idle
  rep_received,       // connect() was accepted: ready(), mra() or reject()
  rep_error,          // the peer did not answer accept(); as after disconnect(): dreq_sent, then timewait
  rtu_received,       // the connection of accept() is established
  user_established,   // as rtu_received, but by establish()
  rej_received,       // `reason`; in state idle, or timewait where the peer may have seen the connection
  mra_received,       // the peer needs `service_timeout`
  dreq_received,      // the peer disconnects: confirm_disconnect() (or disconnect()) answers
  drep_received,      // disconnect() is done; both sides may have asked for it (then with the DREQ's private data)
  dreq_error,         // the peer did not answer disconnect(); in timewait, too
  timewait_exit,      // the QP number may be used for another connection; idle
  sidr_req_received,  // a new ID `id` asks `listener`: sidr_reply()
  sidr_rep_received,  // `sidr_status`, `remote_qpn`, `remote_qkey`; idle
  sidr_req_error,     // nobody answered; idle
};

// One thing that happened, taken by poll_event. Fields beyond the first lines are set for the kinds named.
struct Event {
  EventKind kind = EventKind::req_error;
  CommId id = kNoId;
  CommId listener = kNoId;    // req_received, sidr_req_received
  State state = State::idle;  // of `id` when the event was made

  // req_received, rep_received
  std::uint64_t remote_ca_guid = 0;
  std::uint32_t remote_qpn = 0;   // also sidr_rep_received
  std::uint32_t remote_qkey = 0;  // also sidr_rep_received
  std::uint32_t starting_psn = 0;
  Transport transport = Transport::rc;
  // In the words of this side: at most so many for what accept() grants, or what the peer granted.
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  bool flow_control = false;
  bool srq = false;
  std::uint8_t rnr_retry_count = 0;
  Ece ece;  // also sidr_rep_received

  // req_received
  std::uint64_t service_id = 0;  // also sidr_req_received
  std::uint8_t retry_count = 0;
  std::uint8_t local_cm_response_timeout = 0;   // what the peer expects of this side
  std::uint8_t remote_cm_response_timeout = 0;  // what it promises
  std::uint8_t path_mtu = 0;
  std::uint16_t pkey = 0;  // also sidr_req_received
  Path path;
  bool has_alternate = false;
  Path alternate;
  mad::MadRoute route;  // of the message; also sidr_req_received, sidr_rep_received

  // rep_received
  std::uint8_t target_ack_delay = 0;
  Failover failover = Failover::accepted;

  // rej_received
  RejReason reason = RejReason::consumer_defined;
  MessageRef rejected = MessageRef::other;
  // mra_received
  std::uint8_t service_timeout = 0;
  // sidr_rep_received
  SidrStatus sidr_status = SidrStatus::ok;

  // Additional information of rej_received and sidr_rep_received.
  std::uint8_t ari_length = 0;
  std::array<std::uint8_t, kAriSize> ari{};
  // The whole private data area of the message; what the peer did not fill is zeros.
  std::uint8_t private_data_length = 0;
  std::array<std::uint8_t, kMaxPrivateData> private_data{};

  Bytes data() const { return {private_data.data(), private_data_length}; }
};

// ---- QP attributes --------------------------------------------------------------------------------------------------

// The attributes to move a connection's QP to a state, as the kernel's ib_cm_init_qp_attr gives them: `mask` has the
// bits of enum ibv_qp_attr_mask, IBV_QP_STATE among them.
enum class QpTarget : std::uint8_t { init = 1, rtr = 2, rts = 3 };  // numbers of enum ibv_qp_state

struct QpSetup {
  static constexpr std::uint32_t kState = 1u << 0, kAccessFlags = 1u << 3, kPkeyIndex = 1u << 4, kPort = 1u << 5,
                                 kAv = 1u << 7, kPathMtu = 1u << 8, kTimeout = 1u << 9, kRetryCnt = 1u << 10,
                                 kRnrRetry = 1u << 11, kRqPsn = 1u << 12, kMaxRdAtomic = 1u << 13,
                                 kMinRnrTimer = 1u << 15, kSqPsn = 1u << 16, kMaxDestRdAtomic = 1u << 17,
                                 kDestQpn = 1u << 20;
  std::uint32_t mask = 0;
  // init. pkey index and port number are the caller's to fill from `route`.
  bool remote_write = false, remote_read = false, remote_atomic = false;
  // rtr
  Path path;
  mad::MadRoute route;
  std::uint8_t path_mtu = 0;  // code
  std::uint32_t dest_qpn = 0;
  std::uint32_t rq_psn = 0;
  std::uint8_t max_dest_rd_atomic = 0;
  std::uint8_t min_rnr_timer = 0;
  // rts
  std::uint32_t sq_psn = 0;
  std::uint8_t timeout = 0;  // encoded
  std::uint8_t retry_cnt = 0;
  std::uint8_t rnr_retry = 0;
  std::uint8_t max_rd_atomic = 0;
};

// ---- statistics -----------------------------------------------------------------------------------------------------

// The order of the kernel's cm_tx_msgs, cm_tx_retries, cm_rx_msgs and cm_rx_duplicates: that of the attribute IDs.
enum class MessageType : std::uint8_t { req, mra, rej, rep, rtu, dreq, drep, sidr_req, sidr_rep, lap, apr };
inline constexpr std::size_t kMessageTypes = 11;

struct Counters {
  using PerType = std::array<std::uint64_t, kMessageTypes>;
  PerType tx_msgs{}, tx_retries{}, rx_msgs{}, rx_duplicates{};
  std::uint64_t malformed = 0;       // not a CM MAD of a version and method that exist, or an unknown attribute
  std::uint64_t wrong_source = 0;    // named a connection from an address that is not its peer's
  std::uint64_t no_room = 0;         // REQ and SIDR_REQ dropped because the tables were full
  std::uint64_t output_dropped = 0;  // answers not sent because too many waited
};

}  // namespace softrnic::cm
