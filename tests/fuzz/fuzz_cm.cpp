// Two CM agents under a hostile peer, network and consumer: an input is a program of calls, deliveries (lost, repeated,
// reordered, changed, made up) and time. Whatever happens, the agents stay within their limits, an event is of an ID
// that its owner has still got, and nothing is left when all IDs are given back and time has passed.
#include <algorithm>
#include <array>
#include <deque>
#include <memory>

#include "protocols/cm/cm.h"
#include "protocols/cm/messages.h"
#include "protocols/cm/rdma_cm.h"
#include "tests/fuzz/fuzz_target.h"

namespace softrnic::fuzz {
namespace {

using namespace softrnic::cm;

constexpr std::size_t kMaxIds = 12;
constexpr std::size_t kMaxOutput = 16;
constexpr std::uint64_t kService = 0x0106'0001;

// Low half of an operation; bit 7 chooses the host.
enum Op : std::uint8_t {
  connect,
  accept,
  ready,
  reject,
  mra,
  disconnect,
  confirm,
  destroy,
  drop,
  establish,
  sidr_request,
  sidr_reply,
  deliver,
  lose,
  repeat,
  reorder,
  change,
  raw,
  time,
  poll,
  listen,
  setup,
  end_of_ops
};

class World {
 public:
  explicit World(Reader& in) : in_(in) {
    for (std::size_t h = 0; h < 2; ++h) {
      AgentOptions o;
      o.ca_guid = 0x100 + h;
      o.seed = h + 1;
      o.max_ids = kMaxIds;
      o.max_listeners = 4;
      o.max_output = kMaxOutput;
      o.sidr_linger = 1'000'000'000;
      hosts_[h].agent = std::make_unique<Agent>(o);
      hosts_[h].gid.raw[15] = static_cast<std::uint8_t>(h + 1);
      CommId id;
      FUZZ_CHECK(hosts_[h].agent->listen(kService, 0, &id) == Result::ok);
      hosts_[h].ids.push_back(id);
    }
  }

  void run() {
    while (!in_.empty()) {
      const std::uint8_t op = in_.u8();
      step(op >> 7, static_cast<Op>((op & 0x7F) % end_of_ops));
      check();
    }
    finish();
  }

 private:
  struct Host {
    std::unique_ptr<Agent> agent;
    Gid gid{};
    std::vector<CommId> ids;          // owned
    std::deque<mad::OutMad> network;  // that it sent
  };

  CommId pick(Host& h) {
    const std::uint8_t n = in_.u8();
    if (n == 0xFF || h.ids.empty()) return n * 0x01010101u;  // none of ours
    return h.ids[h.ids.size() - 1 - n % h.ids.size()];
  }
  Bytes data() {
    buffer_ = in_.bytes(in_.u8() % 240);
    return buffer_;
  }
  mad::MadRoute route(const Host& from, const Host& to) {
    mad::MadRoute r;
    r.local_gid = from.gid;
    r.remote_gid = to.gid;
    return r;
  }

  void collect(Host& h) {
    mad::OutMad m;
    while (h.agent->poll_transmit(now_, &m)) {
      if (h.network.size() < 64) h.network.push_back(m);
    }
  }
  void events(Host& h) {
    Event e;
    while (h.agent->poll_event(&e)) {
      FUZZ_CHECK(e.private_data_length <= kMaxPrivateData && e.ari_length <= kAriSize);
      const bool known = std::find(h.ids.begin(), h.ids.end(), e.id) != h.ids.end();
      const bool makes_one = e.kind == EventKind::req_received || e.kind == EventKind::sidr_req_received;
      FUZZ_CHECK(known != makes_one);
      if (makes_one) {
        FUZZ_CHECK(std::find(h.ids.begin(), h.ids.end(), e.listener) != h.ids.end());
        IpHeader::read(e.data());
        h.ids.push_back(e.id);
      }
    }
  }
  void give(Host& to, const mad::OutMad& m) { to.agent->on_mad(now_, m.route.reversed(), m.data); }

