// Frames: a transport packet in a framing, with its ICRC.
#pragma once

#include <cstring>
#include <vector>

#include "protocols/roce/framing.h"
#include "protocols/wire/icrc.h"

namespace softrnic {

inline std::vector<std::uint8_t> make_frame(roce::HeaderTemplate path, const std::vector<std::uint8_t>& transport) {
  const auto length = static_cast<std::uint32_t>(transport.size());
  std::vector<std::uint8_t> f(path.size() + length + 4);
  path.write(f.data(), length);
  std::memcpy(f.data() + path.size(), transport.data(), length);
  wire::icrc_store(f.data() + path.size() + length, path.icrc(f.data(), length));
  return f;
}

}  // namespace softrnic
