// Traffic that is checked byte by byte: sizes, opcodes, order.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "case.h"

namespace vc {

namespace {

constexpr size_t kSize = 1 << 20;

bool input_closed() {
  pollfd p{0, POLLIN, 0};
  char byte;
  return poll(&p, 1, 0) > 0 && read(0, &byte, 1) <= 0;
}

// ---- numbered messages -------------------------------------------------------------------------------------
constexpr uint64_t kWindow = 16;
constexpr size_t kMessage = 3000;  // three packets of 1024

// Sends numbered messages until the parent says stop; the last one is empty.
void send_numbered(Peer& peer, Peer& parent) {
  Device d;
  Buffer b(d, kWindow * kMessage);
  Endpoint ep(d);
  Address remote;
  ep.connect(peer, &b, &remote);
  parent.send<char>('r');
  uint64_t posted = 0, done = 0;
  bool stop = false;
  while (!stop || done < posted) {
    while (!stop && posted < done + kWindow) {
      const size_t at = (posted % kWindow) * kMessage;
      for (size_t i = 0; i < kMessage; ++i) b.data[at + i] = pattern(static_cast<uint32_t>(posted), i);
      std::memcpy(b.data + at, &posted, 8);
      ep.send(posted, b, at, kMessage);
      ++posted;
    }
    ep.expect(ep.scq, done);
    if (++done % 512 == 0) {
      parent.send<uint64_t>(done);
      stop = parent.receive<char>() == 's';
    }
  }
  ep.send(posted, b, 0, 0);
  ep.expect(ep.scq, posted);
  parent.send<uint64_t>(~uint64_t{0});
}

void receive_numbered(Peer& peer, Peer&) {
  Device d;
  Buffer b(d, 4 * kWindow * kMessage);
  Endpoint ep(d);
  for (uint64_t i = 0; i < 4 * kWindow; ++i) {
    if (i == 0) ep.to_init(ConnectOptions{}.access);
    ep.post_recv(i, b, i * kMessage, kMessage);
  }
  peer.send(ep.address(&b));
  const Address remote = peer.receive<Address>();
  ep.to_rtr(remote, {});
  ep.to_rts({});
  peer.barrier();
  for (uint64_t n = 0;; ++n) {
    const size_t slot = n % (4 * kWindow), at = slot * kMessage;
    const ibv_wc wc = ep.expect(ep.rcq, slot);
    if (wc.byte_len == 0) return;
    CHECK_EQ(wc.byte_len, kMessage);
    uint64_t number;
    std::memcpy(&number, b.data + at, 8);
    CHECK_EQ(number, n);
    CHECK_EQ(b.mismatch(static_cast<uint32_t>(n), at + 8, kMessage - 8, 8), -1);
    ep.post_recv(slot, b, at, kMessage);
  }
}

}  // namespace

VERBS_CASE(numbered_traffic,
           "numbered messages until the input closes; none may be lost, repeated, out of order or stall") {
  run_roles({send_numbered, receive_numbered}, [](std::vector<Child>& c) {
    CHECK_EQ(c[0].peer.receive<char>(), 'r');
    std::printf("ready\n");
    std::fflush(stdout);
    uint64_t total = 0;
    for (uint64_t n; (n = c[0].peer.receive<uint64_t>()) != ~uint64_t{0};) {
      total = n;
      c[0].peer.send<char>(input_closed() ? 's' : 'c');
    }
    std::printf("%llu messages\n", static_cast<unsigned long long>(total));
  });
}

VERBS_CASE(payload_sizes, "SEND, WRITE and READ of sizes around every boundary, for every path MTU") {
  run_roles({[](Peer& peer, Peer&) {
               Device d;
               Buffer b(d, kSize);
               for (const ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
                 ConnectOptions o;
                 o.mtu = mtu;
                 Endpoint ep(d);
                 Address remote;
                 ep.connect(peer, &b, &remote, o);
                 for (;;) {
                   ep.post_recv(1, b, 8192, kSize - 8192);
                   peer.send<char>('r');
                   const uint64_t size = peer.receive<uint64_t>();
                   if (size == ~uint64_t{0}) break;
                   CHECK_EQ(ep.expect(ep.rcq, 1).byte_len, size);
                   CHECK_EQ(b.mismatch(static_cast<uint32_t>(size), 8192, size), -1);
                   CHECK_EQ(b.data[8192 + size], 0);
                   std::memset(b.data + 8192, 0, size);
                   peer.send<char>('c');
                   CHECK_EQ(peer.receive<char>(), 'w');
                   CHECK_EQ(b.mismatch(static_cast<uint32_t>(size), 8192, size), -1);
                   CHECK_EQ(b.data[8192 + size], 0);
                   peer.send<char>('c');
                   CHECK_EQ(peer.receive<char>(), 'd');
                   std::memset(b.data + 8192, 0, size);
                 }
                 peer.barrier();
               }
             },
             [](Peer& peer, Peer&) {
               Device d;
               Buffer b(d, kSize), back(d, kSize);
               for (const ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
                 ConnectOptions o;
                 o.mtu = mtu;
                 const size_t m = size_t{128} << mtu;
                 Endpoint ep(d);
                 Address remote;
                 ep.connect(peer, &b, &remote, o);
                 for (const size_t size :
                      {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{4}, size_t{5}, size_t{63}, m - 3, m - 2,
                       m - 1, m, m + 1, m + 2, m + 3, 2 * m - 1, 2 * m, 2 * m + 1, 17 * m + 7, size_t{300001}}) {
                   b.fill(static_cast<uint32_t>(size));
                   CHECK_EQ(peer.receive<char>(), 'r');
                   ep.send(1, b, 0, size);
                   ep.expect(ep.scq, 1);
                   peer.send<uint64_t>(size);
                   CHECK_EQ(peer.receive<char>(), 'c');
                   ep.write(2, b, 0, size, remote, 8192);
                   ep.expect(ep.scq, 2);
                   std::memset(back.data, 0, size + 1);
                   ep.read(3, back, 0, size, remote, 8192);
                   CHECK_EQ(ep.expect(ep.scq, 3).byte_len, size);
                   CHECK_EQ(back.mismatch(static_cast<uint32_t>(size), 0, size), -1);
                   CHECK_EQ(back.data[size], 0);
                   peer.send<char>('w');
                   CHECK_EQ(peer.receive<char>(), 'c');
                   peer.send<char>('d');
                 }
                 CHECK_EQ(peer.receive<char>(), 'r');
                 peer.send<uint64_t>(~uint64_t{0});
                 peer.barrier();
               }
             }});
}

VERBS_CASE(deep_queues, "queue depth 128 and more on several queue pairs causes no retries to run out") {
  constexpr size_t kQps = 8;
  constexpr uint64_t kRequests = 1000, kDepth = 256;
  ConnectOptions o;
  o.timeout = 16;  // 268 ms
  o.retry_cnt = 1;
  run_roles({[o](Peer& peer, Peer&) {
               Device d;
               Buffer b(d, kSize);
               QpOptions qo;
               qo.recv_wr = kDepth;
               std::vector<std::unique_ptr<Endpoint>> eps;
               Address remote;
               for (size_t i = 0; i < kQps; ++i) {
                 eps.push_back(std::make_unique<Endpoint>(d, qo));
                 eps.back()->connect(peer, &b, &remote, o);
               }
               peer.barrier();
             },
             [o](Peer& peer, Peer&) {
               Device d;
               Buffer b(d, kSize);
               QpOptions qo;
               qo.send_wr = kDepth;
               qo.cqe = 2 * kDepth;
               std::vector<std::unique_ptr<Endpoint>> eps;
               std::vector<Address> remote(kQps);
               std::vector<uint64_t> posted(kQps), done(kQps);
               for (size_t i = 0; i < kQps; ++i) {
                 eps.push_back(std::make_unique<Endpoint>(d, qo));
                 eps.back()->connect(peer, &b, &remote[i], o);
               }
               for (uint64_t left = kQps * kRequests; left > 0;) {
                 for (size_t i = 0; i < kQps; ++i) {
                   while (posted[i] < kRequests && posted[i] < done[i] + kDepth) {
                     if (posted[i] % 4 == 3) {
                       eps[i]->read(posted[i], b, 0, 16384, remote[i]);
                     } else {
                       eps[i]->write(posted[i], b, 0, 16384, remote[i]);
                     }
                     ++posted[i];
                   }
                   ibv_wc wc;
                   while (ibv_poll_cq(eps[i]->scq, 1, &wc) == 1) {
                     CHECK_EQ(wc.status, IBV_WC_SUCCESS);
                     CHECK_EQ(wc.wr_id, done[i]++);
                     --left;
                   }
                 }
               }
               peer.barrier();
             }});
}

VERBS_CASE(inline_data, "at least 512 bytes inline are granted, written back, and taken at the time of the post") {
  QpOptions qo;
  qo.inline_size = 512;
  Device d;
  Buffer remote(d, kSize);
  Endpoint a(d, qo), b(d, qo);
  CHECK(a.cap.max_inline_data >= 512);
  a.connect(b.address());
  b.connect(a.address());
  Buffer local(d, 512);
  for (uint32_t i = 0; i < 100; ++i) {
    local.fill(i);
    auto r = a.request(IBV_WR_RDMA_WRITE, i, local, 0, 512);
    r.wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    r.sge.lkey = 0xDEADBEEF;  // not looked at for inline data
    r.wr.wr.rdma = {b.address(&remote).va + i * 512, remote.mr->rkey};
    a.post(r);
    std::memset(local.data, 0, 512);
  }
  for (uint32_t i = 0; i < 100; ++i) a.expect(a.scq, i);
  for (uint32_t i = 0; i < 100; ++i) CHECK_EQ(remote.mismatch(i, i * 512, 512), -1);
}

VERBS_CASE(fence_and_order, "a fenced request sees the result of the READ before it; requests are executed in order") {
  Device d;
  Buffer local(d, kSize), remote(d, kSize);
  Endpoint a(d), b(d);
  a.connect(b.address());
  b.connect(a.address());
  const Address target = b.address(&remote);
  for (uint32_t i = 0; i < 200; ++i) {
    for (size_t k = 0; k < 65536; ++k) remote.data[k] = pattern(i, k);
    a.read(1, local, 0, 65536, target);
    auto w = a.request(IBV_WR_RDMA_WRITE, 2, local, 0, 65536);
    w.wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
    w.wr.wr.rdma = {target.va + 131072, target.rkey};
    a.post(w);
    a.expect(a.scq, 1);
    a.expect(a.scq, 2);
    CHECK_EQ(remote.mismatch(i, 131072, 65536), -1);
  }
}

VERBS_CASE(atomics, "compare-and-swap and fetch-and-add from two queue pairs at once lose no update") {
  Device d;
  Buffer result(d, 4096), counter(d, 4096);
  Endpoint a(d), b(d), c(d), e(d);
  a.connect(b.address());
  b.connect(a.address());
  c.connect(e.address());
  e.connect(c.address());
  for (uint64_t i = 0; i < 500; ++i) {
    a.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i, result, 0, b.address(&counter), 0, 1);
    c.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i, result, 8, e.address(&counter), 0, 1000);
    a.expect(a.scq, i);
    c.expect(c.scq, i);
  }
  auto* value = reinterpret_cast<uint64_t*>(counter.data);
  CHECK_EQ(*value, 500 + 500000);
  a.atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 1, result, 0, b.address(&counter), 0, 1, 2);
  a.expect(a.scq, 1);
  CHECK_EQ(*value, 500500);
  CHECK_EQ(*reinterpret_cast<uint64_t*>(result.data), 500500);
  a.atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 1, result, 0, b.address(&counter), 0, 500500, 2);
  a.expect(a.scq, 1);
  CHECK_EQ(*value, 2);
}

