// A VF in a test: a fabric with its progress lock, numbered frames, and the check that they arrive in order.
#pragma once

#include <catch2/catch.hpp>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "engine/datapath/fabric.h"
#include "tests/unit/datapath/fake_nic.h"

namespace softrnic::test {

// First bytes of every frame: the fake switch forwards by `to`.
struct FrameHead {
  std::uint16_t to, from;
  std::uint32_t length;
  std::uint64_t number;
};

class VfEnd {
 public:
  explicit VfEnd(FakeNic& nic) {
    std::string why;
    REQUIRE(dp::Fabric::attach(nic.socket_path(), &fabric, &why) == 0);
  }
  std::uint16_t id() const { return fabric->vf_id(); }
  dp::Path& path(VfEnd& to) { return *fabric->path_for_qpn(FakeNic::qpn(to.id())); }

  // Sends the next numbered frame to `to`; false without room.
  bool send(dp::Path& p, std::uint16_t to, std::uint32_t length = sizeof(FrameHead)) {
    if (!fabric->has_room(p, length)) return false;
    FrameHead h{to, id(), length, next_to[to]++};
    std::uint8_t* bytes = fabric->begin(p, length);
    std::memcpy(bytes, &h, sizeof h);
    std::memset(bytes + sizeof h, static_cast<int>(h.number & 0xFF), length - sizeof h);
    fabric->commit(p, length);
    return true;
  }
  int poll(int budget = 64) { return fabric->poll(budget, &VfEnd::on_frame, this); }

  static bool on_frame(void* ctx, dp::VfId ingress, Bytes frame) {
    auto& self = *static_cast<VfEnd*>(ctx);
    FrameHead h;
    if (frame.size() < sizeof h) {
      ++self.wrong;
      return true;
    }
    std::memcpy(&h, frame.data(), sizeof h);
    std::uint64_t& expected = self.next_from[ingress];
    bool ok = h.from == ingress && h.to == self.id() && h.number == expected && h.length == frame.size();
    if (ok && h.length > sizeof h) ok = frame[h.length - 1] == (h.number & 0xFF);
    self.wrong += !ok;
    expected = h.number + 1;
    ++self.received;
    return true;
  }

  std::unique_ptr<dp::Fabric> fabric;
  std::map<std::uint16_t, std::uint64_t> next_to, next_from;
  std::uint64_t received = 0, wrong = 0;
};

}  // namespace softrnic::test
