// The channels of a VF and the paths over them.
#pragma once

#include <cstdint>

#include "engine/control/wire.h"
#include "engine/datapath/fabric.h"
#include "engine/datapath/mapping.h"
#include "engine/datapath/ring.h"
#include "engine/datapath/wakeup.h"

namespace softrnic::dp {

// The memory and descriptors between this VF and another party: two rings, and how to wake that party.
struct Channel {
  Channel() = default;
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Maps a channel. `fds`: channel memfd, peer inbox memfd, peer eventfd; all are consumed, also on failure. 0 or
  // errno.
  int open(VfId peer, std::uint32_t ring_size, int ring_index, std::uint16_t my_slot, std::uint16_t peer_slot,
           int fds[3]);
  // A ring in private memory from this VF to itself.
  int open_loopback(VfId self, std::uint32_t ring_size, Inbox* inbox, int eventfd);

  // Makes the other side look at this channel. Rare: inlined, it would make every flush save more registers.
  [[gnu::noinline]] void ring_peer() { ring_bell(*peer_inbox, peer_slot, peer_eventfd); }

  VfId peer = kNoVf;  // kNoVf: the eSwitch
  std::uint16_t my_slot = 0, peer_slot = 0;
  RingProducer tx;
  RingConsumer rx;
  Inbox* peer_inbox = nullptr;
  int peer_eventfd = -1;
  bool owns_eventfd = false;
  Mapping memory, inbox_memory;

  bool hot = false;            // in the set that every poll looks at
  bool polling_state = false;  // its ring header says that somebody polls
  bool dirty = false;          // frames were published since the last flush
  bool closing = false;        // the peer is gone: what it sent before is still taken
  std::uint32_t idle_polls = 0;
  std::uint64_t untaken_at = 0;  // what the peer had taken when we last looked, and
  Nanos untaken_since = 0;       // since when; 0: nothing waits
};

// Where packets for one peer go. See fabric.h.
class Path {
 public:
  enum class Barrier : std::uint8_t { none, mark_unsent, mark_sent };

  // Ring that packets go into now.
  Channel& route(Channel& to_switch) { return active == control::RouteMode::direct ? *direct : to_switch; }

  VfId peer = kNoVf;
  bool sink = false;     // the peer is dead: frames are swallowed
  bool adopted = false;  // known to the holder of the progress lock
  Barrier barrier = Barrier::none;
  control::RouteMode active = control::RouteMode::via_switch;
  std::uint16_t mark = 0;        // number of the last mark sent
  std::uint32_t generation = 0;  // changes of route done
  Channel* direct = nullptr;     // null: the path of the eSwitch itself, or a sink
};

}  // namespace softrnic::dp
