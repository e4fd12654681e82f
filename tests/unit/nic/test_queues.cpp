// Completion queues, their events, and shared receive queues.
#include <fcntl.h>
#include <poll.h>

#include "nic_fixture.h"

using namespace softrnic;
using namespace softrnic::nic;
using namespace softrnic::nic::test;

namespace {

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

// Takes asynchronous events without blocking.
std::vector<AsyncEventRecord> events_of(Party& p) {
  std::vector<AsyncEventRecord> got;
  fcntl(p.ctx->async.fd(), F_SETFL, O_NONBLOCK);
  AsyncEventRecord e;
  while (p.ctx->async.pop(&e) == 0) got.push_back(e);
  return got;
}

int count(const std::vector<AsyncEventRecord>& events, AsyncEvent type) {
  return static_cast<int>(std::ranges::count(events, type, &AsyncEventRecord::type));
}

// A CQ with a channel, and a connected pair whose receiving end completes to it.
struct Notified {
  explicit Notified(Party& party) : p(party) {
    REQUIRE(CompletionChannel::create(*p.ctx, &channel) == 0);
    REQUIRE(CompletionQueue::create(*p.ctx, 16, channel, nullptr, &cq) == 0);
    fcntl(channel->fd(), F_SETFL, O_NONBLOCK);
    a = p.make_qp();
    QpCreate c = p.create_attrs();
    c.recv_cq = cq;
    b = p.make_qp(c);
    const AddressVector av = p.address(p.gid_index());
    to_rts(a, av, b->qpn());
    to_rts(b, av, a->qpn());
  }
  ~Notified() {
    p.forget(b);
    b->destroy();
    CHECK(cq->destroy() == 0);
    CHECK(channel->destroy() == 0);
  }
  // One message; its receive completion is in the CQ afterwards.
  void message(std::uint8_t flags = 0) {
    REQUIRE(recv(b, 1, sge(p, 0, 8)) == 0);
    const std::uint32_t before = cq->pushed();
    REQUIRE(post(a, {.wr_id = 2, .sges = {sge(p, 0, 8)}, .flags = static_cast<std::uint8_t>(flags | kSendSignaled)}) ==
            0);
    REQUIRE(p.wait(1)[0].status == WcStatus::success);
    REQUIRE(cq->pushed() == before + 1);
  }
  int take() {
    return cq->poll(16, [](int, const CqEntry&) {});
  }
  int events() {
    int n = 0;
    CompletionQueue* from = nullptr;
    while (channel->get_event(&from) == 0) {
      CHECK(from == cq);
      ++n;
    }
    return n;
  }

  Party& p;
  CompletionChannel* channel = nullptr;
  CompletionQueue* cq = nullptr;
  QueuePair *a = nullptr, *b = nullptr;
};

}  // namespace

TEST_CASE("IBA 11.4.2.2: an armed CQ gives one event, for a completion added afterwards", "[cq]") {
  Host host;
  Party p(host);
  Notified n(p);
  n.message();
  CHECK(n.events() == 0);  // not armed
  REQUIRE(n.cq->request_notify(false) == 0);
  CHECK(n.events() == 0);  // what is there already does not count
  CHECK_FALSE(readable(n.channel->fd()));
  n.message();
  CHECK(readable(n.channel->fd()));
  n.message();
  CHECK(n.events() == 1);
  CHECK_FALSE(readable(n.channel->fd()));
  CHECK(n.take() == 3);
}

TEST_CASE("IBA 11.4.2.2: arming for solicited completions", "[cq]") {
  Host host;
  Party p(host);
  Notified n(p);
  REQUIRE(n.cq->request_notify(true) == 0);
  n.message();
  CHECK(n.events() == 0);
  n.message(kSendSolicited);
  CHECK(n.events() == 1);
  SECTION("a request for any completion is not weakened") {
    REQUIRE(n.cq->request_notify(false) == 0);
    REQUIRE(n.cq->request_notify(true) == 0);
    n.message();
    CHECK(n.events() == 1);
  }
  SECTION("an error counts as solicited") {
    REQUIRE(recv(n.b, 1, sge(p, 0, 8)) == 0);
    REQUIRE(n.cq->request_notify(true) == 0);
    REQUIRE(n.b->modify(state_only(ib::QpState::err), ib::kAttrState) == 0);
    CHECK(n.events() == 1);
  }
}

