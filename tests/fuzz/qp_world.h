// Two connected queue pairs, their memory, and a network that the input controls. The world checks what
// must hold whatever arrives: requests complete once and in order, packets sent are well-formed, memory is
// touched only where a key allows it.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "protocols/common/memory_port.h"
#include "protocols/common/work_queue.h"
#include "protocols/ib/opcode.h"
#include "protocols/ib/packet.h"
#include "protocols/ib/qp.h"
#include "tests/fuzz/fuzz_target.h"

namespace softrnic::fuzz {

// One registered region of kSize bytes at address kBase, in an allocation of its own, with two keys: kKey
// allows everything, kReadKey only remote reads. kWindow names a memory window over the region.
class FuzzMemory final : public MemoryPort {
 public:
  static constexpr std::uint64_t kBase = 0x10000;
  static constexpr std::uint32_t kSize = 16 * 1024;
  static constexpr std::uint32_t kKey = 0x100, kReadKey = 0x200, kWindow = 0x300;

  bool unmapped = false;      // copies fail
  bool deregistered = false;  // keys are unknown

  MemStatus resolve_local(PdHandle pd, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length,
                          std::uint32_t access, std::uint8_t** out) override;
  MemStatus resolve_remote(PdHandle pd, std::uint32_t qpn, std::uint32_t rkey, std::uint64_t addr, std::uint64_t length,
                           std::uint32_t access, std::uint8_t** out) override;
  bool copy_to_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) override;
  bool copy_from_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) override;
  bool atomic64(std::uint8_t* p, bool compare_swap, std::uint64_t compare, std::uint64_t swap_or_add,
                std::uint64_t* original) override;
  MemStatus invalidate(PdHandle pd, std::uint32_t qpn, std::uint32_t rkey) override;
  MemStatus bind_mw(PdHandle pd, std::uint32_t qpn, const MwBind& bind) override;

 private:
  MemStatus resolve(PdHandle pd, std::uint64_t addr, std::uint64_t length, std::uint32_t allowed, std::uint32_t access,
                    std::uint8_t** out);
  bool inside(const std::uint8_t* p, std::size_t length) const;

  std::unique_ptr<std::uint8_t[]> bytes_ = std::make_unique<std::uint8_t[]>(kSize);
  std::uint32_t window_key_ = 0;  // 0: not bound
  std::uint32_t window_access_ = 0;
};

struct Config {
  ib::QpType type = ib::QpType::rc;
  std::uint32_t mtu = 256;
  bool srq = false;
  bool sig_all = false;
  bool deep = false;  // queues of 64 requests instead of 5
  std::uint8_t rd_atomic = 1;
  std::uint8_t retry = 1;
  std::uint8_t timeout = 1;
  std::uint32_t psn = 0;

  static Config read(Reader& in);
  std::uint32_t depth() const { return deep ? 64 : 5; }
};

class End {
 public:
  static constexpr std::uint32_t kMaxSge = 4, kMaxInline = 64;
  static constexpr std::uint32_t kQkey = 0x1234;

  End(const Config& config, std::uint32_t qpn, std::uint32_t peer, bool first);

  FuzzMemory mem;

  ib::Qp& qp() { return *qp_; }
  void connect(Nanos now);                  // RESET to RTS
  void modify(Nanos now, std::uint8_t to);  // some legal transition
  void post_send(Reader& in);
  void post_recv(Reader& in);
  // The next packet, checked; empty when there is none.
  Input take(Nanos now);
  void receive(Nanos now, const Input& packet);
  void tick(Nanos now);
  // Takes all events and checks their order.
  void collect();
  // To ERR; every request must then have completed.
  void finish(Nanos now);

 private:
  void on_send_completion(const ib::QpEvent& e);
  void on_recv_completion(const Completion& wc);
  void check_packet(const ib::TxPacket& tx) const;

  const Config config_;
  SendQueue sq_;
  RecvQueue rq_;
  std::unique_ptr<ib::Qp> qp_;
  ib::QpAttrs attrs_;
  // Requests are numbered from 1, their number is the wr_id.
  std::uint64_t sends_posted_ = 0, sends_done_ = 0, recvs_posted_ = 0, recvs_done_ = 0;
  std::vector<bool> signaled_{false};  // by wr_id
};

// Runs the program in an input.
class World {
 public:
  explicit World(Reader& in);
  void run();

 private:
  struct Wire {
    End* from;
    End* to;
    std::deque<Input> packets;
  };
  void step(std::uint8_t op);
  void send(Wire& w);
  void deliver(Wire& w, std::size_t index, bool keep);
  void pump();

  Reader& in_;
  const Config config_;
  Nanos now_ = 1'000'000;
  End a_, b_;
  Wire wires_[2];
};

}  // namespace softrnic::fuzz