  void ask(Host& h, Host& peer) {
    ReqParams p;
    p.service_id = kService;
    p.transport = static_cast<Transport>(in_.u8() & 3);
    p.qpn = 0x100u + (in_.u8() & 7);
    p.starting_psn = in_.u16();
    p.remote_cm_response_timeout = in_.u8() & 31;
    p.local_cm_response_timeout = in_.u8() & 31;
    p.max_cm_retries = in_.u8() & 3;
    p.path_mtu = 3;
    p.path.packet_life_time = in_.u8() & 31;
    p.route = route(h, peer);
    p.private_data = data();
    CommId id;
    if (h.agent->connect(now_, p, &id) == Result::ok) h.ids.push_back(id);
  }
  void resolve(Host& h, Host& peer) {
    SidrReqParams p;
    p.service_id = kService + (in_.u8() & 1);
    p.timeout = in_.u16() * 100'000u;
    p.max_cm_retries = in_.u8() & 3;
    p.route = route(h, peer);
    p.private_data = data();
    CommId id;
    if (h.agent->sidr_request(now_, p, &id) == Result::ok) h.ids.push_back(id);
  }
  void network(Host& h, Host& peer, Op op) {
    collect(h);
    if (h.network.empty()) return;
    switch (op) {
      case reorder: {
        const std::size_t i = in_.u8() % h.network.size();
        return std::swap(h.network.front(), h.network[i]);
      }
      case change: {
        auto& m = h.network.front().data;
        const std::uint8_t at = in_.u8();
        m[at] = static_cast<std::uint8_t>(m[at] ^ in_.u8());
        return;
      }
      case repeat:
        return give(peer, h.network.front());
      case deliver:
        give(peer, h.network.front());
        [[fallthrough]];
      default:
        h.network.pop_front();
    }
  }
  // A message of any type with the IDs that exist, and any bytes behind them.
  void made_up(Host& h, Host& peer) {
    mad::OutMad m{};
    m.route = route(peer, h);
    mad::MadHeader header;
    header.class_version = (in_.u8() & 15) == 0 ? 1 : kClassVersion;
    header.attribute_id = static_cast<std::uint16_t>(kFirstAttribute + in_.u8() % 13);
    header.transaction_id = in_.u8();
    header.write(m.data.data());
    store_be32(m.data.data() + 24, pick(peer));
    store_be32(m.data.data() + 28, pick(h));
    const Input rest = in_.bytes(in_.u8() % 224);
    std::copy(rest.begin(), rest.end(), m.data.begin() + 32);
    h.agent->on_mad(now_, m.route.reversed(), Bytes(m.data).first(in_.u8() == 1 ? in_.u8() : mad::kMadSize));
  }

  void step(std::size_t which, Op op) {
    Host& h = hosts_[which];
    Host& peer = hosts_[1 - which];
    Agent& a = *h.agent;
    switch (op) {
      case connect:
        return ask(h, (in_.u8() & 3) == 0 ? h : peer);
      case accept: {
        RepParams p;
        const CommId id = pick(h);
        p.qpn = 0x200u + (in_.u8() & 7);
        p.private_data = data();
        a.accept(now_, id, p);
        return;
      }
      case ready:
        a.ready(now_, pick(h), data());
        return;
      case reject: {
        const CommId id = pick(h);
        const Input info = in_.bytes(in_.u8() % 80);
        a.reject(now_, id, static_cast<RejReason>(in_.u8()), info, data());
        return;
      }
      case mra: {
        const CommId id = pick(h);
        const std::uint8_t code = in_.u8();
        a.mra(now_, id, code & 63, data(), (code & 0x80) != 0);
        return;
      }
      case disconnect:
        a.disconnect(now_, pick(h), data());
        return;
      case confirm:
        a.confirm_disconnect(now_, pick(h), data());
        return;
      case destroy:
        return give_back(h, pick(h));
      case drop: {
        const CommId id = pick(h);
        if (a.drop(id) == Result::ok) std::erase(h.ids, id);
        return;
      }
      case establish:
        a.establish(now_, pick(h));
        return;
      case sidr_request:
        return resolve(h, peer);
      case sidr_reply: {
        SidrRepParams p;
        const CommId id = pick(h);
        p.qpn = in_.u8();
        p.private_data = data();
        a.sidr_reply(now_, id, p);
        return;
      }
      case raw:
        return made_up(h, peer);
      case time: {
        const unsigned shift = in_.u8() & 31;
        now_ += Nanos{1000} << shift;
        h.agent->on_timeout(now_);
        peer.agent->on_timeout(now_);
        return;
      }
      case poll:
        return events(h);
      case listen: {
        CommId id;
        if (a.listen(in_.u8(), in_.u8() & 1 ? ~std::uint64_t{0xF} : 0, &id) == Result::ok) h.ids.push_back(id);
        return;
      }
      case setup: {
        QpSetup s;
        a.qp_setup(pick(h), static_cast<QpTarget>(in_.u8() & 3), &s);
        return;
      }
      default:
        return network(h, peer, op);
    }
  }

