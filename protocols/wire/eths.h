// Extended transport headers (IBA 9.3) that follow the BTH. Each is a value type with `kSize`, `read`
// and `write`; the caller has checked that kSize bytes are there.
#pragma once

#include "protocols/common/bytes.h"
#include "protocols/common/types.h"

namespace softrnic::wire {

// Datagram ETH (IBA 9.3.2): Q_Key 32; reserved 8, source QPN 24.
struct Deth {
  static constexpr std::size_t kSize = 8;
  std::uint32_t qkey = 0;
  std::uint32_t src_qpn = 0;

  static Deth read(const std::uint8_t* p) { return {load_be32(p), load_be24(p + 5)}; }
  void write(std::uint8_t* p) const {
    store_be32(p, qkey);
    store_be32(p + 4, src_qpn);
  }
};

// RDMA ETH (IBA 9.3.4): virtual address 64, R_Key 32, DMA length 32.
struct Reth {
  static constexpr std::size_t kSize = 16;
  std::uint64_t va = 0;
  std::uint32_t rkey = 0;
  std::uint32_t length = 0;

  static Reth read(const std::uint8_t* p) { return {load_be64(p), load_be32(p + 8), load_be32(p + 12)}; }
  void write(std::uint8_t* p) const {
    store_be64(p, va);
    store_be32(p + 8, rkey);
    store_be32(p + 12, length);
  }
};

// Atomic ETH (IBA 9.3.6): virtual address 64, R_Key 32, swap or add data 64, compare data 64.
struct AtomicEth {
  static constexpr std::size_t kSize = 28;
  std::uint64_t va = 0;
  std::uint32_t rkey = 0;
  std::uint64_t swap_or_add = 0;
  std::uint64_t compare = 0;  // FetchAdd: sent as 0, ignored

  static AtomicEth read(const std::uint8_t* p) {
    return {load_be64(p), load_be32(p + 8), load_be64(p + 12), load_be64(p + 20)};
  }
  void write(std::uint8_t* p) const {
    store_be64(p, va);
    store_be32(p + 8, rkey);
    store_be64(p + 12, swap_or_add);
    store_be64(p + 20, compare);
  }
};

// ACK ETH (IBA 9.3.5): syndrome 8, message sequence number 24.
struct Aeth {
  static constexpr std::size_t kSize = 4;
  std::uint8_t syndrome = 0;
  std::uint32_t msn = 0;

  static Aeth read(const std::uint8_t* p) { return {p[0], load_be24(p + 1)}; }
  void write(std::uint8_t* p) const { store_be32(p, static_cast<std::uint32_t>(syndrome) << 24 | msn); }
};

// Atomic ACK ETH (IBA 9.3.5.3): the value before the operation.
struct AtomicAckEth {
  static constexpr std::size_t kSize = 8;
  std::uint64_t original = 0;

  static AtomicAckEth read(const std::uint8_t* p) { return {load_be64(p)}; }
  void write(std::uint8_t* p) const { store_be64(p, original); }
};

// Immediate data (IBA 9.3.7). Opaque: the bytes are passed through in wire order.
struct ImmDt {
  static constexpr std::size_t kSize = 4;
  std::uint32_t raw = 0;

  static ImmDt read(const std::uint8_t* p) {
    ImmDt v;
    std::memcpy(&v.raw, p, sizeof v.raw);
    return v;
  }
  void write(std::uint8_t* p) const { std::memcpy(p, &raw, sizeof raw); }
};

// Invalidate ETH (IBA 9.3.8): the R_Key to invalidate.
struct Ieth {
  static constexpr std::size_t kSize = 4;
  std::uint32_t rkey = 0;

  static Ieth read(const std::uint8_t* p) { return {load_be32(p)}; }
  void write(std::uint8_t* p) const { store_be32(p, rkey); }
};

}  // namespace softrnic::wire
