// Inside of Fabric. Its parts: fabric.cpp (attach, control path), sending.cpp, receiving.cpp, routes.cpp (barriers and
// notices), sleeping.cpp.
#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/datapath/control_link.h"
#include "engine/datapath/fabric.h"
#include "engine/datapath/paths.h"
#include "engine/nic/spinlock.h"

namespace softrnic::dp {

struct Fabric::Impl {
  ~Impl();

  // ---- attach, control path (fabric.cpp) -----------------------------------------------------------------------
  int attach(const std::string& socket_path, std::string* why);
  int map_shared(control::Message& m);
  // Makes the path of a peer from a reply or notice, unless it is known already; consumes the descriptors. Any thread.
  void add_peer(control::Message& m);
  Path* publish_path(std::unique_ptr<Path> path, std::unique_ptr<Channel> channel);
  Path* self_path();
  Path* known_path(VfId vf);

  // ---- routes and notices (routes.cpp) -------------------------------------------------------------------------
  void adopt_new_paths();
  bool apply_notices();
  void apply_notice(control::Message& m);
  void set_route(control::RouteMode mode, std::uint32_t epoch);
  void start_barrier(Path& p);
  void send_mark(Path& p);
  void advance_barriers();
  bool barrier_passed(Path& p);
  void report_route_done();
  void mark_received(Channel& from, const RingConsumer::Entry& e);
  void ack_mark(Channel& direct, std::uint16_t number);
  void peer_gone(VfId vf);
  void make_sink(Path& p);
  void break_channel(Channel& ch);
  void close_drained_channels();
  void on_nic_death();

  // ---- receiving (receiving.cpp) -------------------------------------------------------------------------------
  void housekeeping();
  int poll_channel(Channel& ch, int budget, OnFrame on_frame, void* ctx, bool* stop);
  void heat(Channel& ch);
  void cool(Channel& ch);
  void drop_from_hot(Channel& ch);
  void take_own_inbox();
  void slow_scan();

  // ---- sending (sending.cpp) -----------------------------------------------------------------------------------
  // The channel seems to be full: room for a frame after all? Rare: inlined, it would cost every has_room().
  [[gnu::noinline]] bool make_room(Path& p, Channel& ch, std::uint32_t length);
  void flush();

  // ---- sleeping (sleeping.cpp) ---------------------------------------------------------------------------------
  void set_state(Channel& ch, bool polling);
  void count_as_poller(bool polling);
  bool anything_pending() const;

  control::HelloInfo info;
  ControlLink link;
  VfId vf_id = kNoVf;
  std::uint16_t switch_slot = 0;
  Mapping inbox_memory, status_memory, blocks_memory;
  Inbox* inbox = nullptr;
  StatusPage* status = nullptr;
  const BlockTable* blocks = nullptr;
  int eventfd = -1;
  bool abandoned = false;   // in a child of fork()
  bool registered = false;  // producer_fence() may be left out
  unsigned cpus = 1;        // that this process may use

  // Found by VF id from any thread; the paths themselves belong to the progress lock once adopted.
  SpinLock tables;
  std::unordered_map<VfId, Path*> path_by_vf;
  std::vector<std::unique_ptr<Path>> paths;  // for life
  std::vector<std::pair<Path*, std::unique_ptr<Channel>>> newcomers;
  std::atomic<bool> has_newcomers{false};
  std::atomic<std::int64_t> spare_block{-1};  // that attach gave and nobody has asked for yet

  // Under the progress lock.
  Channel to_switch;
  Path switch_path;
  std::vector<std::unique_ptr<Channel>> channels;  // all others
  Channel* by_slot[kInboxSlots] = {};
  Channel* loopback = nullptr;  // shares slot 0 with the eSwitch
  std::vector<Channel*> hot;
  std::size_t turn = 0;  // channel that the next poll begins with
  std::vector<Channel*> dirty;
  std::vector<Path*> live_paths;                        // adopted, no sinks
  std::vector<Path*> barriers;                          // open ones
  std::unordered_map<VfId, std::uint16_t> early_marks;  // came through the eSwitch before their channel
  std::vector<control::GidRecord> new_gids;
  bool has_new_gids = false;
  control::RouteMode route = control::RouteMode::direct;
  std::uint32_t route_epoch = 0;
  bool owes_route_done = false;
  bool switch_used = false;  // frames went through the eSwitch
  bool nic_death_handled = false;
  std::uint32_t closing = 0;
  ConsumerState state = ConsumerState::armed;
  bool counted_as_poller = false;
  std::uint32_t polls = 0;
  Nanos last_scan = 0;
  alignas(64) std::uint8_t scratch[kFrameOffset + kMaxFrame];  // what goes into a sink

  // Of the thread that waits.
  Nanos backstop = 0;
  std::atomic<bool> scan_due{false};
  std::atomic<bool> active_since_wait{false};
};

}  // namespace softrnic::dp
