// The neighbours on the link and the state of what is known about them (RFC 4861 s7.3; used for ARP as well). Knows
// nothing of packets: it says whom to solicit, and is told what was heard.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "protocols/neigh/address.h"

namespace softrnic::neigh {

enum class NeighbourState : std::uint8_t {
  incomplete,  // solicited by multicast or broadcast; frames wait
  reachable,   // heard within the reachable time
  stale,       // used without question until a frame is sent
  delay,       // a frame was sent to a stale entry; upper layers may still confirm
  probe,       // solicited by unicast; frames are still sent
  failed,      // did not answer; frames are dropped
};

struct NeighbourTiming {  // RFC 4861 s10
  Nanos retransmit = 1'000'000'000;
  Nanos base_reachable = 30'000'000'000;
  Nanos delay_first_probe = 5'000'000'000;
  unsigned max_multicast_solicit = 3;
  unsigned max_unicast_solicit = 3;
  Nanos failed_hold = 1'000'000'000;   // how long a neighbour that failed is not tried again
  Nanos unused_age = 600'000'000'000;  // an entry nothing was sent to for so long is forgotten when room is needed
};

struct NeighbourKey {
  Gid ip{};
  std::uint16_t vlan = kNoVlan;
  friend bool operator==(const NeighbourKey&, const NeighbourKey&) = default;
};

class NeighbourCache {
 public:
  static constexpr std::size_t kMaxEntries = 1024;
  static constexpr std::size_t kMaxPending = 64;  // frames that wait for one neighbour

  NeighbourCache(const NeighbourTiming& timing, std::uint64_t seed);

  enum class Result : std::uint8_t { ready, pending, failed };
  // What to do with a frame to `key`: send it to *mac (ready), hand it to hold() (pending), or drop it (failed, or no
  // room for another neighbour). Starts or restarts the resolution.
  Result use(Nanos now, const NeighbourKey& key, Mac* mac);
  // Keeps a frame until `key` is resolved; it comes out of poll_ready(). When kMaxPending wait, the oldest is dropped
  // (RFC 4861 s7.2.2). False when the entry is not incomplete.
  bool hold(const NeighbourKey& key, Bytes frame);

  // An advertisement or ARP reply (RFC 4861 s7.2.5). `solicited`: an answer to us; `replace`: takes precedence over
  // another link-layer address. Unknown neighbours are not entered.
  void on_advertisement(Nanos now, const NeighbourKey& key, const Mac& mac, bool solicited, bool replace);
  // The sender of a request gave its link-layer address (RFC 4861 s7.2.3, RFC 826). `create`: enter it when unknown.
  void on_source(Nanos now, const NeighbourKey& key, const Mac& mac, bool create);

  // Forgets everything about a neighbour, or about all neighbours of a VLAN.
  void forget(const NeighbourKey& key);
  void forget_vlan(std::uint16_t vlan);

  struct Solicit {
    NeighbourKey key;
    bool unicast = false;  // to `mac`
    Mac mac{};
  };
  bool poll_solicit(Solicit* out);

  struct Ready {
    std::vector<std::uint8_t> frame;
    Mac mac{};
  };
  bool poll_ready(Ready* out);

  // A neighbour that became failed.
  bool poll_failed(NeighbourKey* out);

  Nanos next_timeout() const { return next_; }
  void on_timeout(Nanos now);

  struct Info {
    NeighbourKey key;
    NeighbourState state;
    Mac mac;
  };
  std::vector<Info> entries() const;
  std::size_t size() const { return entries_.size(); }
  std::uint64_t dropped_frames() const { return dropped_; }  // replaced while waiting, or given up

 private:
  struct Entry {
    NeighbourState state = NeighbourState::incomplete;
    Mac mac{};
    Nanos deadline = kNever;  // end of reachable or failed; next step of incomplete, delay and probe
    Nanos used = 0;
    unsigned tries = 0;
    std::deque<std::vector<std::uint8_t>> pending;
  };
  struct Hash {
    std::size_t operator()(const NeighbourKey& k) const {
      std::uint64_t h = (load_be64(k.ip.raw) * 31 + load_be64(k.ip.raw + 8)) * 0x9E3779B97F4A7C15u + k.vlan;
      return h ^ h >> 29;
    }
  };
  using Map = std::unordered_map<NeighbourKey, Entry, Hash>;

  Entry* create(Nanos now, const NeighbourKey& key);
  void solicit(Nanos now, const NeighbourKey& key, Entry& e, bool unicast);
  void resolved(Nanos now, Entry& e, const Mac& mac, NeighbourState state);
  void give_up(Nanos now, const NeighbourKey& key, Entry& e);
  void arm(Entry& e, Nanos at);
  Nanos reachable_time();
  static void settle(Nanos now, Entry& e);

  const NeighbourTiming timing_;
  std::uint64_t random_;
  Map entries_;
  Nanos next_ = kNever;
  std::deque<Solicit> solicits_;
  std::deque<Ready> ready_;
  std::deque<NeighbourKey> failed_;
  std::uint64_t dropped_ = 0;
};

}  // namespace softrnic::neigh
