// Everything that several processes see in shared memory. All memfds are made by the NIC process and
// sealed against shrinking and growing; what another process writes is untrusted input.
#pragma once

#include <atomic>
#include <cstdint>

namespace softrnic::dp {

// ---- A ring: single producer, single consumer, packets of bytes ------------------------------------
// Entries start at multiples of 64 bytes. The first word of an entry is its header; it is zero until
// the entry is complete, because a producer clears the word behind an entry before it publishes the
// entry. So a consumer polls the very cache line that carries the data.
inline constexpr std::uint32_t kEntryAlign = 64;
inline constexpr std::uint32_t kRingDataOffset = 4096;

enum class EntryKind : std::uint8_t {
  none = 0,
  frame = 1,  // an Ethernet frame
  wrap = 2,   // go on at the start of the ring
  mark = 3,   // route barrier: aux is the epoch (16 bits)
};

// First 8 bytes of an entry, written last with release order. `length` counts the bytes behind the header.
struct EntryHeader {
  std::uint32_t length;
  std::uint8_t kind;  // EntryKind
  std::uint8_t reserved;
  std::uint16_t aux;  // from the eSwitch: VF id the frame came from; mark: epoch
};
static_assert(sizeof(EntryHeader) == 8);

// ---- Marks: the barrier of a change of route -----------------------------------------------------------
// A sender that changes its route towards a VF sends a mark down the old route, stops, and goes on over the new
// route when the receiver has taken the mark. A mark's number (aux) is the sender's own count of marks towards
// that VF, modulo 2^16, and never 0; it is not the epoch of the RouteNotice.
//  - Old route = the channel between the two: an entry {length 0, mark, aux = number} in the sender's ring.
//  - Old route = the eSwitch: an entry {length sizeof(MarkBody), mark, aux = number} with MarkBody{destination VF}
//    behind the header, in the ring VF -> eSwitch. The eSwitch passes it on, in order behind the sender's frames
//    for that VF (through the same queue), as an entry {length sizeof(MarkBody), mark, aux = number} with
//    MarkBody{source VF} in the ring eSwitch -> VF. Marks are exempt from the bound of that queue and from every
//    fault, rate or queue model: the eSwitch never drops one while the destination lives (at most one per source VF
//    is on its way), and drops it when the destination is gone (the sender learns that by peer_gone).
// Whichever way the mark came, the receiver then stores its number in `acked_epoch` of the ring of the direct
// channel that it consumes from the sender, sets the sender's inbox bit for that channel, and kicks the sender when
// it sleeps. Two VFs that exchange marks therefore always have a channel.
struct MarkBody {
  std::uint16_t vf_id;
  std::uint16_t reserved[3];
};
static_assert(sizeof(MarkBody) == 8);
// Frames start here within an entry, so that the payload of a RoCE v2/IPv4 SEND (54 bytes of headers)
// begins on a cache line of its own.
inline constexpr std::uint32_t kFrameOffset = 10;

// Largest frame a ring carries: 4096 bytes of payload with every header there is.
inline constexpr std::uint32_t kMaxFrame = 4096 + 256;

enum class ConsumerState : std::uint32_t {
  armed = 0,           // set my inbox bit, and kick me when I sleep
  app_polling = 1,     // the application polls this ring
  helper_polling = 2,  // the helper thread (or the eSwitch) polls this ring
};

struct RingHeader {
  // Written once by the NIC process.
  std::uint32_t data_size;  // bytes, a power of two, multiple of 4096
  std::uint32_t reserved0[15];
  // Written by the producer.
  alignas(64) std::atomic<std::uint32_t> want_space;  // non-zero: kick me when there is room
  // Written by the consumer.
  alignas(64) std::atomic<std::uint64_t> head;  // bytes consumed since the start
  // Likewise; on a line of its own because the producer looks at it after every batch.
  alignas(64) std::atomic<std::uint32_t> state;  // ConsumerState
  std::atomic<std::uint32_t> acked_epoch;        // number of the last mark taken, by whichever route
};
static_assert(sizeof(RingHeader) <= kRingDataOffset);

// A channel is a memfd with two rings: ring 0 at offset 0, ring 1 at ring_bytes(). The lower VF id (or
// the VF, on a channel to the eSwitch) produces into ring 0 and consumes ring 1.
inline constexpr std::uint64_t ring_bytes(std::uint32_t data_size) {
  return std::uint64_t{kRingDataOffset} + data_size;
}
inline constexpr std::uint64_t channel_bytes(std::uint32_t data_size) { return 2 * ring_bytes(data_size); }

// ---- The inbox of a VF or of the eSwitch ---------------------------------------------------------------
// A sender whose ring is armed sets the bit of the ring's slot at the receiver, then its group bit; when
// `sleeping` is set it clears it and writes 1 to the receiver's eventfd.
inline constexpr std::uint32_t kInboxSlots = 4096;
struct Inbox {
  alignas(64) std::atomic<std::uint32_t> sleeping;
  alignas(64) std::atomic<std::uint64_t> groups;  // bit g: some bit in bits[g]
  alignas(64) std::atomic<std::uint64_t> bits[kInboxSlots / 64];
  // In the eSwitch's inbox only: parties of the NIC that poll right now, the eSwitch included; more than CPUs: an
  // empty poll yields. A hint. When a VF dies with StatusPage::polling set, the NIC process takes it off.
  alignas(64) std::atomic<std::uint32_t> busy_pollers;
  // The owner relies on its senders' fences (fences.h). Written once, before anything is sent to it.
  alignas(64) std::atomic<std::uint32_t> needs_fences;
  // A sender has waited for the application of this VF, which counts as polling, and asks its helper to look.
  alignas(64) std::atomic<std::uint32_t> nudged;
};

// ---- Which VF owns which QPN block; read-only for VFs ------------------------------------------------------
inline constexpr std::uint32_t kQpnBlockShift = 12;
inline constexpr std::uint32_t kQpnBlocks = 1u << (24 - kQpnBlockShift);
inline constexpr std::uint16_t kNoVf = 0;  // VF ids start at 1
struct BlockTable {
  // Id of the VF that has the block, or had it last: what a VF sent before it ended can still be in rings. kNoVf:
  // nobody yet.
  std::atomic<std::uint16_t> owner[kQpnBlocks];
};

// ---- The status page of a VF: written by the VF, read by the NIC process as untrusted input ------------------
struct QpStatus {
  std::atomic<std::uint32_t> qpn;  // 0: free
  std::uint8_t type, state;
  std::uint16_t peer_vf;
  std::uint32_t dest_qpn, sq_psn, rq_psn;
  std::uint32_t device;        // index
  std::uint64_t counters[16];  // order of softrnic::ib::QpCounters
};
inline constexpr std::uint32_t kStatusQps = 16384;
inline constexpr std::uint32_t kStatusDevices = 16;  // those beyond have no counters of the device
struct StatusPage {
  std::atomic<std::uint64_t> progress_epoch;
  std::atomic<std::uint32_t> qps, mrs, cqs, contexts;
  std::atomic<std::uint32_t> route_epoch_done;
  std::atomic<std::uint32_t> polling;  // 1: counted in busy_pollers
  std::uint32_t reserved[8];
  std::uint64_t retired[kStatusDevices][16];  // sums of the counters of queue pairs that are no more, by device
  std::uint64_t received[16];                 // order of softrnic::nic::DropCounters
  QpStatus qp[kStatusQps];                    // touched lazily
};

}  // namespace softrnic::dp
