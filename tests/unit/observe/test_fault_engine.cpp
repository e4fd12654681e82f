// Matching and applying: which packets, in which order, with which bytes.
#include "tests/unit/observe/fault_frames.h"

using namespace softrnic;
using namespace softrnic::test;

namespace {

// Sends a message of `count` packets.
void send_message(Bench& b, std::uint32_t psn, std::uint32_t count, std::uint8_t first = op::kSendFirst) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint8_t code = count == 1
                                  ? static_cast<std::uint8_t>(first == op::kReadFirst ? op::kReadOnly : op::kSendOnly)
                                  : static_cast<std::uint8_t>(first + (i == 0          ? 0
                                                                       : i + 1 < count ? 1
                                                                                       : 2));
    b.send({.opcode = code, .psn = (psn + i) & 0xFFFFFF});
  }
}

bool valid(const std::vector<std::uint8_t>& frame) {
  roce::RxFrame rx;
  return roce::parse(frame, &rx) == roce::FrameError::none && roce::icrc_ok(rx);
}

}  // namespace

TEST_CASE("Without a rule that matches packets pass unchanged", "[fault]") {
  Bench b({"drop if qp=0x2000"});
  b.send({.psn = 1});
  REQUIRE(b.out.size() == 1);
  CHECK(b.out[0].comment.empty());
  CHECK(b.out[0].frame == make_packet({.psn = 1}));
  CHECK(b.out[0].to == std::vector<std::uint16_t>{2});
  CHECK(b.events.empty());
}

TEST_CASE("drop PSN 5 of the first READ response once", "[fault]") {
  Bench b({"drop if op=read-response msg=1 psn=msg+5 once"});
  send_message(b, 100, 8);  // SENDs do not matter
  send_message(b, 0xFFFFFD, 8, op::kReadFirst);
  CHECK(b.dropped() == Psns{2});
  // The READ is answered again from there, and another one follows.
  send_message(b, 2, 3, op::kReadFirst);
  send_message(b, 5, 8, op::kReadFirst);
  CHECK(b.dropped() == Psns{2});
  REQUIRE(b.events.size() == 1);
  CHECK(b.events[0].what == "dropped");
  CHECK(b.events[0].psn == 2);
  CHECK(b.events[0].dest_qpn == 0x1001);
  CHECK(b.out[8 + 5].comment == "fault 1: dropped");
}

TEST_CASE("Messages are counted for each flow and kind; what is sent again keeps its number", "[fault]") {
  Bench b({"drop if op=send msg=2"});
  send_message(b, 10, 3);
  b.send({.opcode = op::kWriteFirst, .psn = 13});
  send_message(b, 14, 2);
  b.send({.psn = 16});
  CHECK(b.dropped() == Psns{14, 15});
  send_message(b, 10, 3);  // a go-back over both
  send_message(b, 14, 2);
  CHECK(b.dropped() == Psns{14, 15, 14, 15});
  // Another destination has its own count.
  b.send({.psn = 90, .qpn = 0x1002});
  CHECK(b.dropped().size() == 4);
  b.send({.psn = 91, .qpn = 0x1002});
  CHECK(b.dropped().size() == 5);
  // So has another source.
  b.send({.psn = 92, .qpn = 0x1002}, 7);
  CHECK(b.dropped().size() == 5);
}

TEST_CASE("PSNs relative to the first one of the flow; requests and responses have their own", "[fault]") {
  Bench b({"drop if psn=+2"});
  b.send({.psn = 0xFFFFFF});
  b.send_frame(ack(500));
  b.send({.psn = 0});
  b.send({.psn = 1});
  b.send_frame(ack(502));
  b.send({.psn = 2});
  CHECK(b.dropped() == Psns{1, 502});
}

TEST_CASE("A message that began before the rule has no number", "[fault]") {
  Bench b({"drop if op=send psn=msg+0-msg+9"});
  b.send({.opcode = op::kSendMiddle, .psn = 5});
  b.send({.opcode = op::kSendLast, .psn = 6});
  b.send({.opcode = op::kSendFirst, .psn = 7});
  CHECK(b.dropped() == Psns{7});
}

