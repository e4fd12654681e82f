#include <catch2/catch.hpp>

#include "engine/observe/event_log.h"
#include "engine/observe/packet_filter.h"
#include "tests/unit/roce/frames.h"

using namespace softrnic;
using namespace softrnic::test;
using observe::EventLog;

TEST_CASE("Events are lines of JSON with a number", "[events]") {
  EventLog log;
  CHECK(log.last() == 0);
  CHECK(log.read(0, 1000).lines.empty());
  log.add(5, "vf-attached", {{"vf", 3}, {"comm", std::string("a\"b\xff")}}, "vf3 attached");
  const auto batch = log.read(0, 1000);
  CHECK(batch.lines ==
        "{\"number\":1,\"time\":5,\"event\":\"vf-attached\",\"vf\":3,\"comm\":\"a\\\"b\\ufffd\",\"text\":\"vf3 "
        "attached\"}\n");
  CHECK(batch.last == 1);
  CHECK(log.read(1, 1000).last == 1);
  CHECK(log.read(7, 1000).last == 7);
}

TEST_CASE("Only the newest events are kept, and who missed some learns it", "[events]") {
  EventLog log(3);
  for (int i = 0; i < 5; ++i) log.add(0, "x", {}, "");
  const auto batch = log.read(0, 100000);
  CHECK(batch.missed == 2);
  CHECK(batch.last == 5);
  CHECK(log.read(3, 100000).missed == 0);
  // In parts, one event at least.
  const auto part = log.read(0, 1);
  CHECK(part.last == 3);
  CHECK(log.read(3, 1).last == 4);
}

TEST_CASE("Capture filters are libpcap's", "[capture]") {
  std::string why;
  const auto udp = observe::PacketFilter::compile("udp port 4791 and src host 10.0.0.1", &why);
  REQUIRE(udp);
  CHECK(udp->matches(frame_of(Framing::v2_ipv4)));
  CHECK_FALSE(udp->matches(frame_of(Framing::v1)));
  CHECK(observe::PacketFilter::compile("udp prot 4791", &why) == nullptr);
  CHECK(why.find("syntax error") != std::string::npos);
}
