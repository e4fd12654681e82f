#include "protocols/ib/qp_state.h"

#include <cstddef>

namespace softrnic::ib {
namespace {

// Attribute masks of one transition. "Required" and "optional" are given per service type; the types
// stand in the order of TypeIndex.
enum TypeIndex : std::size_t { kRc, kUc, kUd, kXrcIni, kXrcTgt, kRaw, kTypes };

struct Transition {
  QpState from, to;
  std::uint32_t required[kTypes];
  std::uint32_t optional[kTypes];
};

constexpr std::uint32_t kPkPortAccess = kAttrPkeyIndex | kAttrPort | kAttrAccessFlags;
constexpr std::uint32_t kPkPortQkey = kAttrPkeyIndex | kAttrPort | kAttrQkey;
constexpr std::uint32_t kPkQkey = kAttrPkeyIndex | kAttrQkey;
constexpr std::uint32_t kCurQkey = kAttrCurState | kAttrQkey;
constexpr std::uint32_t kPath = kAttrAv | kAttrPathMtu | kAttrDestQpn | kAttrRqPsn;
constexpr std::uint32_t kResponder = kAttrMaxDestRdAtomic | kAttrMinRnrTimer;
constexpr std::uint32_t kRequester = kAttrTimeout | kAttrRetryCnt | kAttrRnrRetry | kAttrSqPsn | kAttrMaxQpRdAtomic;
constexpr std::uint32_t kAltAccessPk = kAttrAltPath | kAttrAccessFlags | kAttrPkeyIndex;
constexpr std::uint32_t kUcRts = kAttrCurState | kAttrAltPath | kAttrAccessFlags | kAttrPathMigState;
constexpr std::uint32_t kRcRts = kUcRts | kAttrMinRnrTimer;
constexpr std::uint32_t kUcSqd = kAttrAv | kAttrAltPath | kAttrAccessFlags | kAttrPkeyIndex | kAttrPathMigState;
constexpr std::uint32_t kXrcIniSqd =
    kUcSqd | kAttrPort | kAttrTimeout | kAttrRetryCnt | kAttrRnrRetry | kAttrMaxQpRdAtomic;
constexpr std::uint32_t kXrcTgtSqd = kUcSqd | kAttrPort | kAttrTimeout | kResponder;
constexpr std::uint32_t kRcSqd = kXrcIniSqd | kResponder;
constexpr std::uint32_t kNotify = kAttrEnSqdAsyncNotify;

using S = QpState;

// IBA 11.2.5.2, tables 91 to 96. Columns: RC, UC, UD, XRC_INI, XRC_TGT, RAW.
constexpr Transition kTransitions[] = {
    {S::reset, S::init, {kPkPortAccess, kPkPortAccess, kPkPortQkey, kPkPortAccess, kPkPortAccess, kAttrPort}, {}},
    {S::init, S::init, {}, {kPkPortAccess, kPkPortAccess, kPkPortQkey, kPkPortAccess, kPkPortAccess, 0}},
    {S::init,
     S::rtr,
     {kPath | kResponder, kPath, 0, kPath, kPath | kResponder, 0},
     {kAltAccessPk, kAltAccessPk, kPkQkey, kAltAccessPk, kAltAccessPk, 0}},
    {S::rtr,
     S::rts,
     {kRequester, kAttrSqPsn, kAttrSqPsn, kRequester, kAttrTimeout | kAttrSqPsn, 0},
     {kRcRts, kUcRts, kCurQkey, kUcRts, kRcRts, kAttrRateLimit}},
    {S::rts, S::rts, {}, {kRcRts, kUcRts, kCurQkey, kUcRts, kRcRts, kAttrRateLimit}},
    {S::rts, S::sqd, {}, {kNotify, kNotify, kNotify, kNotify, kNotify, kNotify}},
    {S::sqd, S::rts, {}, {kRcRts, kUcRts, kCurQkey, kUcRts, kRcRts, 0}},
    {S::sqd, S::sqd, {}, {kRcSqd, kUcSqd, kPkQkey, kXrcIniSqd, kXrcTgtSqd, 0}},
    {S::sqe, S::rts, {}, {0, kAttrCurState | kAttrAccessFlags, kCurQkey, 0, 0, 0}},
    {S::reset, S::reset, {}, {}},
    {S::init, S::reset, {}, {}},
    {S::rtr, S::reset, {}, {}},
    {S::rts, S::reset, {}, {}},
    {S::sqd, S::reset, {}, {}},
    {S::sqe, S::reset, {}, {}},
    {S::err, S::reset, {}, {}},
    {S::init, S::err, {}, {}},
    {S::rtr, S::err, {}, {}},
    {S::rts, S::err, {}, {}},
    {S::sqd, S::err, {}, {}},
    {S::sqe, S::err, {}, {}},
    {S::err, S::err, {}, {}},
};

TypeIndex index_of(QpType type) {
  switch (type) {
    case QpType::rc:
      return kRc;
    case QpType::uc:
      return kUc;
    case QpType::ud:
      return kUd;
    case QpType::xrc_send:
      return kXrcIni;
    case QpType::xrc_recv:
      return kXrcTgt;
    case QpType::raw_packet:
      return kRaw;
  }
  return kTypes;
}

}  // namespace

bool transition_allowed(QpType type, QpState from, QpState to, std::uint32_t mask) {
  const TypeIndex column = index_of(type);
  if (column == kTypes) return false;
  // The consumer's belief about the current state can only be one in which sends are processed.
  if ((mask & kAttrCurState) != 0 && from != S::rtr && from != S::rts && from != S::sqd && from != S::sqe) return false;
  for (const Transition& t : kTransitions) {
    if (t.from != from || t.to != to) continue;
    const std::uint32_t required = t.required[column];
    const std::uint32_t allowed = required | t.optional[column] | kAttrState;
    return (mask & required) == required && (mask & ~allowed) == 0;
  }
  return false;
}

}  // namespace softrnic::ib
