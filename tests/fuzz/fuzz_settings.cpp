// What users write, under arbitrary text: configuration files, addresses, routes, MACs. And capture filters under
// arbitrary frames; their text is libpcap's business, which would ask the network for the names of hosts.
//
// First byte mod 3: 0 a file, 1 a setting, 2 a frame.
#include <memory>
#include <string>

#include "engine/observe/packet_filter.h"
#include "engine/ports/port_config.h"
#include "tests/fuzz/fuzz_target.h"

namespace softrnic::fuzz {
namespace {

void check(const neigh::OwnAddress& a) {
  Gid again{};
  FUZZ_CHECK(ports::parse_ip(ports::to_string(a.ip), &again) && again == a.ip);
  FUZZ_CHECK(a.prefix_length <= 128);
  FUZZ_CHECK(a.vlan == neigh::kNoVlan || (a.vlan >= 1 && a.vlan <= 4094));
}

void file(const std::string& text) {
  std::vector<ports::PortConfig> all;
  std::string why;
  if (!ports::parse_config(text, &all, &why)) {
    FUZZ_CHECK(why.find("line ") != std::string::npos);
    return;
  }
  FUZZ_CHECK(all.size() <= ports::kMaxPorts);
  for (const ports::PortConfig& p : all) {
    FUZZ_CHECK(!p.device.empty());
    FUZZ_CHECK(p.mtu == 0 || (p.mtu >= ports::kMinMtu && p.mtu <= ports::kMaxMtu));
    for (const neigh::OwnAddress& a : p.addresses) check(a);
    if (p.mac) FUZZ_CHECK((p.mac->at(0) & 1) == 0);
    ports::device_argument(ports::device_for_mtu(p.device, 9000, 1u << 20), "iface");
    ports::default_mac(p.device, {2, 0, 0, 0, 0, 1});
  }
}

void setting(const std::string& text) {
  std::string why;
  neigh::OwnAddress address;
  neigh::Route route;
  neigh::Mac mac{}, again{};
  if (ports::parse_address(text, &address, &why)) check(address);
  ports::parse_route(text, &route, &why);
  if (ports::parse_mac(text, &mac, &why))
    FUZZ_CHECK(ports::parse_mac(ports::to_string(mac), &again, &why) && again == mac);
}

void frame(const Input& bytes) {
  static const auto filters = [] {
    std::vector<std::unique_ptr<observe::PacketFilter>> all;
    std::string why;
    for (const char* text : {"udp dst port 4791 and (host 10.0.0.1 or ip6 host fe80::1)", "vlan 7 and udp[8:1] = 0x11",
                             "ether proto 0x8915 and len > 60", "icmp6 or igmp or arp", "ip6 protochain 58"}) {
      all.push_back(observe::PacketFilter::compile(text, &why));
      FUZZ_CHECK(all.back() != nullptr);
    }
    return all;
  }();
  for (const auto& f : filters) f->matches(bytes);
}

}  // namespace

std::vector<Input> seeds() {
  static const std::string kTexts[] = {
      "0port net_af_packet0,iface=veth0\n  ip 10.0.0.1/24\n  ip fd00::1/64%7\n  mtu 9000\n  mac 02:00:00:00:00:01 # "
      "ours\n"
      "  route 10.0.0.254\n  detect-duplicates yes\nport net_tap0,iface=t\nip 10.1.0.1/8\nroute 0.0.0.0/0=10.2.0.1\n",
      "0port 0000:03:00.0\n",
      "110.0.0.1/24%4094",
      "1fd00::/16=fd00::1%3",
      "102:aB:00:00:00:01",
  };
  std::vector<Input> out;
  for (const std::string& text : kTexts) out.emplace_back(text.begin(), text.end());
  // IPv4 with UDP, IPv6 with an extension header, in a VLAN.
  Input v4(60), v6(90), vlan(80);
  v4[12] = 8, v4[14] = 0x45, v4[23] = 17, v4[36] = 4791 >> 8, v4[37] = 4791 & 0xFF;
  v6[12] = 0x86, v6[13] = 0xDD, v6[14] = 0x60, v6[54] = 58;
  vlan[12] = 0x81, vlan[15] = 7, vlan[16] = 8, vlan[18] = 0x45, vlan[27] = 17;
  for (Input f : {v4, v6, vlan}) {
    f.insert(f.begin(), 2);
    out.push_back(std::move(f));
  }
  return out;
}

}  // namespace softrnic::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(data + 1, data + size);
  switch (*data % 3) {
    case 0:
      softrnic::fuzz::file(text);
      break;
    case 1:
      softrnic::fuzz::setting(text);
      break;
    default:
      softrnic::fuzz::frame({data + 1, data + size});
  }
  return 0;
}
