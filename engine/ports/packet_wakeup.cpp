#include "engine/ports/packet_wakeup.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <sys/socket.h>

namespace softrnic::ports {

std::unique_ptr<PacketWakeup> PacketWakeup::open(unsigned ifindex, Direction direction) {
  auto wakeup = std::make_unique<PacketWakeup>();
  // Without a protocol it receives nothing until it is bound.
  wakeup->fd_.reset(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!wakeup->fd_) return nullptr;
  const int fd = wakeup->fd_.get();
  // One byte of each frame in that direction; our own wake nobody. While we are awake nobody reads, the smallest buffer
  // is soon full, and the kernel then drops at once what it would have queued.
  const std::uint32_t when_outgoing = direction == Direction::sent ? 1 : 0;
  sock_filter code[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(SKF_AD_OFF + SKF_AD_PKTTYPE)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, PACKET_OUTGOING},
      {BPF_RET | BPF_K, 0, 0, when_outgoing},
      {BPF_RET | BPF_K, 0, 0, 1 - when_outgoing},
  };
  const sock_fprog program{4, code};
  const int smallest = 0;
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(ifindex);
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &smallest, sizeof(smallest)) != 0 ||
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return nullptr;
  return wakeup;
}

bool PacketWakeup::drain() {
  char byte;
  bool any = false;
  while (::recv(fd_.get(), &byte, 1, MSG_TRUNC) >= 0) any = true;
  return any;
}

}  // namespace softrnic::ports
