#include "tools/bench/ringproto/world.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ringproto {

std::uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1000000000 + static_cast<std::uint64_t>(t.tv_nsec);
}

void End::notify() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (tx.consumer_armed()) ring_bell(*peer_inbox, 0, peer_eventfd);
}

bool End::send(const void* data, std::uint32_t length, std::uint16_t aux) {
  if (!tx.has_room(length)) return false;
  std::memcpy(tx.begin(length), data, length);
  tx.commit(length, aux);
  notify();
  return true;
}

void End::sleep(std::uint64_t timeout_ns) {
  rx.set_state(ConsumerState::armed);
  prepare_sleep(*inbox);
  if (!rx.pending() && !inbox_pending(*inbox)) {
    timespec t{static_cast<time_t>(timeout_ns / 1000000000), static_cast<long>(timeout_ns % 1000000000)};
    pollfd p{eventfd, POLLIN, 0};
    if (ppoll(&p, 1, &t, nullptr) == 1) drain_eventfd(eventfd);
  }
  end_sleep(*inbox);
  take_inbox(*inbox, [](std::uint32_t) {});
}

World::World() {
  const std::uint64_t channel = channel_bytes(kRingSize);
  bytes_ = 3 * channel + 3 * sizeof(Inbox) + sizeof(Shared) + 4096;
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory_ == MAP_FAILED) std::abort();
  auto* p = static_cast<std::uint8_t*>(memory_);
  auto* inboxes = reinterpret_cast<Inbox*>(p + 3 * channel);
  shared = reinterpret_cast<Shared*>(reinterpret_cast<std::uint8_t*>(inboxes) + 3 * sizeof(Inbox));
  for (int& fd : eventfds_) fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  auto join = [&](int n, End* x, int who_x, End* y, int who_y) {
    auto* r0 = p + static_cast<std::uint64_t>(n) * channel;
    auto* r1 = r0 + ring_bytes(kRingSize);
    auto open = [&](End* e, std::uint8_t* tx, std::uint8_t* rx, int me, int other) {
      e->tx.open(reinterpret_cast<RingHeader*>(tx), tx + kRingDataOffset, kRingSize);
      e->rx.open(reinterpret_cast<RingHeader*>(rx), rx + kRingDataOffset, kRingSize);
      e->inbox = &inboxes[me];
      e->peer_inbox = &inboxes[other];
      e->eventfd = eventfds_[me];
      e->peer_eventfd = eventfds_[other];
    };
    open(x, r0, r1, who_x, who_y);
    open(y, r1, r0, who_y, who_x);
  };
  join(0, &a_to_b, 0, &b_to_a, 1);
  join(1, &a_to_s, 0, &s_to_a, 2);
  join(2, &b_to_s, 1, &s_to_b, 2);
}

World::~World() {
  munmap(memory_, bytes_);
  for (int fd : eventfds_) close(fd);
}

pid_t spawn(const std::function<void()>& f) {
  std::fflush(stdout);
  pid_t pid = fork();
  if (pid < 0) std::abort();
  if (pid == 0) {
    f();
    _exit(0);
  }
  return pid;
}

void wait_child(pid_t pid) { waitpid(pid, nullptr, 0); }

}  // namespace ringproto
