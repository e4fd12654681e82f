// Peers that stop or die. They are processes of their own here.
#ifndef __SANITIZE_THREAD__  // which allows no threads in a child of a process with threads

#include <sys/wait.h>
#include <csignal>

#include "nic_fixture.h"

using namespace softrnic;
using namespace softrnic::nic;
using namespace softrnic::nic::test;

namespace {

// A process that attaches, connects a QP to `peer_qpn` and then only waits; its helper thread serves the QP. Made
// before the test itself attaches anything.
class Child {
 public:
  explicit Child(const std::string& socket) {
    REQUIRE(pipe(up_) == 0);
    REQUIRE(pipe(down_) == 0);
    pid_ = fork();
    if (pid_ == 0) run(socket);
    close(up_[1]);
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (int fd : {up_[0], down_[0], down_[1]}) close(fd);
  }
  struct Address {
    std::uint32_t qpn, rkey;
    std::uint64_t base;
  };
  Address connect(std::uint32_t my_qpn) {
    REQUIRE(write(down_[1], &my_qpn, sizeof my_qpn) == sizeof my_qpn);
    Address a{};
    REQUIRE(read(up_[0], &a, sizeof a) == sizeof a);
    return a;
  }
  void signal(int sig) { kill(pid_, sig); }
  void stop() {
    signal(SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
  }
  void die() {
    signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  [[noreturn]] void run(const std::string& socket) {
    Party p(socket);
    QueuePair* qp = p.make_qp();
    std::uint32_t peer = 0;
    if (read(down_[0], &peer, sizeof peer) != sizeof peer) _exit(1);
    to_rts(qp, p.address(p.gid_index()), peer);
    const Address a{qp->qpn(), p.mr->rkey, p.base()};
    if (write(up_[1], &a, sizeof a) != sizeof a) _exit(1);
    for (;;) pause();
  }

  int up_[2], down_[2];
  pid_t pid_ = -1;
};

struct Connected {
  Connected(Host& host, Child& child) : p(host) {
    qp = p.make_qp();
    to_init(qp);
    peer = child.connect(qp->qpn());
    REQUIRE(qp->modify(rtr_attrs(p.address(p.gid_index()), peer.qpn), kRcRtrMask) == 0);
    QpAttrsAll rts = rts_attrs();
    rts.ib.timeout = 8;  // about a millisecond
    rts.ib.retry_cnt = 1;
    REQUIRE(qp->modify(rts, kRcRtsMask) == 0);
  }
  int write(std::uint64_t id, std::uint32_t length = 8) {
    return post(qp, {.opcode = WrOpcode::rdma_write,
                     .wr_id = id,
                     .sges = {sge(p, 0, length)},
                     .remote_addr = peer.base,
                     .rkey = peer.rkey});
  }
  Party p;
  QueuePair* qp;
  Child::Address peer{};
};

}  // namespace

TEST_CASE("a stopped peer is a slow link, not a retry-exceeded error", "[peers]") {
  Host host;
  Child child(host.socket());
  Connected c(host, child);
  REQUIRE(c.write(1) == 0);
  CHECK(c.p.wait(1)[0].status == WcStatus::success);
  child.stop();
  // More than the ring holds: some of it waits outside.
  for (std::uint64_t i = 0; i < 60; ++i) REQUIRE(c.write(10 + i, 65536) == 0);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  int completed = 0;
  while (std::chrono::steady_clock::now() < until) {
    completed += c.p.cq->poll(16, [](int, const CqEntry&) {});
    std::this_thread::yield();
  }
  CHECK(completed == 0);
  CHECK(c.qp->state() == ib::QpState::rts);
  child.signal(SIGCONT);
  for (const Completion& wc : c.p.wait(60)) CHECK(wc.status == WcStatus::success);
}

TEST_CASE("a peer that is killed: the configured time-outs run, then RETRY_EXC_ERR", "[peers]") {
  Host host;
  Child child(host.socket());
  Connected c(host, child);
  REQUIRE(c.write(1) == 0);
  CHECK(c.p.wait(1)[0].status == WcStatus::success);
  SECTION("while idle") {
    child.die();
    REQUIRE(c.write(2) == 0);
    REQUIRE(c.write(3) == 0);
  }
  SECTION("while stopped with a full ring") {
    child.stop();
    for (std::uint64_t i = 0; i < 60; ++i) REQUIRE(c.write(2 + i, 65536) == 0);
    child.die();
  }
  const auto got = c.p.wait(2);
  CHECK(got[0].wr_id == 2);
  CHECK(got[0].status == WcStatus::retry_exc_err);
  CHECK(got[1].status == WcStatus::wr_flush_err);
}

#endif
