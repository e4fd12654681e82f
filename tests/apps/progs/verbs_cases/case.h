// A small frame for tests that are verbs programs: named cases, each run by one or several processes
// that exchange what they need over socket pairs. Uses the public verbs interface only, so that the same cases
// can be run against any RDMA device.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace vc {

[[noreturn]] void fail(const char* file, int line, const std::string& what);
std::string format(const char* fmt, ...) __attribute__((format(printf, 1, 2)));

#define CHECK(cond)                                     \
  do {                                                  \
    if (!(cond)) ::vc::fail(__FILE__, __LINE__, #cond); \
  } while (0)
// With the values of both sides, as integers.
#define CHECK_EQ(a, b)                                                                                            \
  do {                                                                                                            \
    const long long vc_a = static_cast<long long>(a), vc_b = static_cast<long long>(b);                           \
    if (vc_a != vc_b) ::vc::fail(__FILE__, __LINE__, ::vc::format("%s == %s: %lld != %lld", #a, #b, vc_a, vc_b)); \
  } while (0)

double now();  // seconds, monotonic

// ---- cases -------------------------------------------------------------------------------------------------
using Args = std::vector<std::string>;
struct Case {
  const char* name;
  const char* what;
  std::function<void(const Args&)> run;
};
std::vector<Case>& cases();
struct Register {
  Register(const char* name, const char* what, std::function<void(const Args&)> run) {
    cases().push_back({name, what, std::move(run)});
  }
};
#define VC_JOIN2(a, b) a##b
#define VC_JOIN(a, b) VC_JOIN2(a, b)
#define VERBS_CASE(name, what)                                               \
  static void name(const ::vc::Args& args);                                  \
  static const ::vc::Register VC_JOIN(name, _registered)(#name, what, name); \
  static void name([[maybe_unused]] const ::vc::Args& args)

// ---- processes that take part in a case ----------------------------------------------------------------------
// One end of a socket pair to another process.
class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}
  void send(const void* data, size_t length);
  void receive(void* data, size_t length);
  template <typename T>
  void send(const T& v) {
    send(&v, sizeof(v));
  }
  template <typename T>
  T receive() {
    T v;
    receive(&v, sizeof(v));
    return v;
  }
  void barrier();  // returns when the other side has called it too

 private:
  int fd_;
};

// Runs `roles` as processes of their own, forked before any verbs call; role i and the parent are connected,
// and roles 2k and 2k+1 with each other. `parent` runs meanwhile and may stop or kill them. A role that
// fails ends the case; a role that the parent killed does not.
struct Child {
  pid_t pid;
  Peer peer;  // parent <-> role
  bool killed = false;
  void stop();  // SIGSTOP, returns when the process has stopped
  void resume();
  void kill();  // SIGKILL, returns when the process is gone
};
using Role = std::function<void(Peer& partner, Peer& parent)>;
void run_roles(const std::vector<Role>& roles, const std::function<void(std::vector<Child>&)>& parent = {});

// ---- verbs objects -----------------------------------------------------------------------------------------
// An opened device; chooses the GID of a RoCE v2 entry with an IPv4 address.
struct Device {
  Device();
  ~Device();
  Device(const Device&) = delete;
  ibv_context* ctx = nullptr;
  ibv_pd* pd = nullptr;
  ibv_device_attr attr{};
  ibv_port_attr port{};
  ibv_gid gid{};
  int gid_index = -1;
};

struct Buffer {
  Buffer(Device& d, size_t size,
         int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                      IBV_ACCESS_REMOTE_ATOMIC);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  uint8_t* data;
  size_t size;
  ibv_mr* mr;
  void fill(uint32_t seed);  // a pattern that depends on seed and position
  long mismatch(uint32_t seed, size_t offset, size_t length, size_t pattern_offset = 0) const;  // -1: none
};
uint8_t pattern(uint32_t seed, size_t position);

// What the two sides of a connection tell each other.
struct Address {
  uint32_t qpn, psn, rkey;
  uint64_t va;
  ibv_gid gid;
};

struct ConnectOptions {
  ibv_mtu mtu = IBV_MTU_1024;
  uint8_t timeout = 14, retry_cnt = 7, rnr_retry = 7, min_rnr_timer = 12, rd_atomic = 8;
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
};

struct QpOptions {
  ibv_qp_type type = IBV_QPT_RC;
  uint32_t send_wr = 128, recv_wr = 128, sge = 4, inline_size = 0;
  int cqe = 512;
  ibv_srq* srq = nullptr;
  ibv_comp_channel* channel = nullptr;
};

// A queue pair with completion queues of its own, and the usual requests.
class Endpoint {
 public:
  explicit Endpoint(Device& d, const QpOptions& o = {});
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;

  Device& dev;
  QpOptions opt;
  ibv_cq* scq;
  ibv_cq* rcq;
  ibv_qp* qp;
  ibv_qp_cap cap{};

  Address address(const Buffer* b = nullptr) const;
  void connect(const Address& remote, const ConnectOptions& o = {});  // RESET to RTS
  void connect(Peer& peer, const Buffer* b, Address* remote,
               const ConnectOptions& o = {});  // with exchange and barrier
  void to_init(int access);
  void to_rtr(const Address& remote, const ConnectOptions& o);
  void to_rts(const ConnectOptions& o);
  void to_error();
  ibv_qp_state state() const;

  void post_recv(uint64_t wr_id, const Buffer& b, size_t offset, size_t length);
  // Fills in what is common; the caller sets the rest and posts.
  struct Request {
    ibv_send_wr wr{};
    ibv_sge sge{};
  };
  Request request(ibv_wr_opcode op, uint64_t wr_id, const Buffer& b, size_t offset, size_t length) const;
  void post(Request& r);
  void write(uint64_t wr_id, const Buffer& b, size_t offset, size_t length, const Address& to, uint64_t to_offset = 0,
             int flags = IBV_SEND_SIGNALED);
  void read(uint64_t wr_id, const Buffer& b, size_t offset, size_t length, const Address& from,
            uint64_t from_offset = 0);
  void send(uint64_t wr_id, const Buffer& b, size_t offset, size_t length, int flags = IBV_SEND_SIGNALED);
  void atomic(ibv_wr_opcode op, uint64_t wr_id, const Buffer& result, size_t offset, const Address& at,
              uint64_t at_offset, uint64_t compare_add, uint64_t swap = 0);
  // Waits for the next completion; fails the case after `seconds`.
  ibv_wc wait(ibv_cq* cq, double seconds = 120);
  ibv_wc wait_send() { return wait(scq); }
  ibv_wc wait_recv() { return wait(rcq); }
  // The same, and checks that it succeeded with this wr_id.
  ibv_wc expect(ibv_cq* cq, uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS);

 private:
  uint32_t psn_;
};

// The next asynchronous event within `seconds`, acknowledged; false when there was none.
bool next_async(ibv_context* ctx, ibv_async_event* out, double seconds);

}  // namespace vc