TEST_CASE("ibv_get_cq_event wakes a program that sleeps", "[cq]") {
  Host host;
  Party p(host), peer(host);
  Notified n(p);
  fcntl(n.channel->fd(), F_SETFL, 0);
  QpCreate c = p.create_attrs();
  c.recv_cq = n.cq;
  QueuePair* b = nullptr;
  REQUIRE(QueuePair::create(c, &b) == 0);
  QueuePair* a = peer.make_qp();
  const AddressVector av = p.address(p.gid_index());
  to_rts(b, av, a->qpn());
  to_rts(a, av, b->qpn());
  for (int i = 0; i < 20; ++i) {
    REQUIRE(recv(b, 1, sge(p, 0, 8)) == 0);
    REQUIRE(n.cq->request_notify(false) == 0);
    std::thread sender([&] { post(a, {.wr_id = 1, .sges = {sge(peer, 0, 8)}}); });
    CompletionQueue* from = nullptr;
    REQUIRE(n.channel->get_event(&from) == 0);  // the helper thread takes the message in
    CHECK(n.take() == 1);
    sender.join();
    peer.wait(1);
  }
  CHECK(b->destroy() == 0);
}

TEST_CASE("destroying a CQ removes its queued events", "[cq]") {
  Host host;
  Party p(host);
  CompletionChannel* channel = nullptr;
  REQUIRE(CompletionChannel::create(*p.ctx, &channel) == 0);
  CompletionQueue* cq = nullptr;
  REQUIRE(CompletionQueue::create(*p.ctx, 16, channel, nullptr, &cq) == 0);
  REQUIRE(cq->request_notify(false) == 0);
  CqEntry e;
  REQUIRE(cq->push(e));
  CHECK(readable(channel->fd()));
  CHECK(cq->destroy() == 0);
  CHECK_FALSE(readable(channel->fd()));
  CHECK(channel->destroy() == 0);
}

TEST_CASE("IBA 10.2.6.3, 11.6.3.2: a CQ that overflows is in error, with every QP that completes to it", "[cq]") {
  Host host;
  Party p(host.socket(), 64);
  CompletionQueue* small = nullptr;
  REQUIRE(CompletionQueue::create(*p.ctx, 4, nullptr, nullptr, &small) == 0);
  QpCreate c = p.create_attrs();
  c.send_cq = small;
  QueuePair* a = p.make_qp(c);
  QueuePair* b = p.make_qp();
  QueuePair* bystander = p.make_qp(c);
  const AddressVector av = p.address(p.gid_index());
  to_rts(a, av, b->qpn());
  to_rts(b, av, a->qpn());
  to_init(bystander);
  REQUIRE(recv(a, 99, sge(p, 0, 8)) == 0);
  for (std::uint64_t i = 0; i < 10; ++i) {
    REQUIRE(post(a, {.opcode = WrOpcode::rdma_write,
                     .wr_id = i,
                     .sges = {sge(p, 0, 8)},
                     .remote_addr = p.base(),
                     .rkey = p.mr->rkey}) == 0);
  }
  std::vector<AsyncEventRecord> events;
  REQUIRE(eventually([&] {
    p.vf->progress(64);
    for (const auto& e : events_of(p)) events.push_back(e);
    return events.size() >= 3;
  }));
  CHECK(count(events, AsyncEvent::cq_err) == 1);
  CHECK(count(events, AsyncEvent::qp_fatal) == 2);
  CHECK(a->state() == ib::QpState::err);
  CHECK(bystander->state() == ib::QpState::err);
  CHECK(b->state() == ib::QpState::rts);
  const Completion flushed = p.wait(1)[0];
  CHECK(flushed.wr_id == 99);
  CHECK(flushed.status == WcStatus::wr_flush_err);
  std::vector<std::uint64_t> ids;
  small->poll(16, [&](int, const CqEntry& e) { ids.push_back(e.wc.wr_id); });
  CHECK(ids == std::vector<std::uint64_t>{0, 1, 2, 3});
  for (QueuePair* qp : {a, bystander}) {
    p.forget(qp);
    CHECK(qp->destroy() == 0);
  }
  CHECK(small->destroy() == 0);
}

