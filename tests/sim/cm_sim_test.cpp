// Many connections between CM agents under a network that drops, duplicates, reorders and delays, in virtual time.
// SOFTRNIC_SIM_SEEDS sets how many seeds are run, SOFTRNIC_SIM_SEED runs a single one again.
#include <catch2/catch.hpp>

#include "tests/sim/cm_world.h"

namespace softrnic::sim {

TEST_CASE("Simulation: connections end established on both sides or on none", "[sim][cm]") {
  const bool single = std::getenv("SOFTRNIC_SIM_SEED") != nullptr;
  const std::uint64_t first = env_or("SOFTRNIC_SIM_SEED", 1);
  const std::uint64_t count = single ? 1 : env_or("SOFTRNIC_SIM_SEEDS", 400);
  CmTally sum;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    CmWorld world(seed);
    try {
      world.run();
    } catch (const SimFailure& f) {
      FAIL("seed " << seed << ", at " << world.now() << " ns: " << f.what()
                   << " (run it again with SOFTRNIC_SIM_SEED=" << seed << ")");
    }
    const CmTally& t = world.tally();
    sum.connects += t.connects;
    sum.established += t.established;
    sum.refused += t.refused;
    sum.timed_out += t.timed_out;
    sum.disconnected += t.disconnected;
    sum.resolved += t.resolved;
    sum.agreed += t.agreed;
  }
  WARN(sum.connects << " connects: " << sum.established << " established, " << sum.refused << " refused, "
                    << sum.timed_out << " timed out, " << sum.disconnected << " disconnected; " << sum.agreed
                    << " ends agreed; " << sum.resolved << " resolved");
  if (!single && count >= 20) CHECK((sum.established > 0 && sum.refused > 0 && sum.agreed > 0 && sum.resolved > 0));
}

}  // namespace softrnic::sim