TEST_CASE("Conditions on source, destination, operation and fields", "[fault]") {
  SECTION("source") {
    Bench b({"drop if from=vf3"});
    b.send({.psn = 1}, 3);
    b.send({.psn = 2}, 4);
    CHECK(b.dropped() == Psns{1});
  }
  SECTION("destination") {
    Bench b({"drop if to=vf3", "drop if to=port*"});
    b.send({.psn = 1}, 1, 3);
    b.send({.psn = 2}, 1, 4);
    CHECK(b.dropped() == Psns{1});
  }
  SECTION("acknowledgements by syndrome") {
    Bench b({"drop if op=rnr-nak", "drop if op=nak"});
    b.send_frame(ack(1));
    b.send_frame(ack(2, 0x2C));
    b.send_frame(ack(3, 0x60));
    b.send_frame(ack(4, 0xE2));  // bit 7 is reserved
    b.send_frame(ack(5, 0x7F));
    CHECK(b.dropped() == Psns{2, 3, 4, 5});
    CHECK(b.events[0].rule == 1);
    CHECK(b.events[1].rule == 2);
  }
  SECTION("a field that only some packets have") {
    Bench b({"drop if aeth.msn=1"});
    b.send({.psn = 1});
    b.send_frame(ack(2));
    CHECK(b.dropped() == Psns{2});
  }
}

TEST_CASE("nth, every, times count the packets that match", "[fault]") {
  Bench b({"drop if op=send nth=2-3", "drop if op=send nth=6", "ecn if op=send every=4 times=1"});
  for (std::uint32_t i = 1; i <= 9; ++i) {
    b.send_frame(ack(100 + i));
    b.send({.psn = i});
  }
  CHECK(b.dropped() == Psns{2, 3, 6});
  const auto list = b.engine.list();
  CHECK(list[0].matched == 9);
  CHECK(list[0].applied == 2);
  CHECK(list[1].applied == 1);
  CHECK(list[2].applied == 1);
  CHECK(list[2].left == 0);
}

TEST_CASE("A probability hits the same packets for the same seed", "[fault]") {
  const auto run = [](const std::string& text) {
    Bench b({text});
    for (std::uint32_t i = 0; i < 20000; ++i) b.send({.psn = i});
    return b.dropped();
  };
  const Psns one = run("drop if prob=5% seed=1");
  CHECK(one == run("drop if prob=5%"));
  CHECK(one != run("drop if prob=5% seed=2"));
  CHECK(one.size() > 850);
  CHECK(one.size() < 1150);
  CHECK(one[0] == 3);  // for good: scripts may rely on it
  CHECK(run("drop if prob=0").empty());
  CHECK(run("drop if prob=100%").size() == 20000);
}

TEST_CASE("duplicate sends copies right behind the packet", "[fault]") {
  Bench b({"duplicate 2 if nth=1"});
  b.send({.psn = 1});
  b.send({.psn = 2});
  CHECK(b.psns() == Psns{1, 1, 1, 2});
  CHECK(b.out[0].comment == "fault 1: duplicated, 2 copies");
  CHECK(b.out[1].comment == "fault 1: duplicated, 2 copies (copy)");
}

TEST_CASE("delay holds a packet back for its time", "[fault]") {
  Bench b({"delay 10ms if nth=1-2"});
  b.send({.psn = 1});
  b.advance(1'000'000);
  b.send({.psn = 2});
  b.send({.psn = 3});
  CHECK(b.psns() == Psns{3});
  CHECK(b.engine.next_timeout() == b.now + 9'000'000);
  b.advance(8'999'999);
  CHECK(b.psns() == Psns{3});
  b.advance(1);
  CHECK(b.psns() == Psns{3, 1});
  b.advance(1'000'000);
  CHECK(b.psns() == Psns{3, 1, 2});
  CHECK(b.out[1].comment == "fault 1: delayed by 10 ms");
  CHECK(b.out[1].to == std::vector<std::uint16_t>{2});
  CHECK(b.engine.next_timeout() == kNever);
}

TEST_CASE("reorder lets later packets of the flow pass, or the time", "[fault]") {
  Bench b({"reorder 2 5ms if nth=1"});
  b.send({.psn = 1});
  b.send({.psn = 7, .qpn = 0x1002});  // another flow
  b.send({.psn = 2});
  CHECK(b.psns() == Psns{7, 2});
  b.send({.psn = 3});
  CHECK(b.psns() == Psns{7, 2, 3, 1});
  b.advance(10'000'000);
  CHECK(b.psns().size() == 4);

  Bench late({"reorder 2 5ms if nth=1"});
  late.send({.psn = 1});
  late.send({.psn = 2});
  late.advance(5'000'000);
  CHECK(late.psns() == Psns{2, 1});
  late.send({.psn = 3});
  CHECK(late.psns() == Psns{2, 1, 3});
}

