// The fault language under arbitrary text, and the rules it gives under frames.
//
// Text up to the first zero byte: rules, as in a file. Then frames, each behind its length (two bytes) and a byte that
// says where it comes from and how much time has passed.
#include <algorithm>
#include <cstring>
#include <string>

#include "engine/observe/fault_engine.h"
#include "engine/observe/fault_parser.h"
#include "protocols/roce/framing.h"
#include "protocols/wire/bth.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/frames.h"

namespace softrnic::fuzz {
namespace {

constexpr std::size_t kMaxRules = 8;
constexpr std::uint64_t kMaxFrames = 32, kMaxCopies = 100;

struct Sink final : sw::FrameSink {
  void pass(const sw::Passing& p) override {
    FUZZ_CHECK(p.frame.size() <= dp::kMaxFrame);
    // Read, so that a sanitizer sees what is not there.
    for (const std::uint8_t b : p.frame) sum += b;
    for (const char c : p.comment) sum += static_cast<std::uint8_t>(c);
    ++passed;
  }
  std::uint64_t passed = 0, sum = 0;
};

std::vector<observe::FaultRule> parse(const std::string& text) {
  std::vector<observe::FaultRule> rules;
  std::string why;
  if (!observe::parse_fault_rules(text, &rules, &why)) {
    FUZZ_CHECK(why.find("column") != std::string::npos || why == "there is no rule");
    return {};
  }
  for (const observe::FaultRule& r : rules) {
    // What is shown of a rule makes the same one again.
    observe::FaultRule again;
    FUZZ_CHECK(observe::parse_fault_rule(r.text, &again, &why));
    FUZZ_CHECK(again.text == r.text && again.action.kind == r.action.kind && again.match.times == r.match.times);
  }
  return rules;
}

void disturb(std::vector<observe::FaultRule> rules, Reader& in) {
  std::uint64_t applied = 0;
  observe::FaultEngine engine([&](const observe::FaultEvent& e) {
    FUZZ_CHECK(!e.what.empty());
    ++applied;
  });
  for (observe::FaultRule& r : rules) {
    if (engine.size() == kMaxRules || r.action.copies > kMaxCopies) break;
    engine.add(std::move(r));
  }
  Sink sink;
  Nanos now = 1'000'000'000;
  for (std::uint64_t n = 0; n < kMaxFrames && !in.empty(); ++n) {
    const std::uint8_t how = in.u8();
    Input frame = in.bytes(in.u16());
    roce::RxFrame rx;
    if (roce::parse(frame, &rx) != roce::FrameError::none) continue;  // the switch asks for no others
    now += Nanos{how & 0x1Fu} * 10'000'000;
    if (engine.next_timeout() <= now) engine.on_timeout(now, sink);
    const std::uint16_t to[] = {2};
    sw::Passing p;
    p.from.vf = how & 0x80 ? 1 : dp::kNoVf;
    if (p.from.vf == dp::kNoVf) p.from.uplink = 0;
    p.to.kind = sw::Verdict::Kind::forward;
    p.to.destinations = to;
    p.frame = frame;
    engine.on_frame(now, p, sink);
  }
  engine.forget(2);
  // Nothing is held back for ever.
  while (engine.next_timeout() != kNever) engine.on_timeout(engine.next_timeout(), sink);
  for (const observe::FaultStatus& s : engine.list()) {
    FUZZ_CHECK(s.applied <= s.matched);
    applied -= s.applied;
    FUZZ_CHECK(engine.remove(s.id));
  }
  FUZZ_CHECK(applied == 0);
  FUZZ_CHECK(engine.idle());
}

Input frame_of(std::uint8_t opcode, std::size_t payload, std::uint32_t psn) {
  roce::PathParams path;
  path.sgid.raw[10] = path.sgid.raw[11] = path.dgid.raw[10] = path.dgid.raw[11] = 0xFF;
  path.sgid.raw[15] = 1;
  path.dgid.raw[15] = 2;
  Input transport(wire::kBthSize + payload);
  wire::Bth bth;
  bth.opcode = opcode;
  bth.psn = psn;
  bth.dest_qpn = 0x1011;
  bth.write(transport.data());
  return make_frame(roce::HeaderTemplate(path), transport);
}

}  // namespace

std::vector<Input> seeds() {
  static constexpr const char* kTexts[] = {
      "drop if op=read-response msg=1 psn=msg+5 once",
      "drop if prob=1% seed=7\n# comment\n\nduplicate 3 if nth=2",
      "delay 15us if from=vf1 to=vf*\nreorder 4 5ms if to=vf2",
      "corrupt payload:17 recompute if every=2",
      "corrupt if op=rc.send.only,0x11 qp=0x1001,5-0x2000",
      "truncate -5 recompute if psn=+0-+3\ntruncate 60",
      "ecn if from=port0 times=3",
      "set bth.psn=+1 reth.rkey=0x12345678 aeth.syndrome=0x60 if bth.opcode=4-17",
      "drop if op=uc.write.last.imm,rnr-nak,nak,atomic-ack msg=2-9",
  };
  std::vector<Input> out;
  for (const char* text : kTexts) {
    Input v(text, text + std::strlen(text));
    v.push_back(0);
    std::uint32_t psn = 0;
    for (const std::uint8_t opcode : {0x04, 0x00, 0x01, 0x02, 0x0A, 0x0C, 0x0D, 0x0F, 0x11, 0x12, 0x13, 0x64}) {
      const Input f = frame_of(opcode, 32 + opcode % 4u * 4u, psn++);
      v.push_back(static_cast<std::uint8_t>(opcode % 2 << 7 | opcode % 5));
      v.push_back(static_cast<std::uint8_t>(f.size() >> 8));
      v.push_back(static_cast<std::uint8_t>(f.size()));
      v.insert(v.end(), f.begin(), f.end());
    }
    out.push_back(std::move(v));
  }
  return out;
}

}  // namespace softrnic::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::uint8_t* end = std::find(data, data + size, std::uint8_t{0});
  auto rules = softrnic::fuzz::parse(std::string(data, end));
  softrnic::fuzz::Reader in(end, static_cast<std::size_t>(data + size - end));
  in.u8();
  if (!rules.empty()) softrnic::fuzz::disturb(std::move(rules), in);
  return 0;
}
