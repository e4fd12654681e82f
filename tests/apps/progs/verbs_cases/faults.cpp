// Operations whose packets are disturbed from outside: what the two sides see is printed for the test to judge.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "case.h"

namespace vc {

namespace {

constexpr size_t kSize = 65536;
constexpr uint64_t kBefore = 40;  // value of the word that atomics work on

// One operation, and how the test wants it.
struct Scenario {
  std::string op;
  size_t length;
  uint8_t timeout;
};

Scenario scenario_of(const Args& args) {
  CHECK_EQ(args.size(), 3);
  return {args[0], std::strtoul(args[1].c_str(), nullptr, 0),
          static_cast<uint8_t>(std::strtoul(args[2].c_str(), nullptr, 0))};
}

ConnectOptions options_of(const Scenario& s) {
  ConnectOptions o;
  o.timeout = s.timeout;
  o.min_rnr_timer = 18;  // 4.1 ms
  return o;
}

void print_completion(const char* who, const ibv_wc& wc) {
  std::printf("%s: wr %llu %s\n", who, static_cast<unsigned long long>(wc.wr_id), ibv_wc_status_str(wc.status));
}

void print_end(const char* who, Endpoint& ep) {
  ibv_wc wc{};
  if (ibv_poll_cq(ep.scq, 1, &wc) == 1 || ibv_poll_cq(ep.rcq, 1, &wc) == 1) print_completion(who, wc);
  std::printf("%s: %s\n", who, ep.state() == IBV_QPS_RTS ? "RTS" : ep.state() == IBV_QPS_ERR ? "ERR" : "other state");
  std::fflush(stdout);
}

// Returns when the test says so: it closes our standard input.
void wait_for_word() {
  char c = 0;
  while (read(STDIN_FILENO, &c, 1) > 0) {
  }
}

void post_operation(Endpoint& ep, const Scenario& s, const Buffer& b, const Address& remote) {
  if (s.op == "send" || s.op == "rnr") return ep.send(1, b, 0, s.length);
  if (s.op == "write") return ep.write(1, b, 0, s.length, remote);
  if (s.op == "read") return ep.read(1, b, 0, s.length, remote);
  if (s.op == "fetch_add") return ep.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, b, 0, remote, 0, 2);
  fail(__FILE__, __LINE__, "unknown operation " + s.op);
}

void requester(Peer& peer, const Scenario& s) {
  Device d;
  Buffer b(d, kSize);
  Endpoint ep(d);
  Address remote;
  b.fill(1);
  ep.connect(peer, &b, &remote, options_of(s));
  post_operation(ep, s, b, remote);
  const ibv_wc wc = ep.wait_send();
  print_completion("requester", wc);
  if (wc.status == IBV_WC_SUCCESS && s.op == "read") CHECK_EQ(b.mismatch(2, 0, s.length), -1);
  if (wc.status == IBV_WC_SUCCESS && s.op == "fetch_add") {
    uint64_t old = 0;
    std::memcpy(&old, b.data, sizeof(old));
    CHECK_EQ(old, kBefore);
  }
  peer.send(wc.status);
  peer.barrier();
  print_end("requester", ep);
}

void responder(Peer& peer, const Scenario& s) {
  Device d;
  Buffer b(d, kSize);
  Endpoint ep(d);
  const ConnectOptions o = options_of(s);
  b.fill(2);
  if (s.op == "fetch_add") std::memcpy(b.data, &kBefore, sizeof(kBefore));
  ep.to_init(o.access);
  if (s.op == "send") ep.post_recv(7, b, 0, kSize);
  peer.send(ep.address(&b));
  const Address remote = peer.receive<Address>();
  ep.to_rtr(remote, o);
  ep.to_rts(o);
  peer.barrier();
  if (s.op == "rnr") {
    wait_for_word();
    ep.post_recv(7, b, 0, kSize);
  }
  if (s.op == "send" || s.op == "rnr") print_completion("responder", ep.wait_recv());
  if (peer.receive<ibv_wc_status>() == IBV_WC_SUCCESS) {
    if (s.op != "read" && s.op != "fetch_add") CHECK_EQ(b.mismatch(1, 0, s.length), -1);
    if (s.op == "fetch_add") {
      uint64_t value = 0;
      std::memcpy(&value, b.data, sizeof(value));
      CHECK_EQ(value, kBefore + 2);  // once
    }
  }
  peer.barrier();
  print_end("responder", ep);
}

}  // namespace

VERBS_CASE(fault_exchange, "OP LENGTH TIMEOUT: one operation between two processes, for the tests of faults") {
  const Scenario s = scenario_of(args);
  run_roles({[&](Peer& peer, Peer&) { requester(peer, s); }, [&](Peer& peer, Peer&) { responder(peer, s); }});
}

}  // namespace vc
