// Targets that make no verbs calls: they compute, are stopped, or die.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "case.h"

namespace vc {

namespace {

constexpr size_t kSize = 1 << 20;

// One round of everything one-sided against a target whose memory holds pattern(1).
void use_target(Endpoint& ep, Buffer& local, const Address& target) {
  ep.read(1, local, 0, kSize / 2, target);
  ep.expect(ep.scq, 1);
  CHECK_EQ(local.mismatch(1, 0, kSize / 2), -1);
  local.fill(2);
  ep.write(2, local, 0, kSize / 2, target, kSize / 2);
  ep.expect(ep.scq, 2);
  ep.read(3, local, 0, kSize / 2, target, kSize / 2);
  ep.expect(ep.scq, 3);
  CHECK_EQ(local.mismatch(2, 0, kSize / 2), -1);
}

// The target counts in its memory until the initiator has added `rounds` to the counter.
void compute_until(const volatile uint64_t* counter, uint64_t rounds) {
  volatile double x = 1;
  const double end = now() + 120;
  while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < rounds) {
    for (int i = 0; i < 10000; ++i) x = x * 1.0000001;
    if (now() > end) fail(__FILE__, __LINE__, "nothing arrived in the target's memory");
  }
}

}  // namespace

VERBS_CASE(passive_target, "a target that computes without verbs calls serves READ, WRITE and atomics") {
  constexpr uint64_t kRounds = 50;
  run_roles({[](Peer& peer, Peer&) {
               Device d;
               Buffer data(d, kSize), counter(d, 4096);
               data.fill(1);
               Endpoint ep(d), ep2(d);
               Address a, b;
               ep.connect(peer, &data, &a);
               ep2.connect(peer, &counter, &b);
               compute_until(reinterpret_cast<uint64_t*>(counter.data), kRounds);
               peer.barrier();
               CHECK_EQ(data.mismatch(2, kSize / 2, kSize / 2, 0), -1);
             },
             [](Peer& peer, Peer&) {
               Device d;
               Buffer local(d, kSize), result(d, 4096);
               Endpoint ep(d), ep2(d);
               Address target, counter;
               ep.connect(peer, &local, &target);
               ep2.connect(peer, &result, &counter);
               for (uint64_t i = 0; i < kRounds; ++i) {
                 use_target(ep, local, target);
                 if (i % 2 == 0) {
                   ep2.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i, result, 0, counter, 0, 1);
                 } else {
                   ep2.atomic(IBV_WR_ATOMIC_CMP_AND_SWP, i, result, 0, counter, 0, i, i + 1);
                 }
                 ep2.expect(ep2.scq, i);
                 CHECK_EQ(*reinterpret_cast<uint64_t*>(result.data), i);
               }
               peer.barrier();
             }});
}

VERBS_CASE(stopped_target, "a target that is stopped longer than all retries take serves again, without an error") {
  // All retries together take far less than the target is stopped: 4.096 us * 2^10 * (1 + 2) = 13 ms.
  ConnectOptions o;
  o.timeout = 10;
  o.retry_cnt = 2;
  run_roles({[o](Peer& peer, Peer& parent) {
               Device d;
               Buffer data(d, kSize), counter(d, 4096);
               Endpoint ep(d), ep2(d);
               Address a, b;
               ep.connect(peer, &data, &a, o);
               ep2.connect(peer, &counter, &b, o);
               parent.send<char>('r');
               compute_until(reinterpret_cast<uint64_t*>(counter.data), 1);
               peer.barrier();
               CHECK_EQ(data.mismatch(7, 0, kSize), -1);
             },
             [o](Peer& peer, Peer& parent) {
               Device d;
               Buffer local(d, kSize), result(d, 4096);
               local.fill(7);
               Endpoint ep(d), ep2(d);
               Address target, counter;
               ep.connect(peer, &local, &target, o);
               ep2.connect(peer, &result, &counter, o);
               CHECK_EQ(parent.receive<char>(), 's');
               // Posted while the target cannot take anything: more than any ring between the two holds.
               for (uint64_t i = 0; i < 64; ++i) ep.write(i, local, 0, kSize, target);
               parent.send<char>('p');
               for (uint64_t i = 0; i < 64; ++i) ep.expect(ep.scq, i);
               ep2.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, result, 0, counter, 0, 1);
               ep2.expect(ep2.scq, 1);
               peer.barrier();
             }},
            [](std::vector<Child>& c) {
              CHECK_EQ(c[0].peer.receive<char>(), 'r');
              c[0].stop();
              c[1].peer.send<char>('s');
              CHECK_EQ(c[1].peer.receive<char>(), 'p');
              sleep(2);
              c[0].resume();
            });
}

