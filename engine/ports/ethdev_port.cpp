#include "engine/ports/ethdev_port.h"

#include <fmt/format.h>
#include <net/if.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_mbuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace softrnic::ports {
namespace {

constexpr unsigned kBurst = 32;
// Buffers: as many as fit, within these bounds; the rings of real NICs alone hold 1024.
constexpr std::uint32_t kBufferBytes = 40u << 20;
constexpr std::uint32_t kMinBuffers = 2048, kMaxBuffers = 4096;
constexpr unsigned kBufferCache = 256;
constexpr std::uint16_t kDescriptors = 512;
constexpr std::uint32_t kFrameOverhead = 18;  // Ethernet header and one VLAN tag
// Of each of the two rings of net_af_packet, which are locked memory.
constexpr std::uint32_t kRingBytes = 16u << 20;
constexpr std::uint32_t kSmallRingBytes = 2u << 20;

// The kernel's MTU of an interface, 0 when there is no such interface.
std::uint32_t kernel_mtu(const std::string& iface) {
  ifreq request{};
  if (iface.empty() || iface.size() >= sizeof(request.ifr_name)) return 0;
  std::strcpy(request.ifr_name, iface.c_str());
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 0;
  const bool good = ::ioctl(fd, SIOCGIFMTU, &request) == 0;
  ::close(fd);
  return good ? static_cast<std::uint32_t>(request.ifr_mtu) : 0;
}

// May this process lock so much memory? (Without CAP_IPC_LOCK, RLIMIT_MEMLOCK is often 8 MiB.)
bool may_lock(std::size_t bytes) {
  void* area = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED) return false;
  const bool good = ::mlock2(area, bytes, MLOCK_ONFAULT) == 0;
  ::munmap(area, bytes);
  return good;
}

}  // namespace

struct EthdevPort::Impl {
  std::string device_name;
  std::uint16_t id = RTE_MAX_ETHPORTS;
  std::uint32_t mtu = 1500;
  std::uint32_t ring_frame = 0;  // bytes that the device wants to be able to put into a buffer
  neigh::Mac mac{};
  unsigned ifindex = 0;
  rte_mempool* pool = nullptr;
  rte_mbuf* tx[kBurst];
  unsigned tx_count = 0;  // complete frames in tx[]; the buffer of begin() stands behind them
  std::uint64_t taken = 0;
  std::atomic<std::uint64_t> too_long{0};
  bool open_buffer = false;

  int attach(const PortConfig& config, std::string* why);
  int configure(const PortConfig& config, std::string* why);
  int fail(int error, const char* what, std::string* why) const {
    *why = fmt::format("port {}: {}: {}", device_name, what, std::strerror(error));
    return error;
  }
};

EthdevPort::EthdevPort() : impl_(std::make_unique<Impl>()) {}

int EthdevPort::open(const PortConfig& config, std::unique_ptr<EthdevPort>* out, std::string* why) {
  std::unique_ptr<EthdevPort> port(new EthdevPort);
  Impl& d = *port->impl_;
  d.device_name = ports::device_name(config.device);
  int error = d.attach(config, why);
  if (error == 0) error = d.configure(config, why);
  if (error == 0) *out = std::move(port);
  return error;
}

// Makes the device known to DPDK and finds out its MTU.
int EthdevPort::Impl::attach(const PortConfig& config, std::string* why) {
  const std::string iface = device_argument(config.device, "iface");
  const std::uint32_t kernel = kernel_mtu(iface);
  const bool on_interface = is_driver(config.device, "net_af_packet") || is_driver(config.device, "net_af_xdp");
  if (on_interface && kernel == 0) {
    *why = fmt::format("port {}: there is no network interface '{}' here", device_name, iface);
    return ENODEV;
  }
  if (on_interface && config.mtu > kernel) {
    *why = fmt::format("port {}: MTU {} is more than the {} of interface {}", device_name, config.mtu, kernel, iface);
    return EINVAL;
  }
  if (config.mtu != 0) {
    mtu = config.mtu;
  } else if (kernel != 0) {
    mtu = std::clamp(kernel, kMinMtu, kMaxMtu);
  }
  const std::string arguments =
      device_for_mtu(config.device, mtu, may_lock(2 * kRingBytes) ? kRingBytes : kSmallRingBytes);
  ring_frame = static_cast<std::uint32_t>(std::strtoul(device_argument(arguments, "framesz").c_str(), nullptr, 10));
  const int error = rte_dev_probe(arguments.c_str());
  if (error == -EFAULT || error == -ENODEV) return fail(ENODEV, "no driver of this name", why);
  if (error != 0 && error != -EEXIST) return fail(-error, "cannot be opened", why);
  if (rte_eth_dev_get_port_by_name(device_name.c_str(), &id) != 0) return fail(ENODEV, "is no network device", why);
  ifindex = iface.empty() ? 0 : ::if_nametoindex(iface.c_str());
  return 0;
}