VERBS_CASE(events, "completion events: one for each arming, solicited only when asked, and none lost") {
  Device d;
  ibv_comp_channel* channel = ibv_create_comp_channel(d.ctx);
  CHECK(channel != nullptr);
  {
    Buffer local(d, 65536), remote(d, 65536);
    QpOptions qo;
    qo.channel = channel;
    Endpoint a(d), b(d, qo);
    a.connect(b.address());
    b.connect(a.address());
    auto event = [&](double seconds) {
      pollfd p{channel->fd, POLLIN, 0};
      if (poll(&p, 1, static_cast<int>(seconds * 1000)) <= 0) return false;
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      CHECK_EQ(ibv_get_cq_event(channel, &cq, &context), 0);
      CHECK(cq == b.rcq && context == &b);
      ibv_ack_cq_events(cq, 1);
      return true;
    };
    for (uint64_t i = 0; i < 1000; ++i) {
      b.post_recv(i, remote, 0, 4096);
      CHECK_EQ(ibv_req_notify_cq(b.rcq, 0), 0);
      a.send(i, local, 0, 64);
      CHECK(event(60));
      b.expect(b.rcq, i);
      a.expect(a.scq, i);
    }
    CHECK_EQ(ibv_req_notify_cq(b.rcq, 1), 0);
    b.post_recv(1, remote, 0, 4096);
    b.post_recv(2, remote, 0, 4096);
    a.send(1, local, 0, 64);
    a.expect(a.scq, 1);
    CHECK(!event(0.2));
    a.send(2, local, 0, 64, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
    a.expect(a.scq, 2);
    CHECK(event(60));
    CHECK(!event(0.1));
    b.expect(b.rcq, 1);
    b.expect(b.rcq, 2);
  }
  CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
}

}  // namespace vc
