// RC, UC and UD under a network that drops, duplicates, reorders, corrupts and delays, in virtual time.
//
// One seed is one run: ten pairs of queue pairs of each transport between the hosts. SOFTRNIC_SIM_SEEDS
// sets how many seeds are run, SOFTRNIC_SIM_SEED runs a single one again.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/sim/sim_end.h"

namespace softrnic::sim {
namespace {

constexpr std::uint32_t kPairs = 10;      // of each transport
constexpr Nanos kLimit = 20'000'000'000;  // virtual time in which all is done

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : setup_(seed * 0x10001), world_(seed, faults()) {
    const std::uint32_t hosts = setup_.between(2, 3);
    for (std::uint32_t i = 0; i < hosts; ++i) {
      memories_.push_back(std::make_unique<HostMemory>(16u << 20));
      counters_.push_back(memories_.back()->allocate(8));
      memories_.back()->store64(counters_.back(), 0);
      srqs_.push_back(make_pool(32));
    }
    for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
      for (std::uint32_t i = 0; i < kPairs; ++i) add_pair(type, i);
    }
  }

  // Where a failure happened.
  std::string where() const {
    const EndConfig& c = ends_[current_]->config();
    return "end " + std::to_string(current_) + " (type " + std::to_string(static_cast<int>(c.type)) + ") at " +
           std::to_string(world_.now) + " ns";
  }

  void run() {
    Event e;
    while (!all_done()) {
      require(world_.next(&e), "nothing left to happen, but requests are open");
      require(e.time < kLimit, "stalled: requests open at the end of time");
      dispatch(e);
    }
    // Stragglers in the network find QPs that have nothing to do.
    const Nanos end = world_.now + 5'000'000;
    while (world_.next(&e) && e.time < end) {
      if (e.kind != Event::Kind::app) dispatch(e);
    }
    for (auto& x : ends_) x->shut_down();
    for (std::size_t i = 0; i < ends_.size(); i += 2) {
      ends_[i]->settle(*ends_[i + 1]);
      ends_[i + 1]->settle(*ends_[i]);
    }
    check_counters();
    for (auto& s : srqs_) {
      require(s->completed + s->queue->available() == s->posted.size(), "receive requests of an SRQ leaked");
    }
    for (auto& m : memories_) m->check();
  }

 private:
  LinkFaults faults() {
    LinkFaults f;
    // Some runs without any fault of a kind, so that it is not needed to make others work.
    auto some = [this](std::uint32_t max) { return setup_.below(3) == 0 ? 0 : setup_.below(max); };
    f.drop = some(40);
    f.duplicate = some(60);
    f.reorder = some(60);
    f.corrupt = some(20);
    f.delay = setup_.between(500, 30'000);
    f.jitter = setup_.below(20'000);
    f.reorder_delay = setup_.between(10'000, 200'000);
    return f;
  }

  static std::shared_ptr<RecvPool> make_pool(std::uint32_t depth) {
    auto p = std::make_shared<RecvPool>();
    p->queue = std::make_unique<RecvQueue>(depth, 4);
    return p;
  }

  void add_pair(QpType type, std::uint32_t index) {
    EndConfig c;
    c.type = type;
    c.mtu = setup_.below(4) == 0 ? 512 : 256;
    c.messages = setup_.between(4, 16);
    c.sq_depth = setup_.between(4, 12);
    c.rq_depth = setup_.between(1, 10);
    c.rd_atomic = setup_.between(1, 5);
    c.timeout = static_cast<std::uint8_t>(setup_.between(7, 9));
    c.min_rnr_timer = static_cast<std::uint8_t>(setup_.between(1, 8));
    c.sig_all = setup_.below(3) == 0;
    const auto a = setup_.below(static_cast<std::uint32_t>(memories_.size()));
    const auto b = (a + 1) % static_cast<std::uint32_t>(memories_.size());
    for (std::uint32_t side = 0; side < 2; ++side) {
      EndConfig mine = c;
      mine.rd_atomic = setup_.between(1, 5);
      mine.messages = setup_.between(4, 16);
      // Two of the RC pairs may end badly.
      if (type == QpType::rc && index == 0 && side == 0) mine.bad_request_at = setup_.below(mine.messages);
      if (type == QpType::rc && index == 1 && side == 0) mine.kill_at = setup_.below(mine.messages);
      const std::uint32_t host = side == 0 ? a : b;
      const bool srq = type != QpType::uc && index % 3 == 2;
      const auto number = static_cast<std::uint32_t>(ends_.size());
      ends_.push_back(std::make_unique<End>(world_, *memories_[host], number, mine,
                                            srq ? srqs_[host] : make_pool(c.rq_depth), srq));
      ends_.back()->counter = counters_[host];
      hosts_.push_back(host);
    }
    End& x = *ends_[ends_.size() - 2];
    End& y = *ends_[ends_.size() - 1];
    x.connect(y, y.counter);
    y.connect(x, x.counter);
  }

  void dispatch(const Event& e) {
    End& end = *ends_[e.who];
    current_ = e.who;
    switch (e.kind) {
      case Event::Kind::frame:
        end.on_frame(e);
        break;
      case Event::Kind::timer:
        end.on_timer();
        break;
      case Event::Kind::service:
        end.service();
        break;
      case Event::Kind::app:
        end.on_app();
        break;
    }
  }

  bool all_done() const {
    return std::all_of(ends_.begin(), ends_.end(), [](const auto& x) { return x->finished() || x->broken(); });
  }

  // Each FetchAdd of 1 on a host's counter saw another value; together they saw all of them.
  void check_counters() {
    for (std::uint32_t h = 0; h < memories_.size(); ++h) {
      std::vector<std::uint64_t> seen;
      bool uncertain = false;
      for (std::size_t i = 0; i < ends_.size(); ++i) {
        if (hosts_[i ^ 1] != h) continue;
        const auto& v = ends_[i]->fetch_add_originals;
        seen.insert(seen.end(), v.begin(), v.end());
        uncertain = uncertain || ends_[i]->broken();
      }
      std::sort(seen.begin(), seen.end());
      require(std::adjacent_find(seen.begin(), seen.end()) == seen.end(), "two FetchAdds saw the same value");
      const std::uint64_t value = memories_[h]->load64(counters_[h]);
      require(value >= seen.size() && (uncertain || value == seen.size()), "FetchAdds were not executed exactly once");
      require(seen.empty() || seen.back() < value, "a FetchAdd saw a value that never was");
      memories_[h]->expect64(counters_[h], value);
    }
  }

  std::uint32_t current_ = 0;
  Rng setup_;
  World world_;
  std::vector<std::unique_ptr<HostMemory>> memories_;
  std::vector<std::size_t> counters_;
  std::vector<std::shared_ptr<RecvPool>> srqs_;
  std::vector<std::unique_ptr<End>> ends_;
  std::vector<std::uint32_t> hosts_;
};

}  // namespace

TEST_CASE("Simulation: RC, UC and UD keep their promises on a bad network", "[sim]") {
  const bool single = std::getenv("SOFTRNIC_SIM_SEED") != nullptr;
  const std::uint64_t first = env_or("SOFTRNIC_SIM_SEED", 1);
  const std::uint64_t count = single ? 1 : env_or("SOFTRNIC_SIM_SEEDS", 4000);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Simulation simulation(seed);
    try {
      simulation.run();
    } catch (const SimFailure& f) {
      FAIL("seed " << seed << ", " << simulation.where() << ": " << f.what()
                   << " (run it again with SOFTRNIC_SIM_SEED=" << seed << ")");
    }
  }
}

}  // namespace softrnic::sim
