// The inside of the CM agent: its connections, the tables that find them, timers and queues.
//   agent.cpp          identifiers, tables, timers, output and events; destroying
//   agent_calls.cpp    what the consumer asks for
//   agent_receive.cpp  messages of connections
//   agent_req.cpp      REQ and REP: duplicates, stale connections
//   agent_sidr.cpp     service ID resolution
#pragma once

#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "protocols/cm/cm.h"
#include "protocols/cm/messages.h"

namespace softrnic::cm {

// Time for one side to acknowledge, encoded: the peer's delay and twice the life time of a packet.
std::uint8_t ack_timeout_code(std::uint8_t ca_ack_delay, std::uint8_t packet_life_time);

// A connection or a service ID resolution.
struct Connection {
  CommId id = kNoId;
  State state = State::idle;
  bool owned = true;    // until destroy()
  unsigned events = 0;  // that wait to be polled
  CommId listener = kNoId;
  std::uint64_t service_id = 0;
  mad::MadRoute route;
  std::uint64_t tid = 0;      // of the exchange: REQ's, SIDR_REQ's, DREQ's
  std::uint64_t req_tid = 0;  // passive: of the REQ or SIDR_REQ that made it
  CommId remote_id = kNoId;
  std::uint64_t remote_ca_guid = 0;

  Transport transport = Transport::rc;
  bool passive = false;
  std::uint32_t local_qpn = 0, remote_qpn = 0;
  std::uint32_t sq_psn = 0, rq_psn = 0;
  std::uint8_t responder_resources = 0, initiator_depth = 0;
  std::uint8_t retry_count = 0, rnr_retry_count = 0, path_mtu = 0;
  std::uint8_t ack_timeout = 0;  // encoded
  Path path;

  // The message that is sent again until it is answered.
  std::unique_ptr<Mad> request;
  MessageType request_type = MessageType::req;
  unsigned retries_left = 0;
  std::uint8_t max_retries = 0;
  Nanos interval = 0;         // between transmissions
  Nanos peer_interval = 0;    // passive: between those of the peer's REQ
  bool mra_honoured = false;  // since the last transmission
  bool silent = false;        // dreq_sent of what was rejected: its end is no event
  // The answer that a duplicate of what it answers gets again.
  std::unique_ptr<Mad> answer;
  MessageType answer_type = MessageType::mra;

  // When something is due: a retransmission, the end of time-wait, or of what is remembered in idle.
  Nanos deadline = kNever;
  Nanos resting_key = kNever;                                                 // its place in Impl::resting
  bool knows_remote_id = false, knows_remote_qp = false, knows_sidr = false;  // it is in the table

  // Only waits: for duplicates, and for old packets to die.
  bool resting() const { return deadline != kNever && (state == State::timewait || state == State::idle); }
};

struct Agent::Impl {
  struct Listener {
    std::uint64_t service_id = 0;
    std::uint64_t mask = 0;
  };
  using RemoteKey = std::pair<std::uint64_t, std::uint32_t>;  // CA GUID; communication ID or QP number

  explicit Impl(const AgentOptions& o);

  // ---- agent.cpp
  CommId new_id();
  std::uint64_t new_tid(CommId id) { return static_cast<std::uint64_t>(++tid_counter) << 32 | id; }
  Connection* create();  // null: no room
  Connection* find(CommId id);
  const Connection* find(CommId id) const;
  Connection* find_owned(CommId id);
  void set_deadline(Connection& c, Nanos when);
  void rest(Connection& c);  // keeps the order of eviction after `owned`, `state` or `deadline` changed
  void remember_remote_qp(Connection& c);
  void forget_remote_qp(Connection& c);
  void forget_remote(Connection& c);
  void erase(Connection& c);
  // Ends the retransmissions; the connection waits for nothing then.
  void stop_request(Connection& c);
  // State idle; `remember` is for how long duplicates are still known (0: not at all).
  void to_idle(Nanos now, Connection& c, Nanos remember = 0);
  void to_timewait(Nanos now, Connection& c);
  void drop_events(Connection& c);
  void release(Connection& c);  // the last step of destroy(), when there is nothing left to say
  Nanos capped(unsigned code) const;
  CommId find_listener(std::uint64_t service_id) const;

