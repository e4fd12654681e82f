// Frames that came for a VF, and those that were not taken in, by reason.
#pragma once

#include <cstdint>

#include "protocols/roce/framing.h"

namespace softrnic::nic {

// Shown by `softrnic status`, which knows the order: frames is the sum of the rest and of what the queue pairs got.
struct DropCounters {
  static constexpr int kFrameErrors = static_cast<int>(roce::FrameError::bad_icrc) + 1;
  std::uint64_t frames = 0;             // all
  std::uint64_t frame[kFrameErrors]{};  // indexed by FrameError
  std::uint64_t no_qp = 0;              // destination QPN of no QP
  std::uint64_t wrong_source = 0;       // not from where the QP is connected to (design rule 6)
  std::uint64_t wrong_destination = 0;  // destination GID is none of ours
  std::uint64_t no_group = 0;           // multicast without an attached QP
  std::uint64_t wrong_transport = 0;    // datagram for a connected QP, or the reverse

  void count(roce::FrameError e) { ++frame[static_cast<int>(e)]; }
};

}  // namespace softrnic::nic
