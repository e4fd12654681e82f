// A port on net_pcap: frames from one file, frames into another.
#include <pcap/pcap.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "engine/ports/eal.h"
#include "engine/ports/host_port.h"
#include "tests/unit/neigh/station.h"

using namespace softrnic;
using namespace softrnic::ports;
using neigh::test::Frame;

namespace {

constexpr std::uint32_t kOurIp = 0x0A000001, kPeerIp = 0x0A000002;
const neigh::Mac kOur{0x02, 0, 0, 0, 0, 0x01}, kPeer{0x02, 0, 0, 0, 0, 0x02};

// A directory that is gone after the tests.
struct Directory {
  Directory() {
    char text[] = "/tmp/softrnic-ports-XXXXXX";
    path = ::mkdtemp(text);
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::string path;
};
std::string temporary(const std::string& name) {
  static const Directory dir;
  return dir.path + "/" + name;
}

void start_dpdk() {
  static const bool started = [] {
    std::string why;
    INFO(why);
    return start_eal({.memory_mib = memory_for_ports(8), .runtime_dir = temporary("")}, &why) == 0;
  }();
  REQUIRE(started);
}

void write_pcap(const std::string& path, const std::vector<Frame>& frames) {
  pcap_t* p = ::pcap_open_dead(DLT_EN10MB, 65535);
  pcap_dumper_t* d = ::pcap_dump_open(p, path.c_str());
  REQUIRE(d != nullptr);
  for (const Frame& f : frames) {
    pcap_pkthdr h{};
    h.caplen = h.len = static_cast<bpf_u_int32>(f.size());
    ::pcap_dump(reinterpret_cast<u_char*>(d), &h, f.data());
  }
  ::pcap_dump_close(d);
  ::pcap_close(p);
}
std::vector<Frame> read_pcap(const std::string& path) {
  char error[PCAP_ERRBUF_SIZE];
  pcap_t* p = ::pcap_open_offline(path.c_str(), error);
  REQUIRE(p != nullptr);
  std::vector<Frame> frames;
  pcap_pkthdr* h = nullptr;
  const u_char* data = nullptr;
  while (::pcap_next_ex(p, &h, &data) == 1) frames.emplace_back(data, data + h->caplen);
  ::pcap_close(p);
  return frames;
}

// A UDP packet of RoCE's port from the peer to us, or the other way.
Frame roce_frame(std::uint32_t src, std::uint32_t dst, std::size_t size) {
  Frame udp(8 + size, 0x77);
  store_be16(udp.data(), 0xC000);
  store_be16(udp.data() + 2, 4791);
  store_be16(udp.data() + 4, static_cast<std::uint16_t>(udp.size()));
  return neigh::test::ipv4(src, dst, 17, udp, kOur);
}

// The port with 10.0.0.1/24 on a fresh net_pcap device.
struct Rig {
  explicit Rig(const std::vector<Frame>& in, std::uint32_t mtu = 1500) {
    start_dpdk();
    static int number = 0;
    out_path = temporary("out" + std::to_string(++number));
    const std::string in_path = temporary("in" + std::to_string(number));
    write_pcap(in_path, in);
    config.device = "net_pcap" + std::to_string(number) + ",rx_pcap=" + in_path + ",tx_pcap=" + out_path;
    config.mac = kOur;
    config.mtu = mtu;
    config.addresses.push_back({neigh::from_ipv4(kOurIp), 24, neigh::kNoVlan});
    std::unique_ptr<EthdevPort> device;
    std::string why;
    const int error = EthdevPort::open(config, &device, &why);
    INFO(why);
    REQUIRE(error == 0);
    port = std::make_unique<HostPort>(std::move(device), config, now);
  }
  int receive() {
    int total = 0;
    while (const int n = port->receive(
               now, 32, [](void* me, Bytes f) { static_cast<Rig*>(me)->got.emplace_back(f.begin(), f.end()); }, this))
      total += n;
    port->flush();
    return total;
  }
  // What the port has sent; ends it.
  std::vector<Frame> sent() {
    port.reset();
    return read_pcap(out_path);
  }

