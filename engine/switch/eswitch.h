// The embedded switch: takes frames from the VFs' rings and puts them into others, as the queue pair number in a
// frame's BTH says. Marks of route barriers pass in order with the frames. Single-threaded inside run(); the control
// functions may be called from any thread and take effect in the order of the calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/datapath/shm_layout.h"
#include "engine/switch/classifier.h"
#include "engine/switch/disturber.h"
#include "engine/switch/shared_memory.h"
#include "engine/switch/unique_fd.h"
#include "engine/switch/uplink.h"
#include "protocols/common/types.h"

namespace softrnic::sw {

// Sees every frame that passes the switch, on the switch's thread: as it came, or, when it was disturbed, as it goes
// on, with a comment. `source_vf` is kNoVf for those from a network. on_frame() may block: the rings fill up behind it,
// and the senders wait.
class FrameTap {
 public:
  virtual ~FrameTap() = default;
  virtual void on_frame(std::uint16_t source_vf, Bytes frame, std::string_view comment) = 0;
};

// Counters of a VF or an uplink at the switch. rx: towards it, tx: from it.
struct PortCounters {
  std::uint64_t tx_frames = 0, tx_bytes = 0, rx_frames = 0, rx_bytes = 0;
  std::uint64_t rx_out_of_buffer = 0;        // its queue was full: dropped
  std::uint64_t tx_malformed = 0;            // no valid RoCE frame, or a mark for nobody
  std::uint64_t tx_bad_source = 0;           // source address or source QPN is not the sender's, or is ours
  std::uint64_t tx_unknown_destination = 0;  // nobody owns the queue pair number, or is in the multicast group
  std::uint64_t tx_management = 0;           // to queue pair 1, the NIC process's own
};

struct ESwitchOptions {
  // Bytes that wait for a VF whose ring is full. Beyond that its senders wait too, as long as it takes frames.
  std::size_t queue_limit = 4u << 20;
  // A VF that took nothing for so long while its queue was full is stalled: what more comes for it is dropped and
  // counted until it takes frames again, so that it holds up nobody.
  Nanos stall_timeout = 20'000'000;
  // What frames pass between ingress and forwarding while it is active; may be null. wake() after it has got work to do
  // earlier than it said.
  std::shared_ptr<Disturber> disturber;
  // A frame for queue pair 1. Called on the switch's thread; must not wait.
  std::function<void(Bytes frame)> on_gsi;
  // A ring was corrupt: the VF is cut off. Called on the switch's thread.
  std::function<void(std::uint16_t vf_id)> on_broken;
};

class ESwitch {
 public:
  // What the switch needs of a VF. Its id is its slot in the switch's inbox.
  struct Port {
    std::uint16_t vf_id = 0;
    std::uint32_t ring_size = 0;
    std::shared_ptr<SharedMemory> channel;  // ring 0: from the VF; ring 1: to the VF
    std::shared_ptr<SharedMemory> inbox;    // the VF's; the switch is slot 0 there
    std::shared_ptr<SharedMemory> status;   // the VF's status page
    UniqueFd eventfd;                       // wakes the VF
  };

  // `blocks` (which VF owns a queue pair number) must outlive the switch. Null with errno set on failure.
  static std::unique_ptr<ESwitch> create(const ESwitchOptions& options, const dp::BlockTable& blocks);
  ~ESwitch();

  const SharedMemory& inbox() const;  // of the switch itself, for the VFs
  int eventfd() const;

  void attach(Port port);
  // The VF's process has ended. What it had sent is still forwarded; what is on its way to it is dropped. `done` is
  // called on the switch's thread when the switch has nothing more to do with the VF.
  void detach(std::uint16_t vf_id, std::function<void()> done);
  // The networks that this NIC is on. Only before run().
  void set_uplinks(std::vector<std::shared_ptr<Uplink>> uplinks);
  // The addresses that frames may come from. Without any, no source address is accepted.
  void set_addresses(std::vector<OwnGid> own);
  // Membership of a VF in a multicast group.
  void set_group_member(const Gid& mgid, std::uint16_t vf_id, bool member);
  // Shows every frame to these from now on. `done` is called on the switch's thread when that is in force and those
  // before are no longer used.
  void set_taps(std::vector<std::shared_ptr<FrameTap>> taps, std::function<void()> done);

  // A VF's counters; zeros when it is not there.
  PortCounters counters(std::uint16_t vf_id) const;
  // Those of an uplink, by its place in set_uplinks().
  PortCounters uplink_counters(std::size_t uplink) const;
  // Looks at the disturber again.
  void wake();
  // Sends a frame of the NIC itself, from its queue pair 1.
  void send_own(std::vector<std::uint8_t> frame);
  // Runs `command` on the switch's thread, between two turns: for calls to the uplinks.
  void submit(std::function<void()> command);

  // Forwards until stop(), on the calling thread.
  void run();
  void stop();

 private:
  ESwitch();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace softrnic::sw
