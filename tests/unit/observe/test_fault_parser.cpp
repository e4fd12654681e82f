// The fault language: what it means, and what it says about mistakes.
#include "tests/unit/observe/fault_frames.h"

using namespace softrnic;
using namespace softrnic::test;
using observe::FaultAction;
using observe::FaultRule;

namespace {

std::string error_of(const std::string& text) {
  FaultRule r;
  std::string why;
  INFO(text);
  REQUIRE_FALSE(observe::parse_fault_rule(text, &r, &why));
  return why;
}

std::size_t opcodes_of(const std::string& text) {
  observe::OpPattern p;
  std::string why;
  INFO(text);
  REQUIRE(observe::parse_op(text, &p, &why));
  return p.opcodes.count();
}

}  // namespace

TEST_CASE("A rule is an action with conditions", "[fault]") {
  const FaultRule r = rule("  drop if from=vf3 to=port0 op=read-response,0x11 qp=0x1001 psn=+5 msg=1 once");
  CHECK(r.text == "drop if from=vf3 to=port0 op=read-response,0x11 qp=0x1001 psn=+5 msg=1 once");
  CHECK(r.action.kind == FaultAction::Kind::drop);
  CHECK(r.match.from->number == 3u);
  CHECK(r.match.to->sort == observe::PartyPattern::Sort::port);
  REQUIRE(r.match.ops.size() == 2);
  CHECK(r.match.ops[0].opcodes.count() == 4);
  CHECK(r.match.ops[1].opcodes.test(0x11));
  REQUIRE(r.match.fields.size() == 1);
  CHECK(r.match.fields[0].field->name == "bth.destqp");
  CHECK(r.match.psn->base == observe::RelativePsn::Base::flow);
  CHECK(r.match.psn->offset.first == 5);
  CHECK(r.match.message->first == 1);
  CHECK(r.match.times == 1);
}

