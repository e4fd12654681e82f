// Address vectors: checked against the GID table, resolved to the headers of a path.
#pragma once

#include <atomic>
#include <deque>

#include "engine/nic/nic.h"
#include "protocols/roce/framing.h"

namespace softrnic::nic {

struct ResolvedAddress {
  roce::PathParams params;
  bool multicast = false;
  bool local = false;  // the destination is a GID of this host
};

// Resolves `av` as `ctx`'s device would. `flow_label` is what the UDP source port is derived from when the vector has
// none. EINVAL: port, sgid_index, no GRH, an IPv4-mapped with an IPv6 GID; the errnos of the kernel's modify_qp and
// create_ah.
int resolve_address(const Context& ctx, const AddressVector& av, std::uint32_t flow_label, ResolvedAddress* out);

bool is_multicast_gid(const Gid& gid);  // ff00::/8, or an IPv4-mapped 224.0.0.0/4

// An address handle as the data path sees it. Stays readable after its destruction until its number is used again, so
// that requests that were posted before find it.
struct AddressEntry {
  std::atomic<bool> live{false};
  PdHandle pd = 0;
  mutable roce::HeaderTemplate headers;  // under the progress lock
  Gid dgid{};
  bool multicast = false;
  bool local = false;
};

// Address handles by number. add and remove under the control lock, at() from any thread.
class AddressTable {
 public:
  AddressTable() = default;
  ~AddressTable();

  // Number of a new entry, 0 when there is none left.
  std::uint32_t add(PdHandle pd, const ResolvedAddress& address);
  void remove(std::uint32_t number);
  // Null for a number never given out.
  const AddressEntry* at(std::uint32_t number) const {
    if (number >= kChunk * kChunks) return nullptr;
    const AddressEntry* chunk = chunks_[number / kChunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &chunk[number % kChunk];
  }

 private:
  static constexpr std::uint32_t kChunk = 256, kChunks = 4096;
  std::atomic<AddressEntry*> chunks_[kChunks]{};
  std::uint32_t next_ = 1;
  std::deque<std::uint32_t> freed_;
};

}  // namespace softrnic::nic
