// One end of a simulated connection: a QP, the program that uses it, and what that program must see.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "protocols/common/psn.h"
#include "protocols/ib/qp.h"
#include "tests/sim/sim_core.h"

namespace softrnic::sim {

using namespace softrnic::ib;

struct EndConfig {
  QpType type = QpType::rc;
  std::uint32_t mtu = 256;
  std::uint32_t messages = 12;
  std::uint32_t sq_depth = 8, rq_depth = 8;
  std::uint32_t rd_atomic = 2;
  std::uint8_t timeout = 9;
  std::uint8_t min_rnr_timer = 1;
  bool sig_all = false;
  std::uint32_t bad_request_at = ~0u;  // this message has a wrong R_Key
  std::uint32_t kill_at = ~0u;         // after this message the program moves the QP to ERR
};

// A send request the program has posted.
struct SentMessage {
  WrOpcode opcode = WrOpcode::send;
  bool signaled = false;
  bool poisoned = false;  // has a wrong R_Key
  bool settled = false;   // completed with success
  std::uint64_t id = 0;   // of the data
  std::uint32_t length = 0;
  std::size_t local = 0;     // offset in the own memory
  std::size_t remote = 0;    // offset in the peer's
  std::uint64_t expect = 0;  // atomic CmpSwap: the original value that must come back
};

// A receive request waiting or filled.
struct PostedRecv {
  std::size_t offset = 0;
  std::uint32_t length = 0;
  bool done = false;
};

// A receive queue with what was posted to it; an SRQ has several users.
struct RecvPool {
  std::unique_ptr<RecvQueue> queue;
  std::vector<PostedRecv> posted;  // wr_id is the index
  std::uint32_t completed = 0;
};

class End {
 public:
  End(World& world, HostMemory& memory, std::uint32_t number, const EndConfig& config, std::shared_ptr<RecvPool> pool,
      bool srq);
  void connect(End& peer, std::size_t peer_counter);

  void on_frame(const Event& e);
  void on_timer();
  void on_app();
  void service();
  // The program has posted all its messages and seen all their completions.
  bool finished() const { return next_completion_ == config_.messages; }
  bool broken() const { return failed_; }
  // Moves to ERR and checks that everything still open is flushed, once.
  void shut_down();
  // End of the simulation: areas of messages that did not complete are loose.
  void settle(End& peer);

  std::uint32_t fetch_adds_done = 0;  // completed with success
  std::vector<std::uint64_t> fetch_add_originals;
  std::size_t counter = 0;  // offset of the host's shared counter
  const EndConfig& config() const { return config_; }
  std::uint32_t number() const { return number_; }
  Qp& qp() { return *qp_; }

 private:
  void post_sends();
  void post_one();
  void choose(SentMessage& m, SendWqe& w);
  void choose_datagram(SentMessage& m, SendWqe& w);
  void post_recvs();
  std::vector<Sge> split(std::size_t offset, std::uint32_t length);
  void collect();
  void on_send_completion(const QpEvent& e);
  void on_send_error(SentMessage& m, WcStatus status);
  void check_result(SentMessage& m);
  void on_recv_completion(const Completion& wc);
  void check_stream_recv(const Completion& wc, const PostedRecv& r);
  void check_datagram_recv(const Completion& wc, const PostedRecv& r);
  void transmit();
  void arm();
  void note_sent(const TxPacket& p);

  World& world_;
  HostMemory& memory_;
  const std::uint32_t number_;
  const EndConfig config_;
  const bool srq_;
  std::shared_ptr<RecvPool> pool_;
  std::unique_ptr<SendQueue> sq_;
  std::unique_ptr<Qp> qp_;
  End* peer_ = nullptr;
  std::size_t peer_counter_ = 0, swap_word_ = 0;
  std::uint64_t swap_value_ = 0;

  std::vector<SentMessage> sent_;
  std::uint32_t next_completion_ = 0;  // first message whose completion has not been seen
  bool failed_ = false;                // a completion with an error was seen
  bool killed_ = false;
  std::deque<std::uint32_t> incoming_;  // RC: peer's messages that take a receive request, in order
  // RC: last PSNs of our messages that take a receive request, as they went out first.
  std::deque<std::uint32_t> announced_;
  std::uint32_t announced_psn_ = 0;  // highest seen
  bool any_announced_ = false;
  std::uint32_t acknowledged_psn_ = 0;  // highest PSN in a response handed out
  bool any_acknowledged_ = false;
  int last_wqe_events_ = 0;
  Nanos armed_ = kNever;
};

}  // namespace softrnic::sim