TEST_CASE("a program that sizes its CQ for its queues never overflows it", "[cq]") {
  Host host;
  Party p(host);
  CompletionQueue* cq = nullptr;
  REQUIRE(CompletionQueue::create(*p.ctx, 8, nullptr, nullptr, &cq) == 0);
  QpCreate c = p.create_attrs();
  c.send_cq = cq;
  c.caps.max_send_wr = 8;
  QueuePair* a = p.make_qp(c);
  QueuePair* b = p.make_qp();
  const AddressVector av = p.address(p.gid_index());
  to_rts(a, av, b->qpn());
  to_rts(b, av, a->qpn());
  int posted = 0, done = 0;
  while (done < 200) {
    while (
        post(a,
             {.opcode = WrOpcode::rdma_write, .sges = {sge(p, 0, 8)}, .remote_addr = p.base(), .rkey = p.mr->rkey}) ==
        0) {
      ++posted;
    }
    for (int i = 0; i < 4; ++i) p.vf->progress(64);
    done += cq->poll(3, [](int, const CqEntry& e) { CHECK(e.wc.status == WcStatus::success); });
  }
  CHECK(a->state() == ib::QpState::rts);
  CHECK(posted <= done + 8);
  p.forget(a);
  CHECK(a->destroy() == 0);
  CHECK(cq->destroy() == 0);
}

TEST_CASE("ibv_resize_cq keeps what waits", "[cq]") {
  Host host;
  Party p(host);
  CompletionQueue* cq = nullptr;
  REQUIRE(CompletionQueue::create(*p.ctx, 5, nullptr, nullptr, &cq) == 0);
  CHECK(cq->capacity() >= 5);
  for (std::uint64_t i = 0; i < 4; ++i) {
    CqEntry e;
    e.wc.wr_id = i;
    REQUIRE(cq->push(e));
  }
  CHECK(cq->resize(3) == EINVAL);
  CHECK(cq->resize(0) == EINVAL);
  CHECK(cq->resize(p.ctx->device().max_cqe + 1) == EINVAL);
  CHECK(cq->resize(4) == 0);
  CHECK(cq->resize(100) == 0);
  CHECK(cq->capacity() == 100);
  std::vector<std::uint64_t> ids;
  cq->poll(16, [&](int, const CqEntry& e) { ids.push_back(e.wc.wr_id); });
  CHECK(ids == std::vector<std::uint64_t>{0, 1, 2, 3});
  CHECK(cq->destroy() == 0);
}

namespace {

struct SharedReceivers {
  explicit SharedReceivers(Party& party, int pairs = 2) : p(party) {
    REQUIRE(SharedReceiveQueue::create(*p.pd, 8, 2, 0, nullptr, &srq) == 0);
    const AddressVector av = p.address(p.gid_index());
    for (int i = 0; i < pairs; ++i) {
      senders.push_back(p.make_qp());
      QpCreate c = p.create_attrs();
      c.srq = srq;
      receivers.push_back(p.make_qp(c));
      to_rts(senders.back(), av, receivers.back()->qpn());
      to_rts(receivers.back(), av, senders.back()->qpn());
    }
  }
  ~SharedReceivers() {
    for (QueuePair* qp : receivers) {
      p.forget(qp);
      qp->destroy();
    }
    CHECK(srq->destroy() == 0);
  }
  int post_one(std::uint64_t id) {
    const Sge s = sge(p, 1000 + id * 16, 16);
    return srq->post(id, {&s, 1});
  }
  void send(int i) { REQUIRE(post(senders[i], {.wr_id = 100, .sges = {sge(p, 0, 8)}}) == 0); }