int EthdevPort::Impl::configure(const PortConfig& config, std::string* why) {
  rte_eth_dev_info info{};
  if (const int error = rte_eth_dev_info_get(id, &info); error != 0)
    return fail(-error, "does not describe itself", why);
  const std::uint32_t room = std::max({mtu + kFrameOverhead, ring_frame, 2048u}) + RTE_PKTMBUF_HEADROOM;
  const std::uint32_t buffers = std::clamp(kBufferBytes / room, kMinBuffers, kMaxBuffers);
  pool = rte_pktmbuf_pool_create(fmt::format("softrnic-{}", id).c_str(), buffers, kBufferCache, 0,
                                 static_cast<std::uint16_t>(room), SOCKET_ID_ANY);
  if (pool == nullptr) return fail(rte_errno, "no memory for its buffers", why);

  rte_eth_conf conf{};
  // net_af_packet claims that it takes no more than 1518 bytes, whatever its rings hold.
  conf.rxmode.mtu = std::min(mtu, info.max_mtu != 0 ? info.max_mtu : mtu);
  if (info.max_rx_pktlen > RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN)
    conf.rxmode.mtu =
        std::min<std::uint32_t>(conf.rxmode.mtu, info.max_rx_pktlen - RTE_ETHER_HDR_LEN - RTE_ETHER_CRC_LEN);
  if (const int error = rte_eth_dev_configure(id, 1, 1, &conf); error != 0)
    return fail(-error, "cannot be configured", why);
  std::uint16_t rx = kDescriptors, tx_size = kDescriptors;
  rte_eth_dev_adjust_nb_rx_tx_desc(id, &rx, &tx_size);
  const int socket = rte_eth_dev_socket_id(id);
  if (const int error = rte_eth_rx_queue_setup(id, 0, rx, static_cast<unsigned>(socket), nullptr, pool); error != 0)
    return fail(-error, "has no receive queue", why);
  if (const int error = rte_eth_tx_queue_setup(id, 0, tx_size, static_cast<unsigned>(socket), nullptr); error != 0)
    return fail(-error, "has no send queue", why);
  // net_af_packet has its interface's, and would change that; net_pcap has none.
  if (config.mtu != 0 && !is_driver(config.device, "net_af_packet")) {
    const int error = rte_eth_dev_set_mtu(id, static_cast<std::uint16_t>(mtu));
    if (error != 0 && error != -ENOTSUP) return fail(-error, "does not take that MTU", why);
  }
  if (const int error = rte_eth_dev_start(id); error != 0) return fail(-error, "does not start", why);
  // The station on this port has a MAC of its own, and is in multicast groups.
  rte_eth_promiscuous_enable(id);
  rte_ether_addr address{};
  rte_eth_macaddr_get(id, &address);
  std::memcpy(mac.data(), address.addr_bytes, 6);
  return 0;
}

EthdevPort::~EthdevPort() {
  Impl& d = *impl_;
  if (d.tx_count != 0 || d.open_buffer) rte_pktmbuf_free_bulk(d.tx, d.tx_count + (d.open_buffer ? 1 : 0));
  if (d.id != RTE_MAX_ETHPORTS) {
    rte_eth_dev_stop(d.id);
    rte_device* device = nullptr;
    rte_eth_dev_info info{};
    if (rte_eth_dev_info_get(d.id, &info) == 0) device = info.device;
    rte_eth_dev_close(d.id);
    if (device != nullptr) rte_dev_remove(device);
  }
  rte_mempool_free(d.pool);
}

