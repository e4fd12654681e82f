// What has passed of each flow: the base of relative PSNs, and the numbers of messages.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/observe/packet_fields.h"
#include "engine/switch/disturber.h"

namespace softrnic::observe {

// Packets from one place to one queue pair; of datagrams, from one queue pair.
struct FlowKey {
  sw::Ingress from;
  std::uint32_t dest_qpn = 0;
  std::uint32_t src_qpn = 0;
  friend bool operator==(const FlowKey&, const FlowKey&) = default;
};
FlowKey flow_of(const sw::Ingress& from, const Packet& p);

class FlowTracker {
 public:
  // Where a packet stands in its flow.
  struct Place {
    std::uint32_t first_psn = 0;    // first PSN that passed; requests and responses have their own
    std::uint32_t message = 0;      // messages are counted for each kind of operation, from 1; 0: not known
    std::uint32_t message_psn = 0;  // its first PSN, when the number is known
  };
  // Each packet of each flow, in order. A packet that is sent again keeps its place: a message is new when its first
  // packet has a later PSN than all before.
  Place observe(const sw::Ingress& from, const Packet& p);

  static constexpr std::size_t kMaxFlows = 16384;    // then the oldest are forgotten
  static constexpr std::size_t kMaxMessages = 1024;  // of a flow and kind that are still found when sent again

 private:
  struct Hash {
    std::size_t operator()(const FlowKey& k) const;
  };
  struct Message {
    std::uint32_t psn, number;
  };
  struct Messages {
    std::deque<Message> recent;
    std::uint32_t count = 0;
    bool seen = false;  // a packet of this kind has passed
    std::uint32_t latest_psn = 0;
  };
  struct Flow {
    std::optional<std::uint32_t> first_request, first_response;
    std::array<Messages, 8> kinds;  // by ib::OpKind
  };
  Flow& flow(const FlowKey& key);

  std::unordered_map<FlowKey, Flow, Hash> flows_;
  std::deque<FlowKey> by_age_;
};

}  // namespace softrnic::observe
