#include "engine/datapath/paths.h"

#include <cerrno>

#include "engine/nic/raw_io.h"

namespace softrnic::dp {

Channel::~Channel() {
  if (owns_eventfd) raw_close(peer_eventfd);
}

int Channel::open(VfId peer_vf, std::uint32_t ring_size, int ring_index, std::uint16_t slot_here,
                  std::uint16_t slot_there, int fds[3]) {
  peer = peer_vf;
  my_slot = slot_here;
  peer_slot = slot_there;
  peer_eventfd = fds[2];
  owns_eventfd = true;
  int rc = EPROTO;
  if (valid_ring_size(ring_size) && (ring_index == 0 || ring_index == 1) && my_slot < kInboxSlots &&
      peer_slot < kInboxSlots) {
    rc = memory.map(fds[0], channel_bytes(ring_size));
    if (rc == 0) rc = inbox_memory.map(fds[1], sizeof(Inbox));
  }
  raw_close(fds[0]);
  raw_close(fds[1]);
  if (rc != 0) return rc;
  peer_inbox = inbox_memory.as<Inbox>();
  std::uint64_t mine = ring_index == 0 ? 0 : ring_bytes(ring_size);
  std::uint64_t theirs = ring_bytes(ring_size) - mine;
  tx.open(memory.as<RingHeader>(mine), memory.data() + mine + kRingDataOffset, ring_size);
  rx.open(memory.as<RingHeader>(theirs), memory.data() + theirs + kRingDataOffset, ring_size);
  return 0;
}

int Channel::open_loopback(VfId self, std::uint32_t ring_size, Inbox* inbox, int eventfd) {
  peer = self;
  if (int rc = memory.map_private(ring_bytes(ring_size)); rc != 0) return rc;
  peer_inbox = inbox;
  peer_eventfd = eventfd;
  tx.open(memory.as<RingHeader>(), memory.data() + kRingDataOffset, ring_size);
  rx.open(memory.as<RingHeader>(), memory.data() + kRingDataOffset, ring_size);
  return 0;
}

}  // namespace softrnic::dp
