// How a VF moves frames: its channel to the eSwitch, its direct channels to other VFs, the routes over
// them and the barriers when a route changes; attach, QPN blocks and notices over the control socket.
//
// All functions are called under the VF's progress lock unless they say otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/control/client/client.h"
#include "engine/datapath/shm_layout.h"
#include "protocols/common/types.h"

namespace softrnic::dp {

using VfId = std::uint16_t;

// Where packets for a peer go: one per peer VF, one for the eSwitch, one for this VF itself (loopback:
// a ring in private memory). Stable address for the life of the fabric.
class Path;

// What became of something handed to a path, for the rule "the wire begins at the consumer".
struct PathPosition {
  std::uint64_t bytes = 0;
  std::uint32_t route_generation = 0;  // a change of route makes older positions count as taken
};

class Fabric {
 public:
  // Attaches to the NIC process. 0 or errno; `*why` gets a sentence for the user. Device records and
  // GIDs of the hello exchange are available afterwards.
  static int attach(const std::string& socket_path, std::unique_ptr<Fabric>* out, std::string* why);
  ~Fabric();

  VfId vf_id() const;
  const control::HelloInfo& info() const;
  StatusPage& status();
  const BlockTable& blocks() const;

  // --- control path (any thread, may block for a round trip; takes no progress lock) ---------------------
  // A fresh QPN block, or -1 when none is left.
  std::int64_t get_block();
  void return_block(std::uint32_t block);
  // The path towards the VF that owns `qpn`; the eSwitch's path when nobody does. Never null. Opens a direct
  // channel on first use. A path stays what it is: it does not follow a QPN that changes its owner.
  Path* path_for_qpn(std::uint32_t qpn);
  int mcast(const Gid& mgid, bool attach);
  // Any other request of the control protocol. Returns its status, or EPIPE when the NIC process is gone.
  int request(control::MsgType type, const void* body, std::uint32_t length, control::Message* reply);
  // In a child of fork(), before anything else: closes and unmaps what belongs to the parent's VF. All paths are sinks
  // afterwards, and the status page and block table are private and empty.
  void abandon_after_fork();

  // --- sending ----------------------------------------------------------------------------------------
  Path* switch_path();
  // VF on the other side; kNoVf for the eSwitch.
  static VfId peer(const Path& p);
  // Room for a frame of `length` bytes now? False also while a route barrier is open. Remembers that this
  // side waits (the consumer will kick us).
  bool has_room(Path& p, std::uint32_t length);
  // Space for a frame of up to `length` bytes (has_room() said yes), then commit it or forget it. Frames are published
  // at commit; a peer that sleeps is kicked by flush(), which whoever sends calls at the end.
  std::uint8_t* begin(Path& p, std::uint32_t length);
  void commit(Path& p, std::uint32_t length);
  void flush();
  // Position after the last committed frame, and whether the consumer has taken all up to a position.
  PathPosition position(const Path& p) const;
  bool taken(const Path& p, PathPosition pos) const;

  // --- receiving ----------------------------------------------------------------------------------------
  // Calls on_frame(ctx, ingress VF, frame) for at most `budget` frames, fairly over all channels with traffic; stops
  // early when on_frame returns false (that frame is still consumed). Marks and control notices are handled inside.
  // Returns the number of frames. The frame bytes may be changed by a malicious peer while they are read: copy headers
  // once.
  using OnFrame = bool (*)(void* ctx, VfId ingress, Bytes frame);
  int poll(int budget, OnFrame on_frame, void* ctx);
  // Does poll() have something to do, but for what is done only now and then?
  bool anything_pending() const;

  // --- sleeping and waking ---------------------------------------------------------------------------------
  void set_polling(ConsumerState state);  // app_polling or helper_polling for the channels in use
  // Arms every channel; true when nothing is pending, so that wait() may be called. False: poll again.
  bool arm();
  // Sleeps (without the progress lock) until a kick, a notice on the control socket, wake(), or `timeout` ns. Fetches
  // notices; the next poll() or poll_control() acts on them.
  void wait(Nanos timeout);
  void wake();  // any thread
  // Somebody waits here for long: peers that count as polling but have left our frames alone since the last call, at
  // least kPatience ns ago, are asked to have their helper look. Lock held.
  void nudge_slow_peers(Nanos now);
  // A peer has asked that of us.
  bool take_nudge();
  // Takes in notices of the control socket (peers, routes, death of the NIC process). True when something was handled.
  bool poll_control();
  // The GID table (of all devices) has changed: true once per change, with the new one. info() keeps the old one.
  bool take_gids(std::vector<control::GidRecord>* out);
  bool nic_process_dead() const;
  // More parties poll than there are CPUs: an empty poll should yield.
  bool crowded() const;

 private:
  Fabric();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace softrnic::dp