  PortConfig config;
  std::unique_ptr<HostPort> port;
  std::vector<Frame> got;
  std::string out_path;
  Nanos now = 1'000'000'000;
};

}  // namespace

TEST_CASE("A port answers ARP and echo itself and hands on the rest", "[port]") {
  const Frame roce = roce_frame(kPeerIp, kOurIp, 100);
  Frame other = roce, reflected = roce;
  other[5] = 0x99;
  std::copy(kOur.begin(), kOur.end(), reflected.begin() + 6);
  Rig rig({neigh::test::arp_request(kPeerIp, kOurIp),
           neigh::test::ipv4(kPeerIp, kOurIp, 1, neigh::test::icmp(8, Frame(12))), roce, other, reflected, Frame(13)});
  CHECK(rig.receive() == 6);
  REQUIRE(rig.got.size() == 1);
  CHECK(rig.got[0] == roce);
  const PortCounters c = rig.port->counters();
  CHECK(c.rx_frames == 6);
  CHECK(c.rx_own == 2);
  CHECK(c.rx_reflected == 1);
  CHECK(c.rx_too_short == 1);
  CHECK(c.rx_other_station == 1);
  std::size_t arp_replies = 0, echo_replies = 0;
  for (const Frame& f : rig.sent()) {
    CHECK(neigh::load_mac(f.data() + 6) == kOur);
    if (neigh::test::type_of(f) == wire::kEthertypeArp && neigh::test::arp_of(f).operation == 2) ++arp_replies;
    if (neigh::test::type_of(f) == wire::kEthertypeIpv4 && f[14 + 9] == 1 && f[34] == 0) ++echo_replies;
  }
  CHECK(arp_replies == 1);
  CHECK(echo_replies == 1);
}

TEST_CASE("A frame to an unknown neighbour waits for it, gets its address and leaves", "[port]") {
  Rig rig({neigh::test::arp_reply(kPeerIp)});
  Frame frame = roce_frame(kOurIp, kPeerIp, 64);
  std::fill(frame.begin(), frame.begin() + 12, 0);
  rig.port->send(rig.now, neigh::from_ipv4(kPeerIp), neigh::kNoVlan, frame);
  rig.receive();
  rig.port->send(rig.now, neigh::from_ipv4(kPeerIp), neigh::kNoVlan, frame);
  rig.port->flush();
  const PortCounters c = rig.port->counters();
  CHECK(c.tx_unreachable == 0);
  std::size_t found = 0;
  for (const Frame& f : rig.sent()) {
    if (neigh::test::type_of(f) != wire::kEthertypeIpv4) continue;
    ++found;
    CHECK(neigh::load_mac(f.data()) == kPeer);
    CHECK(neigh::load_mac(f.data() + 6) == kOur);
    CHECK(std::equal(f.begin() + 12, f.end(), frame.begin() + 12, frame.end()));
  }
  CHECK(found == 2);
}

TEST_CASE("Frames nobody can get are dropped and counted", "[port]") {
  Rig rig({});
  Frame frame = roce_frame(kOurIp, kPeerIp, 64);
  rig.port->send(rig.now, neigh::from_ipv4(0x08080808), neigh::kNoVlan, frame);  // no route
  rig.port->send(rig.now, neigh::from_ipv4(kPeerIp), neigh::kNoVlan, frame);     // no answer
  for (int i = 0; i < 3; ++i) {
    rig.now = rig.port->next_timeout();
    rig.port->on_timeout(rig.now);
  }
  rig.now += 3'000'000'000;
  rig.port->on_timeout(rig.now);
  Frame long_frame = roce_frame(kOurIp, kPeerIp, 1480);
  rig.port->send(rig.now, neigh::from_ipv4(kPeerIp), neigh::kNoVlan, long_frame);
  const PortCounters c = rig.port->counters();
  CHECK(c.tx_unreachable == 1);
  CHECK(c.tx_too_long == 1);
}

TEST_CASE("Addresses come and go at run time, with the link-local one and the groups of their VLAN", "[port]") {
  Rig rig({});
  neigh::HostStack& host = rig.port->host();
  const Gid link_local = neigh::link_local_of(kOur), ip = neigh::from_ipv4(0x0A070001);
  const Gid group = neigh::from_ipv4(0xEF010203);
  rig.port->set_group_member(rig.now, group, true);
  rig.port->set_group_member(rig.now, group, true);
  CHECK(host.own(link_local, 7) == nullptr);
  CHECK(rig.port->add_address(rig.now, {ip, 24, 7}) == 0);
  CHECK(rig.port->add_address(rig.now, {ip, 24, 7}) == EEXIST);
  CHECK(rig.port->add_address(rig.now, {group, 24, 8}) == EINVAL);
  CHECK(host.own(ip, 7) != nullptr);
  CHECK(host.own(link_local, 7) != nullptr);
  CHECK(host.own(link_local, 8) == nullptr);
  CHECK(host.member(group, 7));
  CHECK(host.member(group, neigh::kNoVlan));

  CHECK(rig.port->remove_address(rig.now, link_local, 7) == EPERM);
  CHECK(rig.port->remove_address(rig.now, ip, neigh::kNoVlan) == EADDRNOTAVAIL);
  CHECK(rig.port->remove_address(rig.now, ip, 7) == 0);
  CHECK(host.own(link_local, 7) == nullptr);
  CHECK_FALSE(host.member(group, 7));
  rig.port->set_group_member(rig.now, group, false);
  CHECK(host.member(group, neigh::kNoVlan));
  rig.port->set_group_member(rig.now, group, false);
  CHECK_FALSE(host.member(group, neigh::kNoVlan));
  CHECK(rig.port->remove_address(rig.now, neigh::from_ipv4(kOurIp), neigh::kNoVlan) == 0);
  CHECK(host.own(link_local, neigh::kNoVlan) != nullptr);
}

TEST_CASE("A port carries jumbo frames when its MTU says so", "[port]") {
  Rig rig({neigh::test::arp_request(kPeerIp, kOurIp), roce_frame(kPeerIp, kOurIp, 8000)}, 9000);
  CHECK(rig.receive() == 2);
  REQUIRE(rig.got.size() == 1);
  CHECK(rig.got[0].size() == 42 + 8000);
  CHECK(rig.port->mtu() == 9000);
}

TEST_CASE("A device that does not exist is refused with a reason", "[port]") {
  start_dpdk();
  for (const char* device : {"net_af_packet77,iface=none-here", "net_nothing0", "0000:ff:1f.7"}) {
    PortConfig config;
    config.device = device;
    std::unique_ptr<EthdevPort> port;
    std::string why;
    CHECK(EthdevPort::open(config, &port, &why) == ENODEV);
    CHECK(why.find(device_name(device)) != std::string::npos);
  }
}