TEST_CASE("Actions have their arguments", "[fault]") {
  CHECK(rule("drop").match.times == UINT64_MAX);
  CHECK(rule("duplicate").action.copies == 1);
  CHECK(rule("duplicate 3").action.copies == 3);
  CHECK(rule("delay 15us").action.time == 15'000);
  CHECK(rule("delay 2s").action.time == 2'000'000'000);
  CHECK(rule("reorder").action.packets == 1);
  CHECK(rule("reorder").action.time == 100'000'000);
  CHECK(rule("reorder 4").action.packets == 4);
  CHECK(rule("reorder 5ms").action.time == 5'000'000);
  CHECK(rule("reorder 4 5ms").action.packets == 4);
  CHECK_FALSE(rule("corrupt").action.layer.has_value());
  CHECK(rule("corrupt recompute").action.recompute);
  CHECK(rule("corrupt payload:17").action.bit == 17);
  CHECK(rule("corrupt payload:17 recompute if once").action.recompute);
  CHECK(rule("truncate 60").action.length == 60);
  CHECK(rule("truncate -4 recompute").action.from_end);
  CHECK(rule("ecn if every=10").match.every == 10);
  const FaultRule set = rule("set aeth.syndrome=0x62 bth.psn=+1 ip.ttl=-1 if op=ack");
  REQUIRE(set.action.changes.size() == 3);
  CHECK(set.action.changes[0].value == 0x62);
  CHECK(set.action.changes[1].how == observe::FieldChange::How::add);
  CHECK(set.action.changes[2].how == observe::FieldChange::How::subtract);
}

TEST_CASE("Numbers, ranges, probabilities", "[fault]") {
  CHECK(rule("drop if prob=0.25").match.probability == 0.25);
  CHECK(rule("drop if prob=1% seed=42").match.probability == 0.01);
  CHECK(rule("drop if prob=1% seed=42").match.seed == 42);
  CHECK(rule("drop if times=7").match.times == 7);
  CHECK(rule("drop if nth=3").match.nth->last == 3);
  CHECK(rule("drop if nth=3-5").match.nth->last == 5);
  CHECK(rule("drop if psn=msg+2-msg+4").match.psn->offset.last == 4);
  CHECK(rule("drop if psn=+2-+4").match.psn->offset.first == 2);
  const FaultRule r = rule("drop if psn=1-3,0x10 aeth.syndrome=0x60-0x7f");
  CHECK(r.match.fields[0].any_of.size() == 2);
  CHECK(r.match.fields[0].any_of[1].first == 16);
  CHECK(r.match.fields[1].any_of[0].last == 0x7F);
}

TEST_CASE("Operations by name", "[fault]") {
  CHECK(opcodes_of("send") == 8 + 6 + 2);
  CHECK(opcodes_of("rc.send") == 8);
  CHECK(opcodes_of("ud.send") == 2);
  CHECK(opcodes_of("rc.send.last") == 3);
  CHECK(opcodes_of("rc.send.last.imm") == 1);
  CHECK(opcodes_of("rc.send.only.plain") == 1);
  CHECK(opcodes_of("write.middle") == 2);
  CHECK(opcodes_of("read-request") == 1);
  CHECK(opcodes_of("read-response.first") == 1);
  CHECK(opcodes_of("atomic") == 2);
  CHECK(opcodes_of("atomic-ack") == 1);
  CHECK(opcodes_of("nak") == 1);
  CHECK(opcodes_of("cnp") == 1);
  CHECK(opcodes_of("0xff") == 1);
}

TEST_CASE("Mistakes are told with their column", "[fault]") {
  CHECK(error_of("") ==
        "column 1: expected an action (there are: drop, duplicate, delay, reorder, corrupt, truncate, ecn, set)");
  CHECK_THAT(error_of("dorp if once"), Catch::StartsWith("column 1: unknown action 'dorp'"));
  CHECK_THAT(error_of("drop once"), Catch::StartsWith("column 6: expected 'if' or the end, not 'once'"));
  CHECK_THAT(error_of("drop if"), Catch::StartsWith("column 8: expected a condition after 'if'"));
  CHECK_THAT(error_of("drop if twice"), Catch::StartsWith("column 9: unknown condition 'twice'"));
  CHECK_THAT(error_of("drop if  colour=red"), Catch::StartsWith("column 10: unknown condition 'colour'"));
  CHECK_THAT(error_of("drop if op=send,snd"), Catch::StartsWith("column 17: unknown operation 'snd'"));
  CHECK_THAT(error_of("drop if op=send.frist"),
             Catch::StartsWith("column 12: 'frist' is nothing that can follow 'send'"));
  CHECK_THAT(error_of("drop if op=ud.write"), Catch::StartsWith("column 12: no packet is 'ud.write'"));
  CHECK_THAT(error_of("drop if psn=0x1000000"),
             Catch::StartsWith("column 13: expected a number or N-M up to 0xffffff"));
  CHECK_THAT(error_of("drop if psn=5-3"), Catch::Contains("column 13"));
  CHECK_THAT(error_of("drop if psn=+x"), Catch::StartsWith("column 13: expected +N or +N-+M"));
  CHECK_THAT(error_of("drop if prob=2"), Catch::StartsWith("column 14: expected a probability"));
  CHECK_THAT(error_of("drop if prob=nan"), Catch::StartsWith("column 14: expected a probability"));
  CHECK_THAT(error_of("drop if nth=0"), Catch::StartsWith("column 13: expected a number or N-M, from 1"));
  CHECK_THAT(error_of("drop if every=0"), Catch::StartsWith("column 15"));
  CHECK_THAT(error_of("drop if from=eth0"), Catch::StartsWith("column 14: expected vfN, vf*, portN or port*"));
  CHECK_THAT(error_of("delay"), Catch::StartsWith("column 6: expected a time"));
  CHECK_THAT(error_of("delay 10"), Catch::StartsWith("column 7: expected a time"));
  CHECK_THAT(error_of("delay 61s"), Catch::StartsWith("column 7: expected a time"));
  CHECK_THAT(error_of("duplicate 0"), Catch::StartsWith("column 11: expected a number of copies from 1"));
  CHECK_THAT(error_of("reorder now"), Catch::StartsWith("column 9: expected a number of packets"));
  CHECK_THAT(error_of("corrupt bth"), Catch::StartsWith("column 9: expected LAYER:BIT"));
  CHECK_THAT(error_of("corrupt bth:1 twice"), Catch::StartsWith("column 15: expected 'recompute' or 'if'"));
  CHECK_THAT(error_of("truncate 13"), Catch::StartsWith("column 10: expected a length"));
  CHECK_THAT(error_of("set"), Catch::StartsWith("column 4: expected FIELD=VALUE"));
  CHECK_THAT(error_of("set bth.foo=1"), Catch::StartsWith("column 5: unknown field 'bth.foo'"));
  CHECK_THAT(error_of("set bth.pkey=0x10000"),
             Catch::StartsWith("column 14: expected a value for bth.pkey up to 0xffff"));
}

TEST_CASE("A file has a rule a line, and comments", "[fault]") {
  std::vector<FaultRule> rules;
  std::string why;
  REQUIRE(observe::parse_fault_rules("# losses\ndrop if prob=1%   # of all\r\n\n  ecn if every=3\n", &rules, &why));
  REQUIRE(rules.size() == 2);
  CHECK(rules[0].text == "drop if prob=1%");
  CHECK(rules[1].text == "ecn if every=3");
  rules.clear();
  REQUIRE_FALSE(observe::parse_fault_rules("drop if once\n\necn if evry=3\n", &rules, &why));
  CHECK_THAT(why, Catch::StartsWith("line 3, column 8: unknown condition 'evry'"));
  REQUIRE_FALSE(observe::parse_fault_rules("drop if evry=3", &rules, &why));
  CHECK_THAT(why, Catch::StartsWith("column 9: unknown condition 'evry'"));
  rules.clear();
  REQUIRE_FALSE(observe::parse_fault_rules("# nothing\n", &rules, &why));
  CHECK(why == "there is no rule");
}
