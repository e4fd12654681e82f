// Every transition of every type against the table, written down a second time as text.
#include <catch2/catch.hpp>

#include <map>
#include <sstream>
#include <string>

#include "protocols/ib/qp_state.h"

using namespace softrnic::ib;

namespace {

const std::map<std::string, std::uint32_t> kBits = {
    {"CS", 1u << 1},  {"EN", 1u << 2},   {"AF", 1u << 3},   {"PK", 1u << 4},  {"PT", 1u << 5},
    {"QK", 1u << 6},  {"AV", 1u << 7},   {"MTU", 1u << 8},  {"TO", 1u << 9},  {"RC", 1u << 10},
    {"RR", 1u << 11}, {"RP", 1u << 12},  {"MQR", 1u << 13}, {"AP", 1u << 14}, {"MRT", 1u << 15},
    {"SP", 1u << 16}, {"MDR", 1u << 17}, {"PM", 1u << 18},  {"DQ", 1u << 20}, {"RL", 1u << 25}};
constexpr std::uint32_t kState = 1;

std::uint32_t mask(const std::string& names) {
  std::uint32_t m = 0;
  std::istringstream in(names);
  for (std::string n; in >> n;) m |= kBits.at(n);
  return m;
}

struct Want {
  std::string required, optional;
};
// Key: "type from to".
std::map<std::string, Want> expected() {
  std::map<std::string, Want> t;
  const std::string all[] = {"rc", "uc", "ud", "ini", "tgt", "raw"};
  for (const auto& type : all) {
    for (const char* from : {"init", "rtr", "rts", "sqd", "sqe", "err", "reset"}) {
      t[type + " " + from + " reset"] = {};
      if (std::string(from) != "reset") t[type + " " + from + " err"] = {};
    }
    t[type + " rts sqd"] = {"", "EN"};
    t[type + " sqe rts"] = {};
    t[type + " sqd rts"] = {};
    t[type + " sqd sqd"] = {};
    t[type + " init init"] = {};
    t[type + " init rtr"] = {};
    t[type + " rtr rts"] = {};
    t[type + " rts rts"] = {};
    t[type + " reset init"] = {};
  }
  for (const char* c : {"rc", "uc", "ini", "tgt"}) {
    const std::string type = c;
    t[type + " reset init"] = {"PK PT AF", ""};
    t[type + " init init"] = {"", "PK PT AF"};
  }
  t["ud reset init"] = {"PK PT QK", ""};
  t["ud init init"] = {"", "PK PT QK"};
  t["raw reset init"] = {"PT", ""};
  t["rc init rtr"] = {"AV MTU DQ RP MDR MRT", "AP AF PK"};
  t["tgt init rtr"] = {"AV MTU DQ RP MDR MRT", "AP AF PK"};
  t["uc init rtr"] = {"AV MTU DQ RP", "AP AF PK"};
  t["ini init rtr"] = {"AV MTU DQ RP", "AP AF PK"};
  t["ud init rtr"] = {"", "PK QK"};
  t["rc rtr rts"] = {"TO RC RR SP MQR", "CS AP AF MRT PM"};
  t["uc rtr rts"] = {"SP", "CS AP AF PM"};
  t["ud rtr rts"] = {"SP", "CS QK"};
  t["ini rtr rts"] = {"TO RC RR SP MQR", "CS AP AF PM"};
  t["tgt rtr rts"] = {"TO SP", "CS AP AF MRT PM"};
  t["raw rtr rts"] = {"", "RL"};
  t["rc rts rts"] = {"", "CS AF AP PM MRT"};
  t["uc rts rts"] = {"", "CS AF AP PM"};
  t["ud rts rts"] = {"", "CS QK"};
  t["ini rts rts"] = {"", "CS AF AP PM"};
  t["tgt rts rts"] = {"", "CS AF AP PM MRT"};
  t["raw rts rts"] = {"", "RL"};
  t["rc sqd rts"] = {"", "CS AP AF MRT PM"};
  t["uc sqd rts"] = {"", "CS AP AF PM"};
  t["ud sqd rts"] = {"", "CS QK"};
  t["ini sqd rts"] = {"", "CS AP AF PM"};
  t["tgt sqd rts"] = {"", "CS AP AF MRT PM"};
  t["rc sqd sqd"] = {"", "PT AV TO RC RR MQR MDR AP AF PK MRT PM"};
  t["uc sqd sqd"] = {"", "AV AP AF PK PM"};
  t["ud sqd sqd"] = {"", "PK QK"};
  t["ini sqd sqd"] = {"", "PT AV TO RC RR MQR AP AF PK PM"};
  t["tgt sqd sqd"] = {"", "PT AV TO MDR AP AF PK MRT PM"};
  t["uc sqe rts"] = {"", "CS AF"};
  t["ud sqe rts"] = {"", "CS QK"};
  return t;
}

const std::pair<std::string, QpType> kTypes[] = {{"rc", QpType::rc},        {"uc", QpType::uc},
                                                 {"ud", QpType::ud},        {"ini", QpType::xrc_send},
                                                 {"tgt", QpType::xrc_recv}, {"raw", QpType::raw_packet}};
const std::pair<std::string, QpState> kStates[] = {
    {"reset", QpState::reset}, {"init", QpState::init}, {"rtr", QpState::rtr}, {"rts", QpState::rts},
    {"sqd", QpState::sqd},     {"sqe", QpState::sqe},   {"err", QpState::err}};

}  // namespace

TEST_CASE("IBA 11.2.5.2, tables 91 to 96: legal transitions and attribute masks of every QP type", "[state]") {
  const auto table = expected();
  for (const auto& [type_name, type] : kTypes) {
    for (const auto& [from_name, from] : kStates) {
      for (const auto& [to_name, to] : kStates) {
        CAPTURE(type_name, from_name, to_name);
        const auto it = table.find(type_name + " " + from_name + " " + to_name);
        if (it == table.end()) {
          CHECK_FALSE(transition_allowed(type, from, to, kState));
          continue;
        }
        const std::uint32_t required = mask(it->second.required);
        const std::uint32_t optional = mask(it->second.optional);
        CHECK(transition_allowed(type, from, to, kState | required));
        CHECK(transition_allowed(type, from, to, required));
        CHECK(transition_allowed(type, from, to, kState | required | optional));
        for (unsigned bit = 1; bit < 27; ++bit) {
          const std::uint32_t b = 1u << bit;
          CAPTURE(bit);
          if ((required & b) != 0) {
            CHECK_FALSE(transition_allowed(type, from, to, kState | (required & ~b)));
          } else {
            CHECK(transition_allowed(type, from, to, kState | required | b) == ((optional & b) != 0));
          }
        }
      }
    }
  }
}

TEST_CASE("IBA 11.2.5.2: unknown types and RESET to ERR are refused", "[state]") {
  CHECK_FALSE(transition_allowed(static_cast<QpType>(77), QpState::reset, QpState::reset, kState));
  CHECK_FALSE(transition_allowed(QpType::rc, QpState::reset, QpState::err, kState));
  CHECK_FALSE(transition_allowed(QpType::rc, QpState::init, QpState::rts, kState));
}
