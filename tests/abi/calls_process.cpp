// The library in the life of a process: fork, opening and closing again and again.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "tests/abi/fixture.h"

using namespace abi;

namespace {

// One write from queue pair to queue pair.
void exchange(Device& d, Pair& p) {
  ibv_sge sge = d.sge(0, 64);
  ibv_send_wr wr = send_wr(&sge, IBV_WR_RDMA_WRITE), *bad = nullptr;
  wr.wr.rdma = {d.address(4096), d.mr->rkey};
  REQUIRE(ibv_post_send(p.a, &wr, &bad) == 0);
  CHECK(poll_n(d.cq, 1)[0].status == IBV_WC_SUCCESS);
}

// Runs `f` in a child; true when it throws nothing and fails no check.
template <class F>
bool in_child(F f) {
  fflush(nullptr);
  pid_t pid = fork();
  if (pid == 0) {
    bool ok = false;
    try {
      ok = f();
    } catch (...) {
      fprintf(stderr, "a requirement failed in the child\n");
    }
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int open_descriptors() {
  int n = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir)) ++n;
  closedir(dir);
  return n;
}

}  // namespace

TEST_CASE("a child of fork uses the parent's context; the parent's objects give errors there", "[fork]") {
  Device d;
  Pair p(d, d.init_attr(IBV_QPT_RC));
  exchange(d, p);
  CHECK(in_child([&] {
    ibv_gid gid;
    if (ibv_query_gid(d.ctx, 1, 0, &gid) != 0) return false;
    ibv_port_attr port;
    if (ibv_query_port(d.ctx, 1, &port) != 0 || port.state != IBV_PORT_ACTIVE) return false;
    ibv_wc wc;
    if (ibv_poll_cq(d.cq, 1, &wc) > 0) return false;
    {
      Device own(d.ctx);
      Pair q(own, own.init_attr(IBV_QPT_RC));
      exchange(own, q);
    }
    // What came from the parent can be destroyed without harm to it.
    return ibv_destroy_qp(p.a) == 0 && ibv_destroy_qp(p.b) == 0 && ibv_dereg_mr(d.mr) == 0 &&
           ibv_destroy_cq(d.cq) == 0 && ibv_dealloc_pd(d.pd) == 0 && ibv_close_device(d.ctx) == 0;
  }));
  exchange(d, p);
}

TEST_CASE("a child of fork opens devices itself", "[fork]") {
  Device d;
  CHECK(in_child([] {
    Device own;
    Pair q(own, own.init_attr(IBV_QPT_RC));
    exchange(own, q);
    return true;
  }));
  Pair p(d, d.init_attr(IBV_QPT_RC));
  exchange(d, p);
}

TEST_CASE("parent and child of a fork talk to each other", "[fork]") {
  Device d;
  ibv_qp_init_attr attr = d.init_attr(IBV_QPT_RC);
  ibv_qp* qp = ibv_create_qp(d.pd, &attr);
  REQUIRE(qp != nullptr);
  to_init(qp);
  post_recv(qp, d.sge(4096, 64));
  int to_parent[2], to_child[2];
  REQUIRE(pipe(to_parent) == 0);
  REQUIRE(pipe(to_child) == 0);
  fflush(nullptr);
  pid_t pid = fork();
  if (pid == 0) {
    int status = 1;
    try {
      Device own(d.ctx);
      attr = own.init_attr(IBV_QPT_RC);
      ibv_qp* mine = ibv_create_qp(own.pd, &attr);
      REQUIRE(mine != nullptr);
      to_init(mine);
      to_rts(mine, own, qp->qp_num);
      char byte;
      REQUIRE(write(to_parent[1], &mine->qp_num, 4) == 4);
      REQUIRE(read(to_child[0], &byte, 1) == 1);
      ibv_sge sge = own.sge(0, 16);
      ibv_send_wr wr = send_wr(&sge, IBV_WR_SEND), *bad = nullptr;
      REQUIRE(ibv_post_send(mine, &wr, &bad) == 0);
      status = poll_n(own.cq, 1)[0].status == IBV_WC_SUCCESS && ibv_destroy_qp(mine) == 0 ? 0 : 1;
    } catch (...) {
    }
    _exit(status);
  }
  std::uint32_t peer = 0;
  REQUIRE(read(to_parent[0], &peer, 4) == 4);
  to_rts(qp, d, peer);
  REQUIRE(write(to_child[1], "g", 1) == 1);
  CHECK(poll_n(d.cq, 1)[0].opcode == IBV_WC_RECV);
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(ibv_destroy_qp(qp) == 0);
  for (int fd : {to_parent[0], to_parent[1], to_child[0], to_child[1]}) close(fd);
}

TEST_CASE("opening and closing leaves nothing behind", "[life]") {
  { Device warm_up; }
  int before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    Device a, b;
    CHECK(a.ctx->async_fd != b.ctx->async_fd);
    Pair p(a, a.init_attr(IBV_QPT_RC));
    exchange(a, p);
  }
  CHECK(open_descriptors() == before);
}
