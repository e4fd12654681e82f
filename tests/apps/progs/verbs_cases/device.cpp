// The device as programs find it: values, limits, calls that it does not have, its life in a process.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "case.h"

namespace vc {

namespace {

size_t open_files() {
  size_t n = 0;
  DIR* dir = opendir("/proc/self/fd");
  CHECK(dir != nullptr);
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

size_t resident_pages() {
  FILE* f = std::fopen("/proc/self/statm", "r");
  CHECK(f != nullptr);
  size_t total = 0, resident = 0;
  CHECK_EQ(std::fscanf(f, "%zu %zu", &total, &resident), 2);
  std::fclose(f);
  return resident;
}

void loop_back_once(Device& d, Buffer& local, Buffer& remote) {
  Endpoint a(d), b(d);
  a.connect(b.address());
  b.connect(a.address());
  a.write(1, local, 0, 4096, b.address(&remote));
  a.expect(a.scq, 1);
}

}  // namespace

VERBS_CASE(capabilities, "what the device reports is true and usable") {
  Device d;
  CHECK_EQ(d.port.state, IBV_PORT_ACTIVE);
  CHECK_EQ(d.port.link_layer, IBV_LINK_LAYER_ETHERNET);
  CHECK(d.port.max_msg_sz >= (1u << 30));
  CHECK(d.port.active_mtu <= d.port.max_mtu);
  CHECK_EQ(d.port.active_mtu, IBV_MTU_4096);
  CHECK(d.attr.sys_image_guid != 0);
  CHECK(d.attr.node_guid != 0);
  CHECK(d.attr.vendor_id != 0 && d.attr.vendor_id != 0xFFFFFF);
  CHECK_EQ(d.attr.phys_port_cnt, 1);
  CHECK_EQ(d.attr.max_pkeys, 1);
  CHECK(d.attr.atomic_cap == IBV_ATOMIC_HCA || d.attr.atomic_cap == IBV_ATOMIC_GLOB);
  uint16_t pkey = 0;
  CHECK_EQ(ibv_query_pkey(d.ctx, 1, 0, &pkey), 0);
  CHECK_EQ(pkey, 0xFFFF);
  CHECK(ibv_query_pkey(d.ctx, 1, 1, &pkey) != 0);
  CHECK(d.port.gid_tbl_len > 0);
  static const ibv_gid zero{};
  for (int i = 0; i < d.port.gid_tbl_len; ++i) {
    ibv_gid g{};
    CHECK_EQ(ibv_query_gid(d.ctx, 1, i, &g), 0);
    CHECK(std::memcmp(&g, &zero, sizeof(g)) != 0);
    ibv_gid_entry e{};
    CHECK_EQ(ibv_query_gid_ex(d.ctx, 1, static_cast<uint32_t>(i), &e, 0), 0);
    CHECK_EQ(std::memcmp(&g, &e.gid, sizeof(g)), 0);
  }
  ibv_gid g{};
  CHECK(ibv_query_gid(d.ctx, 1, d.port.gid_tbl_len, &g) != 0);
  CHECK_EQ(ibv_query_port(d.ctx, 2, &d.port), EINVAL);
}

VERBS_CASE(limits, "limits are real: what the device grants works, asking beyond fails with the documented errno") {
  Device d;
  errno = 0;
  CHECK(ibv_create_cq(d.ctx, d.attr.max_cqe + 1, nullptr, nullptr, 0) == nullptr);
  CHECK_EQ(errno, EINVAL);
  CHECK(ibv_create_cq(d.ctx, 0, nullptr, nullptr, 0) == nullptr);
  ibv_cq* cq = ibv_create_cq(d.ctx, d.attr.max_cqe, nullptr, nullptr, 0);
  CHECK(cq != nullptr);
  CHECK(cq->cqe >= d.attr.max_cqe);
  auto create = [&](uint32_t send_wr, uint32_t recv_wr, uint32_t sge) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {send_wr, recv_wr, sge, sge, 0};
    errno = 0;
    ibv_qp* qp = ibv_create_qp(d.pd, &init);
    if (qp != nullptr) {
      CHECK(init.cap.max_send_wr >= send_wr && init.cap.max_recv_wr >= recv_wr);
      CHECK(init.cap.max_send_sge >= sge && init.cap.max_recv_sge >= sge);
      ibv_qp_attr a{};
      ibv_qp_init_attr q{};
      CHECK_EQ(ibv_query_qp(qp, &a, IBV_QP_CAP, &q), 0);
      CHECK_EQ(q.cap.max_send_wr, init.cap.max_send_wr);
      CHECK_EQ(ibv_destroy_qp(qp), 0);
    }
    return qp != nullptr;
  };
  const auto wr = static_cast<uint32_t>(d.attr.max_qp_wr), sge = static_cast<uint32_t>(d.attr.max_sge);
  CHECK(create(wr, wr, 1));
  CHECK(create(1, 1, sge));
  CHECK(!create(wr + 1, 1, 1));
  CHECK_EQ(errno, EINVAL);
  CHECK(!create(1, wr + 1, 1));
  CHECK(!create(1, 1, sge + 1));
  CHECK_EQ(errno, EINVAL);
  CHECK_EQ(ibv_destroy_cq(cq), 0);
}

VERBS_CASE(full_queue,
           "posting beyond the queue's size fails with ENOMEM and names the request; nothing else is lost") {
  Device d;
  Buffer b(d, 4096);
  QpOptions qo;
  qo.send_wr = 8;
  qo.recv_wr = 8;
  Endpoint ep(d, qo);
  ConnectOptions o;
  ep.to_init(o.access);
  uint32_t posted = 0;
  ibv_sge sge{reinterpret_cast<uint64_t>(b.data), 64, b.mr->lkey};
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  int error = 0;
  while (posted < 100000 && (error = ibv_post_recv(ep.qp, &wr, &bad)) == 0) ++posted;
  CHECK_EQ(error, ENOMEM);
  CHECK(bad == &wr);
  CHECK_EQ(posted, ep.cap.max_recv_wr);
}

VERBS_CASE(unsupported_calls, "calls that the device does not have fail with EOPNOTSUPP") {
  Device d;
  ibv_alloc_dm_attr dm{4096, 0, 0};
  errno = 0;
  CHECK(ibv_alloc_dm(d.ctx, &dm) == nullptr);
  CHECK_EQ(errno, EOPNOTSUPP);
  struct {
    ibv_flow_attr attr{};
  } flow;
  flow.attr.type = IBV_FLOW_ATTR_NORMAL;
  flow.attr.size = sizeof(flow.attr);
  flow.attr.port = 1;
  Endpoint ep(d);
  errno = 0;
  CHECK(ibv_create_flow(ep.qp, &flow.attr) == nullptr);
  CHECK_EQ(errno, EOPNOTSUPP);
  ibv_wq_init_attr wq{};
  errno = 0;
  CHECK(ibv_create_wq(d.ctx, &wq) == nullptr);
  CHECK_EQ(errno, EOPNOTSUPP);
  errno = 0;
  CHECK(ibv_reg_dmabuf_mr(d.pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno == EOPNOTSUPP || errno == EBADF);
}

VERBS_CASE(connection_cycles,
           "thousands of queue pairs made, connected, used and destroyed leak nothing and never stall") {
  Device d;
  Buffer local(d, 4096), remote(d, 4096);
  for (int i = 0; i < 200; ++i) loop_back_once(d, local, remote);
  const size_t files = open_files(), pages = resident_pages();
  for (int i = 0; i < 5000; ++i) loop_back_once(d, local, remote);
  CHECK_EQ(open_files(), files);
#ifndef __SANITIZE_ADDRESS__  // freed memory stays resident in its quarantine
  CHECK(resident_pages() < pages + 4096);
#else
  (void)pages;
#endif
}

VERBS_CASE(open_close_cycles, "a device opened and closed many times leaks nothing") {
  for (int i = 0; i < 20; ++i) Device d;
  const size_t files = open_files();
  for (int i = 0; i < 200; ++i) {
    Device d;
    Buffer b(d, 4096);
  }
  CHECK_EQ(open_files(), files);
}

VERBS_CASE(fork_child, "a child opens the device for itself; the parent's objects live on untouched") {
  Device d;
  Buffer local(d, 4096), remote(d, 4096);
  Endpoint a(d), b(d);
  a.connect(b.address());
  b.connect(a.address());
  a.write(1, local, 0, 4096, b.address(&remote));
  a.expect(a.scq, 1);
  for (int round = 0; round < 3; ++round) {
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      // The parent's objects return errors here, and can be destroyed.
      ibv_wc wc;
      CHECK(ibv_poll_cq(a.scq, 1, &wc) <= 0);
      {
        Device mine;
        Buffer x(mine, 4096), y(mine, 4096);
        loop_back_once(mine, x, y);
      }
      ibv_destroy_qp(a.qp);
      _exit(0);
    }
    for (uint64_t i = 0; i < 200; ++i) {
      local.fill(static_cast<uint32_t>(i));
      a.write(i, local, 0, 4096, b.address(&remote));
      a.expect(a.scq, i);
      CHECK_EQ(remote.mismatch(static_cast<uint32_t>(i), 0, 4096), -1);
    }
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
  }
}

VERBS_CASE(fork_after_exit, "a child that only exits or execs does not disturb its parent") {
  Device d;
  Buffer local(d, 4096), remote(d, 4096);
  Endpoint a(d), b(d);
  a.connect(b.address());
  b.connect(a.address());
  for (uint64_t i = 0; i < 20; ++i) {
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      if (i % 2 == 0) execl("/bin/true", "true", nullptr);
      std::exit(0);
    }
    a.write(i, local, 0, 4096, b.address(&remote));
    a.expect(a.scq, i);
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
  }
}

}  // namespace vc
