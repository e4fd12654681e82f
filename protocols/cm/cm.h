// The communication manager of a port: sets up and tears down connections between queue pairs (REQ, MRA, REP, RTU, REJ,
// DREQ, DREP), and resolves service IDs to datagram queue pairs (SIDR). Sans-IO:
//
//   on_mad(now, route, mad)     a MAD arrived on QP 1
//   poll_transmit(now, out)     the next MAD to send
//   next_timeout()              when on_timeout wants to be called; it may then have nothing to do
//   on_timeout(now)             retransmissions, the end of time-wait
//   poll_event(out)             what the consumer of the agent must know, in order
//
// Both ends of a connection may be in one agent: the caller then hands what poll_transmit gave to on_mad, with the
// route reversed. Nothing is called back; no call looks at a clock. Not thread-safe.
//
// The active side calls connect() and, at rep_received, ready(). The passive side calls listen() and, at req_received,
// accept(). Either calls disconnect(), the other confirm_disconnect(). Every ID that a call or an event gave is the
// consumer's until destroy(). A request has exactly one outcome: connect() ends in rep_received, rej_received or
// req_error; accept() in rtu_received, user_established, rej_received, rep_error or dreq_received; disconnect() in
// drep_received or dreq_error. After what may have carried packets comes timewait, with timewait_exit at its end.
#pragma once

#include <memory>

#include "protocols/cm/types.h"

namespace softrnic::cm {

struct AgentOptions {
  std::uint64_t ca_guid = 0;      // node GUID of this channel adapter
  std::uint8_t ca_ack_delay = 0;  // encoded; the target ACK delay of a REP
  std::uint64_t seed = 1;         // of the communication IDs
  // Connections and service resolutions at a time, those in time-wait among them. When all are taken, the oldest that
  // only wait and belong to nobody give way; else requests of peers are dropped (they will be sent again).
  std::size_t max_ids = 65536;
  std::size_t max_listeners = 65536;
  std::size_t max_output = 4096;  // answers that wait to be taken by poll_transmit
  // The longest time a peer's message can make this agent wait at a time, encoded: 2.3 minutes.
  std::uint8_t max_time_code = 25;
  // For how long the answer to a service ID resolution is kept for duplicates of the request.
  Nanos sidr_linger = 10'000'000'000;
};

class Agent {
 public:
  explicit Agent(const AgentOptions& options);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // ---- listening --------------------------------------------------------------------------------------------------
  // As a service ID to listen() to: the agent picks one that nobody has.
  static constexpr std::uint64_t kAssignServiceId = 0x0200'0000'0000'0000;
  // Takes requests whose service ID, under `mask`, is `service_id`. `*id` is the listener: destroy() ends it.
  Result listen(std::uint64_t service_id, std::uint64_t mask, CommId* id);
  // Service ID of a listener, a connection or a resolution; 0 when there is no such ID.
  std::uint64_t service_id(CommId id) const;

  // ---- connections ------------------------------------------------------------------------------------------------
  // Sends a REQ. `*id` is the new connection.
  Result connect(Nanos now, const ReqParams& params, CommId* id);
  // Answers req_received with a REP.
  Result accept(Nanos now, CommId id, const RepParams& params);
  // Answers rep_received with an RTU: the connection is established, and its QP should have been in RTS before.
  Result ready(Nanos now, CommId id, Bytes private_data = {});
  // The QP of accept() received a packet: as good as an RTU that was lost (communication established). Gives
  // user_established.
  Result establish(Nanos now, CommId id);
  // Refuses a REQ or a REP, or takes back a REQ or a REP that was sent. `info` is at most kAriSize, `private_data`
  // kRejPrivateData bytes.
  Result reject(Nanos now, CommId id, RejReason reason, Bytes info = {}, Bytes private_data = {});
  // Tells the peer that the answer to its REQ or REP will take up to `service_timeout` (encoded), or, with
  // `only_if_repeated`, tells it so when it sends the message again.
  Result mra(Nanos now, CommId id, std::uint8_t service_timeout, Bytes private_data = {},
             bool only_if_repeated = false);
  // Ends an established connection with a DREQ; also answers the peer's, as confirm_disconnect().
  Result disconnect(Nanos now, CommId id, Bytes private_data = {});
  // Answers dreq_received with a DREP.
  Result confirm_disconnect(Nanos now, CommId id, Bytes private_data = {});
  // Forgets a req_received that was not answered, without a word: the peer's next transmission of its REQ is new.
  Result drop(CommId id);

  // The attributes for the QP of a connection. bad_state where the connection does not know them yet, or no more.
  Result qp_setup(CommId id, QpTarget target, QpSetup* out) const;

  // ---- service ID resolution ----------------------------------------------------------------------------------------
  Result sidr_request(Nanos now, const SidrReqParams& params, CommId* id);
  // Answers sidr_req_received.
  Result sidr_reply(Nanos now, CommId id, const SidrRepParams& params);

  // ---- every ID -----------------------------------------------------------------------------------------------------
  // Gives the ID back, in every state: no event of it comes after this. What its peer must hear it is still told: a
  // request is taken back (REJ), an unanswered one refused, an established connection ended with a DREQ that is
  // repeated until it is answered; a listener's requests that were not polled yet are refused. Unknown IDs are ignored.
  void destroy(Nanos now, CommId id);
  // idle for unknown IDs. An ID that was given back still shows how far its connection is: at idle, its QP number may
  // be used for another one.
  State state(CommId id) const;
  // The peer's communication ID and QP number, 0 as long as they are not known.
  CommId remote_id(CommId id) const;
  std::uint32_t remote_qpn(CommId id) const;

  // IDs that exist, those in time-wait without an owner among them; listeners are not counted.
  std::size_t size() const;
  const Counters& counters() const;

  // ---- the five calls ---------------------------------------------------------------------------------------------
  // False when the MAD is not of the CM's class.
  bool on_mad(Nanos now, const mad::MadRoute& route, Bytes mad);
  bool poll_transmit(Nanos now, mad::OutMad* out);
  Nanos next_timeout() const;
  void on_timeout(Nanos now);
  bool poll_event(Event* out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace softrnic::cm
