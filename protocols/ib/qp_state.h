// QP states and the table of legal transitions (IBA 11.2.5.2, tables 91 to 96).
#pragma once

#include <cstdint>

namespace softrnic::ib {

// enum ibv_qp_type.
enum class QpType : std::uint8_t { rc = 2, uc = 3, ud = 4, raw_packet = 8, xrc_send = 9, xrc_recv = 10 };

// enum ibv_qp_state.
enum class QpState : std::uint8_t { reset = 0, init = 1, rtr = 2, rts = 3, sqd = 4, sqe = 5, err = 6 };

// enum ibv_qp_attr_mask.
inline constexpr std::uint32_t kAttrState = 1u << 0;
inline constexpr std::uint32_t kAttrCurState = 1u << 1;
inline constexpr std::uint32_t kAttrEnSqdAsyncNotify = 1u << 2;
inline constexpr std::uint32_t kAttrAccessFlags = 1u << 3;
inline constexpr std::uint32_t kAttrPkeyIndex = 1u << 4;
inline constexpr std::uint32_t kAttrPort = 1u << 5;
inline constexpr std::uint32_t kAttrQkey = 1u << 6;
inline constexpr std::uint32_t kAttrAv = 1u << 7;
inline constexpr std::uint32_t kAttrPathMtu = 1u << 8;
inline constexpr std::uint32_t kAttrTimeout = 1u << 9;
inline constexpr std::uint32_t kAttrRetryCnt = 1u << 10;
inline constexpr std::uint32_t kAttrRnrRetry = 1u << 11;
inline constexpr std::uint32_t kAttrRqPsn = 1u << 12;
inline constexpr std::uint32_t kAttrMaxQpRdAtomic = 1u << 13;
inline constexpr std::uint32_t kAttrAltPath = 1u << 14;
inline constexpr std::uint32_t kAttrMinRnrTimer = 1u << 15;
inline constexpr std::uint32_t kAttrSqPsn = 1u << 16;
inline constexpr std::uint32_t kAttrMaxDestRdAtomic = 1u << 17;
inline constexpr std::uint32_t kAttrPathMigState = 1u << 18;
inline constexpr std::uint32_t kAttrCap = 1u << 19;
inline constexpr std::uint32_t kAttrDestQpn = 1u << 20;
inline constexpr std::uint32_t kAttrRateLimit = 1u << 25;

// True when a QP of `type` may go from `from` to `to` with exactly the attributes in `mask`: every
// required one is there and none that the table does not allow. Without kAttrState, pass to == from.
bool transition_allowed(QpType type, QpState from, QpState to, std::uint32_t mask);

}  // namespace softrnic::ib
