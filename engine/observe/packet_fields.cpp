#include "engine/observe/packet_fields.h"

#include <algorithm>

#include "protocols/common/bytes.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"
#include "protocols/wire/icrc.h"
#include "protocols/wire/ipv4.h"
#include "protocols/wire/ipv6.h"
#include "protocols/wire/udp.h"

namespace softrnic::observe {
namespace {

constexpr std::size_t kIcrcSize = 4;
constexpr Field::Place kNone{Layer::none, 0, 0, 0, 0};

constexpr Field plain(std::string_view name, Layer layer, unsigned offset, unsigned size, unsigned shift,
                      unsigned bits) {
  return {name,
          {layer, static_cast<std::uint8_t>(offset), static_cast<std::uint8_t>(size), static_cast<std::uint8_t>(shift),
           static_cast<std::uint8_t>(bits)},
          kNone};
}

// Offsets and widths as in IBA 9.2 and 9.3, RFC 791 and RFC 8200.
constexpr Field kFields[] = {
    {"ip.dscp", {Layer::ipv4, 1, 1, 2, 6}, {Layer::ipv6, 0, 2, 6, 6}},
    {"ip.ecn", {Layer::ipv4, 1, 1, 0, 2}, {Layer::ipv6, 0, 2, 4, 2}},
    {"ip.ttl", {Layer::ipv4, 8, 1, 0, 8}, {Layer::ipv6, 7, 1, 0, 8}},
    plain("udp.sport", Layer::udp, 0, 2, 0, 16),
    plain("udp.dport", Layer::udp, 2, 2, 0, 16),
    plain("bth.opcode", Layer::bth, 0, 1, 0, 8),
    plain("bth.se", Layer::bth, 1, 1, 7, 1),
    plain("bth.m", Layer::bth, 1, 1, 6, 1),
    plain("bth.padcnt", Layer::bth, 1, 1, 4, 2),
    plain("bth.tver", Layer::bth, 1, 1, 0, 4),
    plain("bth.pkey", Layer::bth, 2, 2, 0, 16),
    plain("bth.fecn", Layer::bth, 4, 1, 7, 1),
    plain("bth.becn", Layer::bth, 4, 1, 6, 1),
    plain("bth.destqp", Layer::bth, 5, 3, 0, 24),
    plain("bth.ackreq", Layer::bth, 8, 1, 7, 1),
    plain("bth.psn", Layer::bth, 9, 3, 0, 24),
    plain("deth.qkey", Layer::deth, 0, 4, 0, 32),
    plain("deth.srcqp", Layer::deth, 5, 3, 0, 24),
    plain("reth.va", Layer::reth, 0, 8, 0, 64),
    plain("reth.rkey", Layer::reth, 8, 4, 0, 32),
    plain("reth.length", Layer::reth, 12, 4, 0, 32),
    plain("atomic.va", Layer::atomic_eth, 0, 8, 0, 64),
    plain("atomic.rkey", Layer::atomic_eth, 8, 4, 0, 32),
    plain("atomic.swapadd", Layer::atomic_eth, 12, 8, 0, 64),
    plain("atomic.compare", Layer::atomic_eth, 20, 8, 0, 64),
    plain("aeth.syndrome", Layer::aeth, 0, 1, 0, 8),
    plain("aeth.msn", Layer::aeth, 1, 3, 0, 24),
    plain("atomicack.original", Layer::atomic_ack_eth, 0, 8, 0, 64),
    plain("immdt", Layer::imm_dt, 0, 4, 0, 32),
    plain("ieth.rkey", Layer::ieth, 0, 4, 0, 32),
};

std::uint64_t load(const std::uint8_t* p, unsigned size) {
  std::uint64_t v = 0;
  for (unsigned i = 0; i < size; ++i) v = v << 8 | p[i];
  return v;
}

void store(std::uint8_t* p, unsigned size, std::uint64_t v) {
  for (unsigned i = size; i-- > 0; v >>= 8) p[i] = static_cast<std::uint8_t>(v);
}

// The bytes that hold the field; null when the packet does not have it. `*place` is where in the packet at hand it is.
std::uint8_t* locate(const Packet& p, const Field& field, Field::Place* place) {
  std::size_t at = 0, length = 0;
  *place = field.place;
  if (!p.find(place->layer, &at, &length)) {
    *place = field.in_ipv6;
    if (place->layer == Layer::none || !p.find(place->layer, &at, &length)) return nullptr;
  }
  if (std::size_t{place->offset} + place->size > length) return nullptr;
  return p.bytes().data() + at + place->offset;
}

}  // namespace

bool Packet::parse(MutableBytes frame) {
  if (roce::parse(frame, &rx_) != roce::FrameError::none) return false;
  frame_ = frame;
  l3_ = static_cast<std::size_t>(rx_.l3 - frame.data());
  bth_ = static_cast<std::size_t>(rx_.transport.data() - frame.data());
  icrc_ = bth_ + rx_.transport.size();
  info_ = &ib::opcode_info(opcode());
  return true;
}

std::uint32_t Packet::dest_qpn() const { return wire::BthView(frame_.data() + bth_).dest_qpn(); }
std::uint32_t Packet::psn() const { return wire::BthView(frame_.data() + bth_).psn(); }

std::uint32_t Packet::src_qpn() const {
  if (info_->deth == 0 || rx_.transport.size() < info_->header_len) return 0;
  return wire::Deth::read(frame_.data() + bth_ + info_->deth).src_qpn;
}

bool Packet::find(Layer layer, std::size_t* offset, std::size_t* length) const {
  // An extended header is there when the opcode says so, and the packet is as long.
  auto eth = [&](std::uint8_t at, std::size_t size) {
    if (at == 0 || at + size > rx_.transport.size()) return false;
    *offset = bth_ + at;
    *length = size;
    return true;
  };
  auto part = [&](std::size_t begin, std::size_t end) {
    *offset = begin;
    *length = end - begin;
    return true;
  };
  switch (layer) {
    case Layer::none:
      return false;
    case Layer::frame:
      return part(0, frame_.size());
    case Layer::ipv4:
      return rx_.ipv4 && part(l3_, l3_ + wire::Ipv4Header::kSize);
    case Layer::ipv6:
      return !rx_.ipv4 && part(l3_, l3_ + wire::Ipv6Header::kSize);
    case Layer::udp:
      return rx_.version == roce::Version::v2 && part(bth_ - wire::UdpHeader::kSize, bth_);
    case Layer::bth:
      return part(bth_, bth_ + wire::kBthSize);
    case Layer::deth:
      return eth(info_->deth, wire::Deth::kSize);
    case Layer::reth:
      return eth(info_->reth, wire::Reth::kSize);
    case Layer::atomic_eth:
      return eth(info_->atomic_eth, wire::AtomicEth::kSize);
    case Layer::aeth:
      return eth(info_->aeth, wire::Aeth::kSize);
    case Layer::atomic_ack_eth:
      return eth(info_->atomic_ack_eth, wire::AtomicAckEth::kSize);
    case Layer::imm_dt:
      return eth(info_->imm_dt, wire::ImmDt::kSize);
    case Layer::ieth:
      return eth(info_->ieth, wire::Ieth::kSize);
    case Layer::payload: {
      const std::size_t headers = info_->known() ? info_->header_len : wire::kBthSize;
      return bth_ + headers < icrc_ && part(bth_ + headers, icrc_);
    }
    case Layer::icrc:
      return part(icrc_, icrc_ + kIcrcSize);
  }
  return false;
}

std::uint32_t Packet::icrc_error() const { return wire::detail::load_le32(frame_.data() + icrc_) ^ roce::icrc_of(rx_); }

void Packet::recompute(std::uint32_t icrc_error) {
  std::uint8_t* l3 = frame_.data() + l3_;
  if (rx_.version == roce::Version::v2) store_be16(frame_.data() + bth_ - 2, 0);
  if (rx_.ipv4) {
    store_be16(l3 + 10, 0);
    store_be16(l3 + 10, static_cast<std::uint16_t>(~wire::inet_fold(wire::inet_sum(l3, wire::Ipv4Header::kSize))));
  }
  wire::icrc_store(frame_.data() + icrc_, roce::icrc_of(rx_) ^ icrc_error);
}

bool Packet::truncate(std::size_t length, bool valid) {
  if (length >= frame_.size()) return valid;
  frame_ = frame_.first(length);
  whole_ = valid && length >= bth_ + wire::kBthSize + kIcrcSize;
  if (!whole_) return false;
  icrc_ = length - kIcrcSize;
  rx_.transport = Bytes(frame_.data() + bth_, icrc_ - bth_);
  std::uint8_t* l3 = frame_.data() + l3_;
  const std::size_t header = rx_.ipv4 ? 0 : wire::Ipv6Header::kSize;
  store_be16(l3 + (rx_.ipv4 ? 2 : 4), static_cast<std::uint16_t>(length - l3_ - header));
  if (rx_.version == roce::Version::v2)
    store_be16(frame_.data() + bth_ - 4, static_cast<std::uint16_t>(length - bth_ + 8));
  recompute();
  return true;
}

const Field* find_field(std::string_view name) {
  const auto it = std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& f) { return f.name == name; });
  return it == std::end(kFields) ? nullptr : it;
}

std::string field_names() {
  std::string out;
  for (const Field& f : kFields) out += (out.empty() ? "" : ", ") + std::string(f.name);
  return out;
}

bool read_field(const Packet& p, const Field& field, std::uint64_t* value) {
  Field::Place place{};
  const std::uint8_t* at = locate(p, field, &place);
  if (at == nullptr) return false;
  *value = (load(at, place.size) >> place.shift) & field.max();
  return true;
}

bool write_field(Packet& p, const Field& field, std::uint64_t value) {
  Field::Place place{};
  std::uint8_t* at = locate(p, field, &place);
  if (at == nullptr) return false;
  const std::uint64_t mask = field.max() << place.shift;
  store(at, place.size, (load(at, place.size) & ~mask) | ((value << place.shift) & mask));
  return true;
}

}  // namespace softrnic::observe
