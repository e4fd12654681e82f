// The text form of fault rules:
//
//   RULE      := ACTION [if CONDITION...]
//   ACTION    := drop | duplicate [COPIES] | delay TIME | reorder [PACKETS] [TIME]
//              | corrupt [LAYER:BIT] [recompute] | truncate LENGTH|-LENGTH [recompute] | ecn
//              | set FIELD=VALUE|+VALUE|-VALUE ...
//   CONDITION := from=PARTY | to=PARTY | op=OP[,OP...] | qp=RANGES
//              | psn=RANGES | psn=+N[-+M] | psn=msg+N[-msg+M] | msg=RANGE
//              | FIELD=RANGES | nth=RANGE | every=N | prob=P|P% | seed=N | times=N | once
//   PARTY     := vfN | vf* | portN | port*          RANGE := N | N-M        RANGES := RANGE[,RANGE...]
//   OP        := [rc.|uc.|ud.]KIND[.first|.middle|.last|.only][.imm|.inv|.plain] | 0xNN
//
// docs/guide-faults.md explains them. A file has a rule a line; '#' begins a comment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/observe/fault_rule.h"

namespace softrnic::observe {

// False with a sentence that names the column (from 1) in `why`.
bool parse_fault_rule(std::string_view text, FaultRule* out, std::string* why);

// All rules of a file or a command line; blank lines and comments are skipped. False with a sentence that names line
// and column; the line only when `text` has several.
bool parse_fault_rules(std::string_view text, std::vector<FaultRule>* out, std::string* why);

// One OP of the language. False when it is none; `why` says what is possible there.
bool parse_op(std::string_view text, OpPattern* out, std::string* why);

}  // namespace softrnic::observe
