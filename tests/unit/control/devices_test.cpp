// The device in host-local mode: identity and GID table.
#include <arpa/inet.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "engine/control/server/host_devices.h"

using namespace softrnic;
using namespace softrnic::control;

namespace {

HostAddress address(const char* text, const char* netdev, unsigned ifindex, bool loopback = false) {
  HostAddress a;
  in_addr v4{};
  if (::inet_pton(AF_INET, text, &v4) == 1) {
    a.gid.raw[10] = a.gid.raw[11] = 0xFF;
    std::memcpy(a.gid.raw + 12, &v4, 4);
  } else {
    REQUIRE(::inet_pton(AF_INET6, text, a.gid.raw) == 1);
  }
  a.netdev = netdev;
  a.ifindex = ifindex;
  a.loopback = loopback;
  return a;
}

std::string text_of(const Gid& gid) {
  char text[64];
  return ::inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
}

HostView machine() {
  HostView host;
  host.addresses = {address("127.0.0.1", "lo", 1, true), address("::1", "lo", 1, true),
                    address("2001:db8::5", "eth0", 2),   address("10.1.2.3", "eth0", 2),
                    address("10.9.9.9", "eth1", 3),      address("fe80::5054:ff:fe12:3456", "eth0", 2)};
  host.primary_netdev = "eth0";
  host.primary_ifindex = 2;
  host.mac = {0x52, 0x54, 0x00, 0x12, 0x34, 0x56};
  host.identity = "machine";
  return host;
}

}  // namespace

TEST_CASE("GID table: link-local at 0 and 1, primary IPv4 at 2 and 3, loopback last", "[control][gid]") {
  const DeviceConfig config = host_devices(machine());
  std::vector<std::string> v1, v2;
  for (const GidRecord& g : config.gids) {
    CHECK(g.index == static_cast<std::uint32_t>(&g - config.gids.data()));
    CHECK(g.type == g.index % 2);
    (g.type == 0 ? v1 : v2).push_back(text_of(g.gid));
  }
  CHECK(v1 == v2);
  CHECK(v1 == std::vector<std::string>{"fe80::5054:ff:fe12:3456", "::ffff:10.1.2.3", "::ffff:10.9.9.9", "2001:db8::5",
                                       "::ffff:127.0.0.1", "::1"});
  CHECK(config.gids[3].ndev_ifindex == 2);
}

TEST_CASE("GID table without any network: loopback IPv4 at 2 and 3", "[control][gid]") {
  HostView host;
  host.identity = "machine";
  host.primary_netdev = "lo";
  SECTION("no interface is up") {}
  SECTION("only lo") { host.addresses = {address("127.0.0.1", "lo", 1, true), address("::1", "lo", 1, true)}; }
  SECTION("IPv6 only") { host.addresses = {address("2001:db8::5", "eth0", 2), address("::1", "lo", 1, true)}; }
  const DeviceConfig config = host_devices(host);
  REQUIRE(config.gids.size() >= 4);
  CHECK(text_of(config.gids[2].gid) == "::ffff:127.0.0.1");
  CHECK(text_of(config.gids[3].gid) == "::ffff:127.0.0.1");
  for (const GidRecord& g : config.gids) CHECK_FALSE(g.gid == Gid{});
}

TEST_CASE("A device without a network interface has a MAC and GUIDs all the same", "[control][gid]") {
  HostView host;
  host.identity = "machine";
  const DeviceRecord d = host_devices(host).devices.at(0);
  CHECK((d.mac[0] & 0x03) == 0x02);  // locally administered, unicast
  CHECK(d.node_guid != 0);
  CHECK(d.sys_image_guid != 0);
  CHECK(derive_mac("machine") == derive_mac("machine"));
  CHECK(derive_mac("machine") != derive_mac("another"));
}

TEST_CASE("Vendor id is neither 0 nor 0xFFFFFF", "[control]") {
  const DeviceRecord d = host_devices(machine()).devices.at(0);
  CHECK(d.vendor_id != 0);
  CHECK(d.vendor_id < 0xFFFFFF);
  CHECK(d.max_inline >= 512);
  CHECK(d.active_mtu == 4096);
}

TEST_CASE("EUI-64 of a MAC (RFC 4291 appendix A)", "[control][gid]") {
  CHECK(eui64_of({0x34, 0x56, 0x78, 0x9A, 0xBC, 0xDE}) ==
        std::array<std::uint8_t, 8>{0x36, 0x56, 0x78, 0xFF, 0xFE, 0x9A, 0xBC, 0xDE});
}

TEST_CASE("This host can be read", "[control][gid]") {
  const DeviceConfig config = host_devices(read_host());
  REQUIRE(config.devices.size() == 1);
  CHECK(config.gids.size() >= 4);
  CHECK(config.devices[0].num_gids == config.gids.size());
}