  void transmit(const mad::MadRoute& route, const Mad& m, MessageType type, bool again = false);
  // As transmit(), but not when too many wait: for what a stranger caused.
  void answer(const mad::MadRoute& route, const Mad& m, MessageType type, bool again = false);
  void send_request(Nanos now, Connection& c, MessageType type, const Mad& m);
  // Sends `m` and keeps it for duplicates.
  void send_answer(Connection& c, MessageType type, const Mad& m);
  void keep_answer(Connection& c, MessageType type, const Mad& m);
  void repeat_answer(const Connection& c);
  Event& event(Connection& c, EventKind kind);  // filled by the caller; of nobody: a scratch one
  void on_deadline(Nanos now, Connection& c);
  void on_retries_exhausted(Nanos now, Connection& c);

  // ---- agent_calls.cpp
  void start_reject(Nanos now, Connection& c, RejReason reason, Bytes info, Bytes private_data);
  void start_disconnect(Nanos now, Connection& c, Bytes private_data);
  // Tells the peer of a REP that it does not count: a REJ, and DREQs until they are answered.
  void take_back_rep(Nanos now, Connection& c, RejReason reason, Bytes info, Bytes private_data);
  void send_drep(Nanos now, Connection& c, Bytes private_data);
  Bytes guid_bytes() const { return {guid_, sizeof guid_}; }

  // ---- agent_receive.cpp
  struct In {
    Nanos now;
    const mad::MadRoute& route;
    mad::MadHeader header;
    const std::uint8_t* data;  // kMadDataSize bytes
  };
  // The private data of a message of type M into its event.
  template <class M>
  static void fill_data(const In& in, Event& e) {
    static_assert(M::kPrivateDataSize <= kMaxPrivateData);
    std::memcpy(e.private_data.data(), in.data + M::kPrivateData, M::kPrivateDataSize);
    e.private_data_length = M::kPrivateDataSize;
  }
  void receive(const In& in, MessageType type);
  void duplicate(MessageType type) { ++counters.rx_duplicates[static_cast<std::size_t>(type)]; }
  // The connection with both IDs (`remote_id` is kNoId where the peer's is not known yet), of the MAD's sender; else
  // null.
  Connection* match(const In& in, CommId local_id, CommId remote_id);
  bool from_peer(const In& in, const Connection& c);
  void on_mra(const In& in);
  void on_rej(const In& in);
  void on_rtu(const In& in);
  void on_dreq(const In& in);
  void on_drep(const In& in);
  void on_lap(const In& in);
  void send_rej(const In& in, CommId local_id, CommId remote_id, MessageRef message, RejReason reason);

  // ---- agent_req.cpp
  void on_req(const In& in);
  void on_duplicate_req(const In& in, Connection& c);
  bool stale(const In& in, RemoteKey qp);
  void fill_req_event(const In& in, const ReqMessage& m, const Connection& c, Event& e) const;
  void on_rep(const In& in);
  void on_unexpected_rep(const In& in, const RepMessage& m);

  // ---- agent_sidr.cpp
  void on_sidr_req(const In& in);
  void on_sidr_rep(const In& in);
  void start_sidr_reply(Nanos now, Connection& c, const SidrRepParams& params);

  const AgentOptions options;
  std::uint8_t guid_[8];  // in wire order
  std::uint32_t id_counter = 0, id_scramble = 0;
  std::uint32_t tid_counter = 0;
  std::uint64_t assigned_service = kAssignServiceId;
  std::unordered_map<CommId, std::unique_ptr<Connection>> connections;
  std::unordered_map<CommId, Listener> listeners;
  std::map<std::uint64_t, CommId> exact_listeners;  // by service ID, those with a full mask
  std::map<CommId, Listener> masked_listeners;      // the others
  std::map<RemoteKey, CommId> remote_ids, remote_qps;
  std::map<std::pair<Gid, CommId>, CommId> remote_sidrs;
  std::set<std::pair<Nanos, CommId>> timers;
  std::set<std::pair<Nanos, CommId>> resting;  // unowned ones, for eviction
  std::deque<mad::OutMad> output;
  std::deque<std::pair<CommId, Event>> events;
  Event scratch;
  Counters counters;
};

}  // namespace softrnic::cm