  // Events that wait are of IDs that are never given back, unless polled: so poll first.
  void give_back(Host& h, CommId id) {
    const bool listener = h.agent->state(id) == State::listen;
    h.agent->destroy(now_, id);
    std::erase(h.ids, id);
    if (!listener) return;
    Event e;
    while (h.agent->poll_event(&e)) {
      FUZZ_CHECK(e.listener != id);  // its requests went with it
      if (e.kind == EventKind::req_received || e.kind == EventKind::sidr_req_received) h.ids.push_back(e.id);
    }
  }

  void check() {
    for (Host& h : hosts_) {
      FUZZ_CHECK(h.agent->size() <= kMaxIds);
      FUZZ_CHECK(h.ids.size() <= kMaxIds + 4);
    }
  }

  void finish() {
    for (Host& h : hosts_) {
      events(h);
      while (!h.ids.empty()) give_back(h, h.ids.back());
      Event e;
      FUZZ_CHECK(!h.agent->poll_event(&e));
    }
    // Every message is lost; each time-out comes. DREQs, then time-wait: a bounded number for each ID.
    for (Host& h : hosts_) {
      for (int i = 0; h.agent->next_timeout() != kNever; ++i) {
        FUZZ_CHECK(i < 1000);
        now_ = std::max(now_, h.agent->next_timeout());
        h.agent->on_timeout(now_);
      }
      FUZZ_CHECK(h.agent->size() == 0);
      mad::OutMad m;
      while (h.agent->poll_transmit(now_, &m)) {
      }
      Event e;
      FUZZ_CHECK(!h.agent->poll_event(&e));
    }
  }

  Reader& in_;
  std::array<Host, 2> hosts_;
  Nanos now_ = 1'000'000;
  Input buffer_;
};

// A connection from the first REQ to the last DREP, with `disturb` at each stage.
Input life(const Input& disturb, bool sidr) {
  constexpr std::uint8_t kB = 0x80;
  const auto add = [](Input& v, const Input& more) { v.insert(v.end(), more.begin(), more.end()); };
  Input v;
  if (sidr) {
    add(v, {sidr_request, 0, 0x10, 0, 3, 4, 'd', 'a', 't', 'a'});
    add(v, disturb);
    add(v, {deliver, kB | poll, kB | sidr_reply, 0, 5, 1, 'x'});
    add(v, disturb);
    add(v, {kB | deliver, poll, destroy, 0, kB | destroy, 0, time, 20});
    return v;
  }
  add(v, {connect, 1, 0, 1, 0, 9, 12, 12, 3, 8, 4, 'd', 'a', 't', 'a'});
  add(v, disturb);
  add(v, {deliver, kB | poll});
  add(v, disturb);
  add(v, {kB | accept, 0, 1, 2, 'o', 'k'});
  add(v, disturb);
  add(v, {kB | deliver, poll, ready, 0, 0, deliver, kB | poll});
  add(v, disturb);
  add(v, {disconnect, 0, 0, deliver, kB | poll, kB | confirm, 0, 0});
  add(v, disturb);
  add(v, {kB | deliver, poll, time, 20, poll, kB | poll});
  return v;
}

}  // namespace

std::vector<Input> seeds() {
  constexpr std::uint8_t kB = 0x80;
  const Input disturbances[] = {
      {},
      {repeat, kB | repeat},
      {lose, time, 14},
      {kB | lose, time, 14},
      {change, 25, 1},
      {change, 40, 0xFF},
      {kB | change, 56, 7},
      {destroy, 0},
      {kB | destroy, 0},
      {mra, 0, 0x82, 0, kB | mra, 0, 12, 0},
      {reject, 0, 2, 1, 2, 28, 0},
      {kB | reject, 0, 0, 28, 0},
      {kB | disconnect, 0, 0, kB | deliver, poll},
      {raw, 2, 5, 0, 0, 0, 4, 0, 0, 0, 0, 2},
      {raw, 2, 2, 0, 0, 0, 4, 0x80, 0, 0, 4, 2, kB | raw, 2, 9, 0, 0, 0, 0, 2},
      {time, 24},
      {establish, 0, kB | establish, 0, setup, 0, 2, kB | setup, 0, 3},
      {kB | drop, 0, repeat},
      {kB | destroy, 1, listen, 3, 0},
      {connect, 0, 0, 1, 0, 9, 12, 12, 3, 8, 0, deliver},
  };
  std::vector<Input> out;
  for (const Input& d : disturbances) {
    out.push_back(life(d, false));
    out.push_back(life(d, true));
  }
  return out;
}

}  // namespace softrnic::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  softrnic::fuzz::Reader in(data, size);
  softrnic::fuzz::World(in).run();
  return 0;
}