TEST_CASE("GID table after a change: what stays keeps its index, what is new fills the gaps", "[control][gid]") {
  HostView host = machine();
  const auto before = host_devices(host).gids;
  host.addresses.erase(host.addresses.begin() + 4);  // 10.9.9.9, at 4 and 5
  const auto without = merge_gids(before, host_devices(host).gids);
  REQUIRE(without.size() == before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(without[i].index == i);
    if (i == 4 || i == 5) {
      CHECK(without[i].gid == Gid{});
    } else {
      CHECK(without[i].gid == before[i].gid);
    }
  }
  host.addresses.push_back(address("10.7.7.7", "eth2", 4));
  host.addresses.push_back(address("10.8.8.8", "eth2", 4));
  const auto after = merge_gids(without, host_devices(host).gids);
  REQUIRE(after.size() == before.size() + 2);
  CHECK(text_of(after[4].gid) == "::ffff:10.7.7.7");
  CHECK(text_of(after[5].gid) == "::ffff:10.7.7.7");
  CHECK(text_of(after[after.size() - 1].gid) == "::ffff:10.8.8.8");
  for (std::size_t i = 0; i < after.size(); ++i) {
    CHECK(after[i].index == i);
    CHECK(after[i].type == i % 2);
  }
  CHECK(merge_gids(after, host_devices(machine()).gids).size() == before.size());
}

TEST_CASE("Each port is a device with the port's addresses", "[devices]") {
  PortView one, two;
  one.netdev = "veth0";
  one.ifindex = 7;
  one.mac = {2, 0, 0, 0, 0, 1};
  one.roce_mtu = 4096;
  one.addresses = {{address("fe80::ff:fe00:1", "", 0).gid, 0xFFFF},
                   {address("fe80::ff:fe00:1", "", 0).gid, 7},
                   {address("fd00::1", "", 0).gid, 0xFFFF},
                   {address("10.0.0.1", "", 0).gid, 0xFFFF},
                   {address("10.7.0.1", "", 0).gid, 7}};
  two.mac = {2, 0, 0, 0, 0, 2};
  two.addresses = {{address("fe80::ff:fe00:2", "", 0).gid, 0xFFFF}};
  const DeviceConfig c = port_devices({one, two});
  REQUIRE(c.devices.size() == 2);
  CHECK(std::string(c.devices[0].name) == "roce0");
  CHECK(std::string(c.devices[1].name) == "roce1");
  CHECK(std::string(c.devices[0].netdev) == "veth0");
  CHECK(c.devices[0].active_mtu == 4096);
  CHECK(c.devices[1].active_mtu == 1024);
  CHECK(c.devices[0].num_gids == 10);
  CHECK(c.devices[1].num_gids == 2);
  std::string table;
  for (const GidRecord& g : c.gids)
    table += std::to_string(g.device) + ":" + std::to_string(g.index) + " v" + std::to_string(g.type + 1) + " " +
             text_of(g.gid) + (g.vlan_id != 0xFFFF ? " vlan " + std::to_string(g.vlan_id) : "") + "\n";
  CHECK(table ==
        "0:0 v1 fe80::ff:fe00:1\n0:1 v2 fe80::ff:fe00:1\n"
        "0:2 v1 ::ffff:10.0.0.1\n0:3 v2 ::ffff:10.0.0.1\n"
        "0:4 v1 ::ffff:10.7.0.1 vlan 7\n0:5 v2 ::ffff:10.7.0.1 vlan 7\n"
        "0:6 v1 fd00::1\n0:7 v2 fd00::1\n"
        "0:8 v1 fe80::ff:fe00:1 vlan 7\n0:9 v2 fe80::ff:fe00:1 vlan 7\n"
        "1:0 v1 fe80::ff:fe00:2\n1:1 v2 fe80::ff:fe00:2\n");
}

TEST_CASE("A change of one device's addresses leaves the tables of the others alone", "[devices]") {
  PortView one, two;
  one.mac = {2, 0, 0, 0, 0, 1};
  one.addresses = {{address("10.0.0.1", "", 0).gid, 0xFFFF}, {address("10.7.0.1", "", 0).gid, 7}};
  two.mac = {2, 0, 0, 0, 0, 2};
  two.addresses = {{address("10.1.0.1", "", 0).gid, 0xFFFF}};
  const auto before = port_devices({one, two}).gids;
  REQUIRE(before.size() == 6);
  one.addresses.erase(one.addresses.begin());
  one.addresses.push_back({address("10.7.0.1", "", 0).gid, 8});  // the same address in another VLAN is another entry
  one.addresses.push_back({address("fd00::1", "", 0).gid, 0xFFFF});
  const auto after = merge_gids(before, port_devices({one, two}).gids);
  REQUIRE(after.size() == 8);
  std::vector<std::string> shown;
  for (const GidRecord& g : after)
    shown.push_back(std::to_string(g.device) + " " + std::to_string(g.index) + " " + text_of(g.gid) + " " +
                    std::to_string(g.vlan_id));
  CHECK(shown == std::vector<std::string>{"0 0 ::ffff:10.7.0.1 8", "0 1 ::ffff:10.7.0.1 8", "0 2 ::ffff:10.7.0.1 7",
                                          "0 3 ::ffff:10.7.0.1 7", "0 4 fd00::1 65535", "0 5 fd00::1 65535",
                                          "1 0 ::ffff:10.1.0.1 65535", "1 1 ::ffff:10.1.0.1 65535"});
}

TEST_CASE("The GIDs of many ports fit into a message", "[devices]") {
  PortView port;
  for (std::uint8_t i = 1; i < 200; ++i) {
    port.addresses.push_back({address("10.0.0.0", "", 0).gid, 0xFFFF});
    port.addresses.back().gid.raw[15] = i;
  }
  CHECK(port_devices({port}).gids.size() == 256);
  const DeviceConfig config = port_devices(std::vector<PortView>(32, port));
  CHECK(config.gids.size() == 1024);
  CHECK(config.gids.size() * sizeof(GidRecord) + config.devices.size() * sizeof(DeviceRecord) + sizeof(HelloReply) <
        kMaxMessage);
}