TEST_CASE("corrupt inverts one bit, and the receiver sees it or not", "[fault]") {
  const auto clean = make_packet({.psn = 1});
  SECTION("a given bit") {
    Bench b({"corrupt payload:9"});
    b.send({.psn = 1});
    auto expected = clean;
    expected[42 + 12 + 1] ^= 0x40;
    CHECK(b.out[0].frame == expected);
    CHECK_FALSE(valid(b.out[0].frame));
    CHECK(b.out[0].comment == "fault 1: bit 6 of byte 55 inverted");
  }
  SECTION("with a right ICRC") {
    Bench b({"corrupt payload:9 recompute"});
    b.send({.psn = 1});
    CHECK(valid(b.out[0].frame));
    CHECK(b.out[0].frame[55] == (clean[55] ^ 0x40));
  }
  SECTION("a random bit, the same for the same seed") {
    const auto run = [](const std::string& text) {
      Bench b({text});
      for (std::uint32_t i = 0; i < 50; ++i) b.send({.psn = i});
      std::vector<std::vector<std::uint8_t>> frames;
      for (const auto& o : b.out) frames.push_back(o.frame);
      return frames;
    };
    const auto one = run("corrupt if seed=5");
    CHECK(one == run("corrupt if seed=5"));
    CHECK(one != run("corrupt if seed=6"));
    for (std::size_t i = 0; i < one.size(); ++i) {
      const auto before = make_packet({.psn = static_cast<std::uint32_t>(i)});
      int bits = 0;
      for (std::size_t k = 0; k < before.size(); ++k) {
        const int changed = __builtin_popcount(static_cast<unsigned>(before[k] ^ one[i][k]));
        bits += changed;
        if (changed != 0) CHECK(k >= 42);
      }
      CHECK(bits == 1);
    }
  }
  SECTION("a bit that the packet does not have") {
    Bench b({"corrupt payload:9"});
    b.send_frame(ack(1));
    CHECK(b.out[0].comment.empty());
    CHECK(b.engine.list()[0].matched == 0);
  }
}

TEST_CASE("truncate cuts, with lengths as they were or made right", "[fault]") {
  for (const Framing f : kFramings) {
    CAPTURE(name_of(f));
    const auto clean = make_packet({.psn = 1, .framing = f});
    Bench cut({"truncate -4"});
    cut.send({.psn = 1, .framing = f});
    CHECK(cut.out[0].frame == std::vector<std::uint8_t>(clean.begin(), clean.end() - 4));
    Bench right({"truncate -4 recompute"});
    right.send({.psn = 1, .framing = f});
    CHECK(right.out[0].frame.size() == clean.size() - 4);
    CHECK(valid(right.out[0].frame));
    Bench head({"truncate 14 recompute", "set bth.psn=9", "ecn"});
    head.send({.psn = 1, .framing = f});
    CHECK(head.out[0].frame.size() == 14);
    CHECK(head.events.size() == 1);  // there is nothing left to be changed
  }
}

TEST_CASE("ecn marks a packet, whose ICRC does not cover the mark", "[fault]") {
  for (const Framing f : kFramings) {
    CAPTURE(name_of(f));
    Bench b({"ecn"});
    b.send({.psn = 1, .framing = f});
    roce::RxFrame rx;
    REQUIRE(roce::parse(b.out[0].frame, &rx) == roce::FrameError::none);
    CHECK((rx.traffic_class & 3) == 3);
    CHECK((rx.traffic_class >> 2) == 0x6A >> 2);
    CHECK(roce::icrc_ok(rx));
    const auto clean = make_packet({.psn = 1, .framing = f});
    CHECK(std::equal(clean.end() - 4, clean.end(), b.out[0].frame.end() - 4));
  }
}

