// Hosts with a CM agent each, programs that connect queue pairs in every way they may, and a network between them that
// loses, repeats, delays and reorders messages; in virtual time, from one seed.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "protocols/cm/cm.h"
#include "tests/sim/sim_core.h"

namespace softrnic::sim {

struct CmFaults {
  std::uint32_t drop = 0, duplicate = 0;  // permille
  Nanos delay = 0, jitter = 0;
  Nanos blackout_from = kNever, blackout_to = 0;  // nothing passes between the first two hosts
};

// What happened, so that a test can see that it tried something.
struct CmTally {
  std::uint64_t connects = 0, established = 0, refused = 0, timed_out = 0, disconnected = 0, resolved = 0;
  std::uint64_t agreed = 0;  // established pairs that both sides know of alike
};

class CmWorld {
 public:
  explicit CmWorld(std::uint64_t seed);
  // Everything from the first connect to the last ID given back. Throws SimFailure when a property is violated.
  void run();
  Nanos now() const { return now_; }
  const CmTally& tally() const { return tally_; }

 private:
  // What a program knows of an ID; each event is legal in some of these only.
  enum class Phase {
    asking,     // connect(), no answer yet
    asked,      // req_received, not answered
    accepting,  // accept(), not established
    answered,   // rep_received, not answered
    established,
    closing,        // disconnect(), no answer yet
    peer_closing,   // dreq_received, not answered
    over,           // its outcome is known; only timewait_exit may come
    resolving,      // sidr_request()
    resolve_asked,  // sidr_req_received
  };
  struct Id {
    Phase phase = Phase::asking;
    std::uint32_t qpn = 0;
    bool mra_seen = false;
    bool timewait_over = false;
  };
  struct Host {
    Gid gid{};
    std::unique_ptr<cm::Agent> agent;
    std::deque<std::uint32_t> free_qpns;
    std::map<cm::CommId, Id> ids;
    std::vector<std::pair<cm::CommId, std::uint32_t>> retired;  // given back; the QP number when it is over
    Nanos wake = kNever;
  };
  struct Item {
    Nanos time;
    std::uint64_t order;
    std::function<void()> what;
    bool operator<(const Item& o) const { return time != o.time ? time > o.time : order > o.order; }
  };

  void at(Nanos when, std::function<void()> what);
  void later(Nanos most, std::function<void()> what) { at(now_ + rng_.below(static_cast<std::uint32_t>(most)), what); }
  void run_until(Nanos end);
  void flush(std::size_t h);  // after every call of a host's agent
  void send(std::size_t from, const mad::OutMad& m);
  // An action of a program on an ID it has still got; `what` gets the ID.
  void act(Nanos most, std::size_t h, cm::CommId id, std::function<void(Id&)> what);

  void connect(std::size_t h);
  void resolve(std::size_t h);
  void on_event(std::size_t h, const cm::Event& e);
  void on_request(std::size_t h, cm::CommId id);
  void accept(std::size_t h, cm::CommId id, Id& i);
  void on_reply(std::size_t h, cm::CommId id);
  void live(std::size_t h, cm::CommId id);  // established: use it for a while, then end it
  void end(std::size_t h, cm::CommId id, Id& i);
  void give_back(std::size_t h, cm::CommId id);
  void die(std::size_t h);
  void reclaim();
  void check_agreement();
  std::uint32_t take_qpn(Host& h);
  mad::MadRoute route(const Host& from, const Host& to) const;

  Rng rng_;
  CmFaults faults_;
  Nanos now_ = 1'000'000;
  std::uint64_t order_ = 0;
  std::priority_queue<Item> items_;
  std::vector<Host> hosts_;
  bool hold_ = false;  // established connections stay
  CmTally tally_;
};

}  // namespace softrnic::sim
