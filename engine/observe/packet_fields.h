// A RoCE frame taken apart, with its header fields by name: what fault rules look at and change.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocols/common/types.h"
#include "protocols/ib/opcode.h"
#include "protocols/roce/framing.h"

namespace softrnic::observe {

// A part of a frame.
enum class Layer : std::uint8_t {
  none,
  frame,
  ipv4,
  ipv6,
  udp,
  bth,
  deth,
  reth,
  atomic_eth,
  aeth,
  atomic_ack_eth,
  imm_dt,
  ieth,
  payload,
  icrc
};

// `frame` is the caller's and must outlive the packet.
class Packet {
 public:
  // False when the frame is no RoCE packet; nothing else may be called then.
  bool parse(MutableBytes frame);

  MutableBytes bytes() const { return frame_; }
  // False once it was cut so that lengths are wrong: nothing but bytes() may be called then.
  bool whole() const { return whole_; }
  std::uint8_t opcode() const { return frame_[bth_]; }
  const ib::OpcodeInfo& info() const { return *info_; }
  std::uint32_t dest_qpn() const;
  std::uint32_t psn() const;
  std::uint32_t src_qpn() const;  // of a datagram, else 0

  // Where a layer begins, and its length; false when the packet has none. A GRH counts as ipv6. The payload includes
  // pad.
  bool find(Layer layer, std::size_t* offset, std::size_t* length) const;

  // Stored ICRC against the right one; 0: it is right.
  std::uint32_t icrc_error() const;
  // Makes the IPv4 header checksum right after a change, and the ICRC, or wrong by `icrc_error`. The UDP checksum
  // becomes 0: none.
  void recompute(std::uint32_t icrc_error = 0);
  // Shortens the frame to `length` bytes; with `valid`, lengths, checksum and ICRC are those of a packet that is so
  // short, as far as it still has room for a BTH and an ICRC. True when that is so.
  bool truncate(std::size_t length, bool valid);

 private:
  MutableBytes frame_;
  roce::RxFrame rx_;
  const ib::OpcodeInfo* info_ = nullptr;
  std::size_t l3_ = 0, bth_ = 0, icrc_ = 0;
  bool whole_ = true;
};

// A field of a header, at most 64 bits wide.
struct Field {
  struct Place {
    Layer layer;
    std::uint8_t offset;  // bytes from the layer's start
    std::uint8_t size;    // bytes that hold the field, 1 to 8, big-endian
    std::uint8_t shift;   // of the field's lowest bit
    std::uint8_t bits;
  };
  std::string_view name;  // layer.field
  Place place;
  Place in_ipv6;  // other place in an IPv6 header or GRH; layer none: there is no other

  std::uint64_t max() const { return place.bits == 64 ? UINT64_MAX : (std::uint64_t{1} << place.bits) - 1; }
};

// Null when there is no such field.
const Field* find_field(std::string_view name);
// All names, for messages.
std::string field_names();

// False when the packet has no such field.
bool read_field(const Packet& p, const Field& field, std::uint64_t* value);
// `value` is cut to the field's width. Does not recompute anything.
bool write_field(Packet& p, const Field& field, std::uint64_t value);

}  // namespace softrnic::observe