VERBS_CASE(killed_peer, "a peer killed in mid-burst: retries exceeded in the configured time, nobody else disturbed") {
  ConnectOptions o;
  o.timeout = 14;  // 67 ms; a device may take up to four times as long (IBA 9.7.6.1.3)
  o.retry_cnt = 3;
  auto bystander = [](bool sender) {
    return [sender](Peer& peer, Peer& parent) {
      Device d;
      Buffer local(d, 65536);
      Endpoint ep(d);
      Address remote;
      ep.connect(peer, &local, &remote);
      uint64_t n = 0;
      parent.send<char>('r');
      for (bool last = false; !last; ++n) {
        if (sender) {
          local.fill(static_cast<uint32_t>(n));
          last = n > 2000 && (peer.send<char>('e'), true);
          if (!last) peer.send<char>('m');
          CHECK_EQ(peer.receive<char>(), 'p');
          ep.send(n, local, 0, 8192);
          ep.expect(ep.scq, n);
        } else {
          last = peer.receive<char>() == 'e';
          ep.post_recv(n, local, 0, 65536);
          peer.send<char>('p');
          CHECK_EQ(ep.expect(ep.rcq, n).byte_len, 8192);
          CHECK_EQ(local.mismatch(static_cast<uint32_t>(n), 0, 8192), -1);
        }
      }
    };
  };
  run_roles({[o](Peer& peer, Peer& parent) {
               Device d;
               Buffer data(d, kSize);
               Endpoint ep(d);
               Address a;
               ep.connect(peer, &data, &a, o);
               parent.send<char>('r');
               for (;;) pause();
             },
             [o](Peer& peer, Peer& parent) {
               Device d;
               Buffer local(d, kSize);
               Endpoint ep(d);
               Address target;
               ep.connect(peer, &local, &target, o);
               uint64_t next = 0, done = 0;
               for (; next < 32; ++next) ep.write(next, local, 0, 65536, target);
               ibv_wc wc;
               bool told = false;
               for (;;) {
                 wc = ep.wait(ep.scq);
                 if (wc.status != IBV_WC_SUCCESS) break;
                 CHECK_EQ(wc.wr_id, done++);
                 ep.write(next, local, 0, 65536, target);
                 ++next;
                 if (done == 500 && !told) {
                   parent.send<char>('k');
                   told = true;
                 }
               }
               const double seen = now();
               CHECK_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
               CHECK_EQ(wc.wr_id, done);
               CHECK_EQ(wc.qp_num, ep.qp->qp_num);
               for (uint64_t i = done + 1; i < next; ++i) ep.expect(ep.scq, i, IBV_WC_WR_FLUSH_ERR);
               const double killed = parent.receive<double>();
               // Four timeouts run after the last packet that the dead peer took.
               CHECK(seen - killed > 4 * 0.067 - 0.1);
               CHECK(seen - killed < 4 * 4 * 0.067 + 10);
               CHECK_EQ(ep.state(), IBV_QPS_ERR);
             },
             bystander(true), bystander(false)},
            [](std::vector<Child>& c) {
              for (int i : {0, 2, 3}) CHECK_EQ(c[static_cast<size_t>(i)].peer.receive<char>(), 'r');
              CHECK_EQ(c[1].peer.receive<char>(), 'k');
              const double t = now();
              c[0].kill();
              c[1].peer.send<double>(t);
            });
}

VERBS_CASE(unmapped_memory, "registered memory that the target unmapped: an access error, no crash") {
  run_roles({[](Peer& peer, Peer&) {
               Device d;
               Buffer data(d, kSize);
               Endpoint ep(d);
               Address a;
               ep.connect(peer, &data, &a);
               CHECK_EQ(munmap(data.data, kSize), 0);
               peer.barrier();
               peer.barrier();
               // For the destructor.
               CHECK(mmap(data.data, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
                     data.data);
             },
             [](Peer& peer, Peer&) {
               Device d;
               Buffer local(d, kSize);
               Endpoint ep(d);
               Address target;
               ep.connect(peer, &local, &target);
               peer.barrier();
               ep.write(1, local, 0, 8192, target);
               const ibv_wc wc = ep.wait_send();
               CHECK(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_REM_OP_ERR);
               peer.barrier();
             }});
}

VERBS_CASE(idle, "waits with a connected queue pair and its peer until its input closes; for measuring CPU time") {
  run_roles({[](Peer& peer, Peer& parent) {
               Device d;
               Buffer data(d, kSize);
               Endpoint ep(d);
               Address a;
               ep.connect(peer, &data, &a);
               parent.send<pid_t>(getpid());
               parent.receive<char>();
             },
             [](Peer& peer, Peer& parent) {
               Device d;
               Buffer local(d, kSize);
               Endpoint ep(d);
               Address target;
               ep.connect(peer, &local, &target);
               ep.write(1, local, 0, 65536, target);
               ep.expect(ep.scq, 1);
               parent.send<pid_t>(getpid());
               parent.receive<char>();
             }},
            [](std::vector<Child>& c) {
              for (Child& child : c) std::printf("pid %d\n", child.peer.receive<pid_t>());
              std::fflush(stdout);
              char byte;
              while (read(0, &byte, 1) > 0) {
              }
              for (Child& child : c) child.peer.send<char>('q');
            });
}

}  // namespace vc
