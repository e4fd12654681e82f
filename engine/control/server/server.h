// Inside of NicHost: the state of the control server. Everything here runs on the thread of NicHost::run().
#pragma once

#include <spdlog/logger.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/cm/service.h"
#include "engine/control/server/address_watch.h"
#include "engine/control/server/nic_host.h"
#include "engine/control/server/route_barrier.h"
#include "engine/control/server/runtime_dir.h"
#include "engine/control/server/session.h"
#include "engine/control/server/sysfs_tree.h"
#include "engine/nic/clock.h"
#include "engine/observe/capture.h"
#include "engine/observe/event_log.h"
#include "engine/observe/fault_injector.h"

namespace softrnic::control {

struct NicHost::Impl {
  Impl();

  // --- life (nic_host.cpp) ---
  int open(NicHostOptions o, std::string* why);
  void accept_next();
  void accept_all();
  void on_closed(Session& s, const std::string& reason);
  bool is_used() const;
  void review_users();
  void on_address_change();
  void change_gids(const std::vector<GidRecord>& fresh);
  void tell_eswitch_addresses();
  void end_unless_used(std::chrono::milliseconds wait, const char* reason);

  // --- requests (requests.cpp) ---
  void on_request(Session& s, Request& r);
  bool handle(Session& s, Request& r);  // false: malformed
  bool on_hello(Session& s, const Request& r);
  bool on_attach(Session& s, const Request& r);
  bool on_get_block(Session& s, const Request& r);
  bool on_return_block(Session& s, const Request& r);
  bool on_connect_peer(Session& s, const Request& r);
  bool on_mcast(Session& s, const Request& r);
  bool on_address(Session& s, const Request& r);
  int change_membership(Vf& vf, const Gid& mgid, bool join);
  bool on_route_done(Session& s, const Request& r);
  bool on_end_of_requests(Session& s);
  void detach_vf(std::uint16_t id);
  void finish_detach(std::uint16_t id);
  void send_channel(Session& to, MsgType type, std::uint32_t seq, const Vf& self, const Vf& peer,
                    const PeerChannel& channel);
  Session* session_of(std::uint16_t vf_id);

  // --- captures (captures.cpp) ---
  bool on_capture(Session& s, Request& r);
  void start_capture(std::uint64_t session, std::uint32_t seq, std::shared_ptr<observe::Capture> capture);
  void stop_capture(std::uint64_t session);
  void on_capture_end(std::uint64_t session, const observe::CaptureResult& result);
  void name_interface(const Vf& vf);
  void apply_captures(std::function<void()> done);
  std::size_t running_captures() const;
  void review_route();

  // --- faults (faults.cpp) ---
  bool on_fault_add(Session& s, const Request& r);
  bool on_fault_del(Session& s, const Request& r);
  bool remove_fault(std::uint32_t id);
  void after_fault_removal();
  void remove_faults_of(std::uint64_t session);
  void collect_fault_events();

  // --- events (events.cpp) ---
  // Something happened; `logged`: it is for the log, too.
  void tell(std::string_view kind, std::initializer_list<observe::EventField> fields, const std::string& text,
            bool logged = true);
  bool on_events(Session& s, const Request& r);
  void send_events(Session& s, std::uint32_t seq, std::uint64_t after);
  void answer_waiting();
  void collect_drops();
  void watch_drops();

  // --- connection management (cm.cpp) ---
  struct CmHost;  // cm.cpp
  void start_cm();
  bool on_cm_open(Session& s, const Request& r);
  bool on_cm_close(Session& s, const Request& r);
  bool on_cm_command(Session& s, const Request& r);
  void arm_cm_timer();

  // --- sysfs (sysfs.cpp) ---
  using DeviceSums = std::vector<std::array<std::uint64_t, 16>>;  // by device, in the order of ib::QpCounters
  void write_sysfs();
  void add_counters(const Vf& vf, DeviceSums* sums);
  void refresh_counters();
  void watch_counters();

  // --- status (status_report.cpp) ---
  void send_status(Session& s, std::uint32_t seq);
  std::string status_report(const std::string& neighbours);
  std::string faults_report();
  void send_report(Session& s, MsgType type, std::uint32_t seq, const std::string& text);

  NicHostOptions options;
  std::shared_ptr<spdlog::logger> log;
  boost::asio::io_context io;
  RuntimeDir dir;
  boost::asio::posix::stream_descriptor listener;
  boost::asio::steady_timer end_timer;
  AddressWatch addresses;
  std::unique_ptr<VfTable> vfs;
  std::shared_ptr<observe::FaultInjector> faults = std::make_shared<observe::FaultInjector>();
  std::unique_ptr<sw::ESwitch> eswitch;
  std::unique_ptr<Network> network;  // null: on this host only
  RouteBarrier routes;
  std::map<std::uint64_t, std::shared_ptr<Session>> sessions;
  std::unordered_map<std::uint16_t, Session*> vf_sessions;
  struct CaptureEntry {
    std::shared_ptr<observe::Capture> capture;
    bool running = true;  // else it only writes what it still has
  };
  std::map<std::uint64_t, CaptureEntry> captures;                      // by session
  std::map<std::uint64_t, std::vector<std::uint32_t>> session_faults;  // rules that go with their session
  observe::EventLog events;
  struct EventWaiter {
    std::uint64_t session;
    std::uint32_t seq;
    std::uint64_t after;
  };
  std::vector<EventWaiter> event_waiters;
  std::map<std::string, sw::PortCounters> told_drops;
  boost::asio::steady_timer drop_timer;
  bool watching_drops = false;
  std::shared_ptr<rdmacm::Host> cm_host;
  std::unique_ptr<rdmacm::Service> cm;
  boost::asio::steady_timer cm_timer;
  Nanos cm_timer_at = kNever;
  std::unique_ptr<SysfsTree> sysfs;
  DeviceSums gone_counters;  // of VFs that are no more
  boost::asio::steady_timer counter_timer;
  bool watching_counters = false;
  std::uint64_t next_session = 1;
  const Nanos started = nic::Clock::system_now();
  bool had_user = false;
  std::thread control_thread, switch_thread;  // of start()
};

}  // namespace softrnic::control
