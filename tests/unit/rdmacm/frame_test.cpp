// Management datagrams as frames, and their way through the eSwitch's classifier.
#include "engine/switch/classifier.h"
#include "tests/unit/rdmacm/world.h"

namespace softrnic::rdmacm {
namespace {

mad::OutMad mad_to(const World& world, std::uint32_t from_index, const Gid& to) {
  mad::OutMad m{};
  for (std::size_t i = 0; i < m.data.size(); ++i) m.data[i] = static_cast<std::uint8_t>(i);
  m.route.local_gid = world.config.gids[from_index].gid;
  m.route.remote_gid = to;
  m.route.hop_limit = 64;
  m.route.context = context_of(0, from_index);
  return m;
}

TEST_CASE("IBA 13.5.3: a MAD comes out of its frame as it went in", "[rdmacm]") {
  World world;
  for (std::uint32_t index = 0; index < world.config.gids.size(); ++index) {
    INFO("GID " << index);
    const mad::OutMad m = mad_to(world, index, world.config.gids[index].gid);
    std::vector<std::uint8_t> frame;
    REQUIRE(build_mad_frame(world.gids(), m, &frame));
    mad::MadRoute route;
    Bytes mad;
    REQUIRE(parse_mad_frame(world.gids(), frame, &route, &mad));
    CHECK(std::equal(mad.begin(), mad.end(), m.data.begin(), m.data.end()));
    CHECK(route.local_gid == m.route.remote_gid);
    CHECK(route.remote_gid == m.route.local_gid);
    CHECK(route.context == m.route.context);
    CHECK(route.remote_qpn == 1);
    CHECK(route.hop_limit == 64);
  }
}

TEST_CASE("IBA 13.5.3.1: what is no MAD for one of our addresses is not taken", "[rdmacm]") {
  World world;
  std::vector<std::uint8_t> frame;
  mad::MadRoute route;
  Bytes mad;
  REQUIRE(build_mad_frame(world.gids(), mad_to(world, 3, world.config.gids[3].gid), &frame));
  SECTION("a bad ICRC") {
    frame.back() ^= 1;
    CHECK_FALSE(parse_mad_frame(world.gids(), frame, &route, &mad));
  }
  SECTION("every shorter frame") {
    for (std::size_t n = 0; n < frame.size(); ++n)
      CHECK_FALSE(parse_mad_frame(world.gids(), Bytes(frame).first(n), &route, &mad));
  }
  SECTION("another Q_Key") {
    frame[frame.size() - 4 - mad::kMadSize - 8] ^= 1;
    CHECK_FALSE(parse_mad_frame(world.gids(), frame, &route, &mad));
  }
  SECTION("for somebody else") {
    Gid other = world.config.gids[3].gid;
    other.raw[15] ^= 1;
    REQUIRE(build_mad_frame(world.gids(), mad_to(world, 3, other), &frame));
    CHECK_FALSE(parse_mad_frame(world.gids(), frame, &route, &mad));
  }
  SECTION("from an address that is gone") {
    mad::OutMad m = mad_to(world, 3, world.config.gids[3].gid);
    world.config.gids[3].gid = Gid{};
    CHECK_FALSE(build_mad_frame(world.gids(), m, &frame));
  }
}

TEST_CASE("IBA 13.5.3: queue pair 1 is the NIC process's own", "[rdmacm]") {
  World world;
  auto table = std::make_unique<dp::BlockTable>();
  sw::Classifier classifier(*table);
  const Gid own = world.config.gids[3].gid;
  Gid other = own;
  other.raw[15] ^= 1;
  classifier.set_addresses({{own, 0, sw::kNoVlan}});
  std::vector<std::uint8_t> here, away;
  REQUIRE(build_mad_frame(world.gids(), mad_to(world, 3, own), &here));
  REQUIRE(build_mad_frame(world.gids(), mad_to(world, 3, other), &away));

  sw::Verdict v = classifier.classify_own(here);
  CHECK(v.kind == sw::Verdict::Kind::forward);
  CHECK(v.gsi);
  CHECK(v.uplink == sw::kNoUplink);
  v = classifier.classify_own(away);
  CHECK_FALSE(v.gsi);
  CHECK(v.uplink == 0);
  // Programs do not get there: their packets come from queue pairs of theirs.
  v = classifier.classify(here, 5);
  CHECK(v.kind == sw::Verdict::Kind::bad_source);
  // From the network: not with our own address as the source.
  CHECK(classifier.classify_from(here, 0).kind == sw::Verdict::Kind::bad_source);
  classifier.set_addresses({{other, 0, sw::kNoVlan}});
  v = classifier.classify_from(away, 0);
  CHECK(v.kind == sw::Verdict::Kind::forward);
  CHECK(v.gsi);
}

}  // namespace
}  // namespace softrnic::rdmacm
