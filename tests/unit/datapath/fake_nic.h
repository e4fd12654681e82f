// A small NIC process inside the test, under the test's control: it speaks the control protocol and forwards frames
// between VFs by their first two bytes (the destination's VF id). VF n owns QPN block n.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/control/wire.h"
#include "engine/datapath/mapping.h"
#include "engine/datapath/ring.h"
#include "engine/datapath/shm_layout.h"

namespace softrnic::test {

class FakeNic {
 public:
  explicit FakeNic(std::uint32_t ring_size = 65536);
  ~FakeNic();

  const std::string& socket_path() const { return path_; }
  static std::uint32_t qpn(std::uint16_t vf) { return std::uint32_t{vf} << dp::kQpnBlockShift; }

  // Tells all VFs the new route; wait_route() returns when all have answered.
  std::uint32_t set_route(control::RouteMode mode);
  void wait_route(std::uint32_t epoch);
  bool route_reached(std::uint32_t epoch);
  // As if the VF's process had ended: cuts its connection and tells its peers.
  void kill(std::uint16_t vf);
  void die();  // all connections end, nothing is forwarded any more
  void pause_switch(bool paused) { paused_ = paused; }
  void pause_requests(bool paused) { requests_paused_ = paused; }
  // Where the fake delivers peer_added only after this many milliseconds.
  void delay_peer_added(int ms) { peer_added_delay_ms_ = ms; }
  int requests() const { return requests_; }

  dp::Inbox& inbox(std::uint16_t vf);
  dp::StatusPage& status(std::uint16_t vf);
  dp::Inbox& switch_inbox() { return *switch_inbox_.memory.as<dp::Inbox>(); }
  // The ring from `from` to `to` of their direct channel: header and data.
  dp::RingHeader* direct_ring(std::uint16_t from, std::uint16_t to);
  std::uint8_t* direct_data(std::uint16_t from, std::uint16_t to);
  std::uint32_t ring_size() const { return ring_size_; }

 private:
  struct Shared {
    int fd = -1;
    dp::Mapping memory;
    void make(std::size_t size);
    ~Shared();
  };
  struct Channel {
    Shared shared;
    std::uint16_t low_slot, high_slot;
  };
  struct Item {
    dp::EntryKind kind;
    std::uint16_t aux;
    std::vector<std::uint8_t> bytes;
  };
  struct Vf {
    std::uint16_t id = 0;
    int socket = -1, eventfd = -1;
    std::uint16_t next_slot = 1;
    std::uint32_t epoch_done = 0;
    Shared inbox, status, channel;
    dp::RingConsumer in;
    dp::RingProducer out;
    std::deque<Item> queue;
  };

  void control_loop();
  void switch_loop();
  bool forward_all();
  void take_from(Vf& vf);
  bool drain(Vf& vf);
  void handle(Vf& vf, const control::MsgHeader& h, const std::vector<std::uint8_t>& body);
  void attach(Vf& vf, std::uint32_t seq);
  void connect_peer(Vf& vf, std::uint32_t seq, const std::vector<std::uint8_t>& body);
  void send_peer(Vf& to, Vf& peer, Channel& ch, control::MsgType type, std::uint32_t seq);
  static void send(int fd, control::MsgType type, std::uint32_t seq, int status, const void* body, std::size_t length,
                   const std::vector<int>& fds = {});
  void drop(std::uint16_t id);

  std::uint32_t ring_size_;
  std::string dir_, path_;
  int listen_ = -1, switch_eventfd_ = -1;
  Shared switch_inbox_, blocks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint16_t, std::unique_ptr<Vf>> vfs_;
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::unique_ptr<Channel>> channels_;
  std::vector<std::unique_ptr<Vf>> dead_;
  std::uint16_t next_id_ = 1;
  std::uint32_t next_block_ = 2000;
  std::uint32_t epoch_ = 0;
  control::RouteMode mode_ = control::RouteMode::direct;
  std::atomic<bool> stop_{false}, paused_{false}, requests_paused_{false};
  std::atomic<int> requests_{0}, peer_added_delay_ms_{0};
  std::thread control_, switch_;
};

}  // namespace softrnic::test