const std::string& EthdevPort::name() const { return impl_->device_name; }
std::uint32_t EthdevPort::mtu() const { return impl_->mtu; }
const neigh::Mac& EthdevPort::device_mac() const { return impl_->mac; }
unsigned EthdevPort::kernel_ifindex() const { return impl_->ifindex; }

bool EthdevPort::link_up() const {
  rte_eth_link link{};
  return rte_eth_link_get_nowait(impl_->id, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

EthdevStats EthdevPort::stats() const {
  rte_eth_stats s{};
  if (rte_eth_stats_get(impl_->id, &s) != 0) return {};
  return {s.ipackets,  s.ibytes,  s.opackets,
          s.obytes,    s.imissed, s.ierrors,
          s.rx_nombuf, s.oerrors, impl_->too_long.load(std::memory_order_relaxed)};
}

int EthdevPort::receive(int budget, OnFrame on_frame, void* ctx) {
  rte_mbuf* burst[kBurst];
  int total = 0;
  while (total < budget) {
    const auto want = static_cast<std::uint16_t>(std::min<int>(kBurst, budget - total));
    const std::uint16_t got = rte_eth_rx_burst(impl_->id, 0, burst, want);
    for (std::uint16_t i = 0; i < got; ++i) {
      rte_mbuf* m = burst[i];
      if ((m->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) != 0) rte_vlan_insert(&m);
      if (m->nb_segs == 1) {
        on_frame(ctx, {rte_pktmbuf_mtod(m, std::uint8_t*), m->data_len});
      } else {  // in several buffers: longer than the MTU
        impl_->too_long.fetch_add(1, std::memory_order_relaxed);
      }
      burst[i] = m;
    }
    rte_pktmbuf_free_bulk(burst, got);
    total += got;
    if (got < want) break;
  }
  return total;
}

bool EthdevPort::has_room() {
  if (impl_->open_buffer || impl_->tx_count < kBurst) return true;
  flush();
  return impl_->tx_count < kBurst;
}

MutableBytes EthdevPort::begin() {
  Impl& d = *impl_;
  if (!has_room()) return {};
  if (!d.open_buffer) {
    rte_mbuf* m = rte_pktmbuf_alloc(d.pool);
    if (m == nullptr) return {};
    d.tx[d.tx_count] = m;
    d.open_buffer = true;
  }
  return {rte_pktmbuf_mtod(d.tx[d.tx_count], std::uint8_t*), d.mtu + kFrameOverhead};
}

void EthdevPort::commit(std::size_t length) {
  Impl& d = *impl_;
  rte_mbuf* m = d.tx[d.tx_count++];
  d.open_buffer = false;
  m->data_len = static_cast<std::uint16_t>(length);
  m->pkt_len = static_cast<std::uint32_t>(length);
  if (d.tx_count == kBurst) flush();
}

unsigned EthdevPort::discard() {
  Impl& d = *impl_;
  const unsigned lost = d.tx_count;
  rte_pktmbuf_free_bulk(d.tx, lost);
  if (d.open_buffer) d.tx[0] = d.tx[lost];
  d.tx_count = 0;
  return lost;
}

bool EthdevPort::flush() {
  Impl& d = *impl_;
  if (d.tx_count == 0) return true;
  const std::uint16_t sent = rte_eth_tx_burst(d.id, 0, d.tx, static_cast<std::uint16_t>(d.tx_count));
  const unsigned left = d.tx_count + (d.open_buffer ? 1 : 0) - sent;
  std::memmove(d.tx, d.tx + sent, left * sizeof(d.tx[0]));
  d.tx_count -= sent;
  d.taken += sent;
  return d.tx_count == 0;
}

unsigned EthdevPort::unsent() const { return impl_->tx_count; }
std::uint64_t EthdevPort::taken() const { return impl_->taken; }

}  // namespace softrnic::ports
