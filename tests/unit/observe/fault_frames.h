// Packets for the tests of fault rules, and what comes out of the engine for them.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "engine/observe/fault_engine.h"
#include "engine/observe/fault_parser.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/icrc.h"
#include "tests/unit/roce/frames.h"

namespace softrnic::test {

namespace op {
inline constexpr std::uint8_t kSendFirst = 0x00, kSendMiddle = 0x01, kSendLast = 0x02, kSendOnly = 0x04,
                              kWriteFirst = 0x06, kReadRequest = 0x0C, kReadFirst = 0x0D, kReadMiddle = 0x0E,
                              kReadLast = 0x0F, kReadOnly = 0x10, kAck = 0x11, kAtomicAck = 0x12, kFetchAdd = 0x14,
                              kUdSend = 0x64;
}

struct PacketSpec {
  std::uint8_t opcode = op::kSendOnly;
  std::uint32_t psn = 0;
  std::uint32_t qpn = 0x1001;
  std::vector<std::uint8_t> rest =
      {};  // behind the BTH; filled up with zeros to the opcode's headers, and 8 bytes more
  Framing framing = Framing::v2_ipv4;
};

inline std::vector<std::uint8_t> make_packet(const PacketSpec& s) {
  std::vector<std::uint8_t> transport(12);
  wire::Bth bth;
  bth.opcode = s.opcode;
  bth.psn = s.psn;
  bth.dest_qpn = s.qpn;
  bth.write(transport.data());
  transport.insert(transport.end(), s.rest.begin(), s.rest.end());
  const auto& info = ib::opcode_info(s.opcode);
  const std::size_t payload = info.payload == ib::PayloadRule::empty ? 0 : 8;
  if (transport.size() < info.header_len + payload) transport.resize(info.header_len + payload);
  return frame_of(roce::HeaderTemplate(path_of(s.framing)), transport);
}
inline std::vector<std::uint8_t> ack(std::uint32_t psn, std::uint8_t syndrome = 0x1F) {
  return make_packet({.opcode = op::kAck, .psn = psn, .rest = {syndrome, 0, 0, 1}});
}

inline observe::FaultRule rule(const std::string& text) {
  observe::FaultRule r;
  std::string why;
  INFO(text);
  const bool ok = observe::parse_fault_rule(text, &r, &why);
  INFO(why);
  REQUIRE(ok);
  return r;
}

// An engine with everything that comes out of it.
struct Bench : sw::FrameSink {
  explicit Bench(const std::vector<std::string>& rules = {}) {
    for (const std::string& text : rules) engine.add(rule(text));
  }
  struct Out {
    std::vector<std::uint8_t> frame;
    std::string comment;
    bool dropped;
    std::uint16_t from;
    std::vector<std::uint16_t> to;
  };
  void pass(const sw::Passing& p) override {
    out.push_back({{p.frame.begin(), p.frame.end()},
                   std::string(p.comment),
                   p.dropped,
                   p.from.vf,
                   {p.to.destinations.begin(), p.to.destinations.end()}});
  }
  void send_frame(std::vector<std::uint8_t> frame, std::uint16_t from = 1, std::uint16_t to = 2) {
    sw::Passing p;
    p.from.vf = from;
    p.to.kind = sw::Verdict::Kind::forward;
    p.to.destinations = {&to, 1};
    p.frame = frame;
    engine.on_frame(now, p, *this);
  }
  void send(const PacketSpec& spec, std::uint16_t from = 1, std::uint16_t to = 2) {
    send_frame(make_packet(spec), from, to);
  }
  void advance(Nanos t) {
    now += t;
    if (engine.next_timeout() <= now) engine.on_timeout(now, *this);
  }
  // PSNs of what went on, in order.
  std::vector<std::uint32_t> psns() const {
    std::vector<std::uint32_t> list;
    for (const Out& o : out) {
      if (o.dropped) continue;
      roce::RxFrame rx;
      list.push_back(roce::parse(o.frame, &rx) == roce::FrameError::none ? wire::BthView(rx.transport.data()).psn()
                                                                         : ~0u);
    }
    return list;
  }
  std::vector<std::uint32_t> dropped() const {
    std::vector<std::uint32_t> list;
    for (const Out& o : out) {
      if (!o.dropped) continue;
      roce::RxFrame rx;
      REQUIRE(roce::parse(o.frame, &rx) == roce::FrameError::none);
      list.push_back(wire::BthView(rx.transport.data()).psn());
    }
    return list;
  }

  std::vector<observe::FaultEvent> events;
  observe::FaultEngine engine{[this](const observe::FaultEvent& e) { events.push_back(e); }};
  std::vector<Out> out;
  Nanos now = 1'000'000'000;
};

using Psns = std::vector<std::uint32_t>;

}  // namespace softrnic::test