TEST_CASE("set changes fields, and the packet stays valid", "[fault]") {
  Bench b({"set bth.psn=+5 bth.ackreq=1 ip.ttl=3 if op=send", "set aeth.syndrome=0x62 aeth.msn=-2 if op=ack"});
  b.send({.psn = 0xFFFFFE});
  CHECK(b.psns() == Psns{3});
  CHECK(valid(b.out[0].frame));
  CHECK(b.out[0].frame[42 + 8] == 0x80);
  CHECK(b.out[0].frame[14 + 8] == 3);
  CHECK(b.out[0].comment == "fault 1: bth.psn 0xfffffe set to 0x3, bth.ackreq 0x0 set to 0x1, ip.ttl 0x11 set to 0x3");
  CHECK(b.events[0].psn == 0xFFFFFE);  // as it came
  b.send_frame(ack(9));
  CHECK(valid(b.out[1].frame));
  CHECK(std::vector<std::uint8_t>(b.out[1].frame.begin() + 54, b.out[1].frame.begin() + 58) ==
        std::vector<std::uint8_t>{0x62, 0xFF, 0xFF, 0xFF});
}

TEST_CASE("A corrupted packet that another rule changes stays corrupted", "[fault]") {
  for (const char* change : {"ecn", "set bth.psn=+1"}) {
    CAPTURE(change);
    Bench b({"corrupt payload:9", change});
    b.send({.psn = 1});
    CHECK(b.events.size() == 2);
    CHECK_FALSE(valid(b.out[0].frame));
  }
}

TEST_CASE("Several rules: all look at the packet as it came, changes add up, a drop ends it", "[fault]") {
  Bench b({"set bth.pkey=1", "ecn if bth.pkey=0xffff", "drop if nth=2 once", "duplicate if times=2"});
  for (std::uint32_t i = 1; i <= 3; ++i) b.send({.psn = i});
  CHECK(b.psns() == Psns{1, 1, 3, 3});
  CHECK(b.dropped() == Psns{2});
  CHECK(b.out[0].comment ==
        "fault 1: bth.pkey 0xffff set to 0x1; fault 2: marked as congestion experienced; fault 4: duplicated");
  CHECK(b.engine.list()[3].applied == 2);  // not used up by the dropped one
}

TEST_CASE("A rule that is removed lets go what it held back", "[fault]") {
  Bench b({"delay 10s", "delay 1s if qp=0x1002"});
  b.send({.psn = 1});
  b.send({.psn = 2});
  CHECK(b.psns().empty());
  REQUIRE(b.engine.remove(1));
  CHECK_FALSE(b.engine.remove(1));
  CHECK_FALSE(b.engine.idle());
  b.advance(0);
  CHECK(b.psns() == Psns{1, 2});
  REQUIRE(b.engine.remove(2));
  CHECK(b.engine.idle());
  CHECK(b.engine.add(rule("drop")) == 3);
}

TEST_CASE("What is held back for a VF that is gone is dropped", "[fault]") {
  Bench b({"delay 10ms"});
  b.send({.psn = 1}, 1, 2);
  b.send({.psn = 2}, 1, 3);
  b.send({.psn = 3}, 2, 1);
  b.engine.forget(2);
  b.advance(10'000'000);
  CHECK(b.psns() == Psns{2, 3});
}

TEST_CASE("What is held back is bounded", "[fault]") {
  Bench b({"delay 60s"});
  const auto big = make_packet({.rest = std::vector<std::uint8_t>(4096)});
  const std::size_t fits = observe::FaultEngine::kMaxHeldBytes / big.size();
  for (std::size_t i = 0; i < fits + 3; ++i) b.send_frame(big);
  CHECK(b.out.size() == 3);
  CHECK(b.dropped().size() == 3);
  CHECK_THAT(b.out[0].comment, Catch::EndsWith("dropped: 64 MiB are held back already"));
}

TEST_CASE("Frames that are no RoCE packets pass", "[fault]") {
  Bench b({"drop"});
  std::vector<std::uint8_t> arp(60);
  arp[12] = 8;
  arp[13] = 6;
  b.send_frame(arp);
  REQUIRE(b.out.size() == 1);
  CHECK_FALSE(b.out[0].dropped);
}

TEST_CASE("Flows are bounded in number, the oldest are forgotten", "[fault]") {
  observe::FlowTracker t;
  const auto observe_one = [&](std::uint32_t qpn, std::uint32_t psn) {
    auto frame = make_packet({.psn = psn, .qpn = qpn});
    observe::Packet p;
    REQUIRE(p.parse(frame));
    return t.observe({1, sw::kNoUplink}, p);
  };
  CHECK(observe_one(0, 10).first_psn == 10);
  CHECK(observe_one(0, 11).message == 2);
  for (std::uint32_t qpn = 1; qpn <= observe::FlowTracker::kMaxFlows; ++qpn) observe_one(qpn, 1);
  CHECK(observe_one(0, 12).first_psn == 12);
}