  Party& p;
  SharedReceiveQueue* srq = nullptr;
  std::vector<QueuePair*> senders, receivers;
};

}  // namespace

TEST_CASE("an SRQ serves its QPs in the order of its requests", "[srq]") {
  Host host;
  Party p(host);
  SharedReceivers s(p);
  CHECK(recv(s.receivers[0], 1, sge(p, 0, 8)) == EINVAL);
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(s.post_one(i) == 0);
  CHECK(s.post_one(8) == ENOMEM);
  for (int i = 0; i < 4; ++i) {
    s.send(i % 2);
    std::vector<Completion> got = p.wait(2);
    std::ranges::sort(got, {}, &Completion::wr_id);
    CHECK(got[0].wr_id == static_cast<std::uint64_t>(i));
    CHECK(got[0].qp_num == s.receivers[static_cast<std::size_t>(i % 2)]->qpn());
  }
  for (std::uint64_t i = 8; i < 12; ++i) CHECK(s.post_one(i) == 0);
  CHECK(s.post_one(12) == ENOMEM);
}

TEST_CASE("IBA 10.2.9.3: the SRQ limit event comes once, when a request leaves fewer than the limit", "[srq]") {
  Host host;
  Party p(host);
  SharedReceivers s(p, 1);
  for (std::uint64_t i = 0; i < 4; ++i) REQUIRE(s.post_one(i) == 0);
  CHECK(s.srq->modify_limit(9) == EINVAL);
  REQUIRE(s.srq->modify_limit(3) == 0);
  std::uint32_t max_wr, max_sge, limit;
  s.srq->query(&max_wr, &max_sge, &limit);
  CHECK((max_wr == 8 && max_sge == 2 && limit == 3));
  const auto limits = [&] { return count(events_of(p), AsyncEvent::srq_limit_reached); };
  s.send(0);
  p.wait(2);
  CHECK(limits() == 0);  // three left
  s.send(0);
  p.wait(2);
  CHECK(limits() == 1);
  s.srq->query(&max_wr, &max_sge, &limit);
  CHECK(limit == 0);
  s.send(0);
  p.wait(2);
  CHECK(limits() == 0);
}

TEST_CASE("an SRQ can be resized while requests wait", "[srq]") {
  Host host;
  Party p(host);
  SharedReceivers s(p, 1);
  for (std::uint64_t i = 0; i < 5; ++i) REQUIRE(s.post_one(i) == 0);
  CHECK(s.srq->resize(4) == EINVAL);
  REQUIRE(s.srq->resize(5) == 0);
  CHECK(s.post_one(5) == ENOMEM);
  REQUIRE(s.srq->resize(30) == 0);
  for (std::uint64_t i = 5; i < 30; ++i) REQUIRE(s.post_one(i) == 0);
  for (std::uint64_t i = 0; i < 30; ++i) {
    s.send(0);
    std::vector<Completion> got = p.wait(2);
    std::ranges::sort(got, {}, &Completion::wr_id);
    CHECK(got[0].wr_id == i);
  }
}

TEST_CASE("a QP with an SRQ that enters ERROR: LAST_WQE_REACHED once, the SRQ keeps its requests", "[srq]") {
  Host host;
  Party p(host);
  SharedReceivers s(p);
  REQUIRE(s.post_one(1) == 0);
  REQUIRE(s.receivers[0]->modify(state_only(ib::QpState::err), ib::kAttrState) == 0);
  CHECK(p.quiet());
  const auto events = events_of(p);
  CHECK(count(events, AsyncEvent::qp_last_wqe_reached) == 1);
  s.send(1);
  for (const Completion& c : p.wait(2)) CHECK(c.status == WcStatus::success);
}
