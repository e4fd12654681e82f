#include <catch2/catch.hpp>

#include "engine/ports/port_config.h"

using namespace softrnic;
using namespace softrnic::ports;

namespace {

std::string error_of(bool good, const std::string& why) { return good ? "" : why; }

std::string config_error(std::string_view text) {
  std::vector<PortConfig> ports;
  std::string why;
  return error_of(parse_config(text, &ports, &why), why);
}

}  // namespace

TEST_CASE("Addresses with prefix and VLAN", "[config]") {
  neigh::OwnAddress a;
  std::string why;
  REQUIRE(parse_address("10.0.0.1/24", &a, &why));
  CHECK(a.ip == neigh::from_ipv4(0x0A000001));
  CHECK(a.prefix_length == 24);
  CHECK(a.vlan == neigh::kNoVlan);
  REQUIRE(parse_address("fd00::1/64%4094", &a, &why));
  CHECK(to_string(a.ip) == "fd00::1");
  CHECK(a.prefix_length == 64);
  CHECK(a.vlan == 4094);
  REQUIRE(parse_address("10.0.0.1", &a, &why));
  CHECK(a.prefix_length == 32);
  for (const char* bad : {"", "10.0.0", "10.0.0.1/33", "10.0.0.1/", "10.0.0.1/x", "fd00::1/129", "224.0.0.1/24",
                          "0.0.0.0/0", "::/64", "ff02::1/64", "10.0.0.1/24%0", "10.0.0.1/24%4095", "10.0.0.1/24%"}) {
    INFO(bad);
    why.clear();
    CHECK_FALSE(parse_address(bad, &a, &why));
    CHECK_FALSE(why.empty());
  }
}

TEST_CASE("Routes", "[config]") {
  neigh::Route r;
  std::string why;
  REQUIRE(parse_route("10.0.0.254", &r, &why));
  CHECK(r.length == 0);
  CHECK(to_string(r.gateway) == "10.0.0.254");
  CHECK(neigh::is_ipv4(r.prefix));
  REQUIRE(parse_route("fd01::/16=fd00::fe%7", &r, &why));
  CHECK(r.length == 16);
  CHECK(to_string(r.prefix) == "fd01::");
  CHECK(r.vlan == 7);
  for (const char* bad :
       {"", "10.0.0.0/8", "10.0.0.0/8=", "10.0.0.0/8=fd00::1", "x=10.0.0.1", "10.0.0.0/40=10.0.0.1"}) {
    INFO(bad);
    CHECK_FALSE(parse_route(bad, &r, &why));
  }
}

TEST_CASE("MAC addresses", "[config]") {
  neigh::Mac m;
  std::string why;
  REQUIRE(parse_mac("02:00:5e:00:00:0F", &m, &why));
  CHECK(to_string(m) == "02:00:5e:00:00:0f");
  for (const char* bad : {"", "02:00:00:00:00", "02:00:00:00:00:0", "02-00-00-00-00-01", "01:00:00:00:00:01",
                          "00:00:00:00:00:00", "02:00:00:00:00:0g", "02:00:00:00:00:011"}) {
    INFO(bad);
    CHECK_FALSE(parse_mac(bad, &m, &why));
  }
}

TEST_CASE("A configuration file with two ports", "[config]") {
  std::vector<PortConfig> ports;
  std::string why;
  const bool good = parse_config(R"(# the lab
port net_af_packet0,iface=veth0   # comment
  ip 10.0.0.1/24
  ip	fd00::1/64
  route 10.0.0.254
  mtu 4200

port net_tap1,iface=t0
  mac 02:00:00:00:00:07
  detect-duplicates yes)",
                                 &ports, &why);
  INFO(why);
  REQUIRE(good);
  REQUIRE(ports.size() == 2);
  CHECK(ports[0].device == "net_af_packet0,iface=veth0");
  CHECK(ports[0].addresses.size() == 2);
  CHECK(ports[0].routes.size() == 1);
  CHECK(ports[0].mtu == 4200);
  CHECK_FALSE(ports[0].mac);
  REQUIRE(ports[1].mac);
  CHECK(to_string(*ports[1].mac) == "02:00:00:00:00:07");
  CHECK(ports[1].detect_duplicates);
}

TEST_CASE("Mistakes in a configuration file are told with their line", "[config]") {
  CHECK(config_error("\n\nip 10.0.0.1/24") == "line 3: there is no port before it");
  CHECK(config_error("port x\nip 10.0.0.300/24") == "line 2: 10.0.0.300/24: not an IPv4 or IPv6 address");
  CHECK(config_error("port x\n# fine\nmtu 100\nmtu 1500") == "line 3: 100: an MTU is a number from 576 to 9216");
  CHECK(config_error("port x\nspeed 10") == "line 2: speed: a port has ip, route, mac, mtu and detect-duplicates");
  CHECK(config_error("port") == "line 1: port: the value is missing");
  CHECK(config_error("port x\ndetect-duplicates maybe") == "line 2: maybe: detect-duplicates is yes or no");
  CHECK(config_error("").empty());
}

TEST_CASE("Settings that contradict each other are refused", "[config]") {
  CHECK(config_error("port x,iface=a\nport x,iface=b") == "line 2: x: there is a port on this device already");
  CHECK(config_error("port x\nip 10.0.0.1/24\nip 10.0.0.1/16") ==
        "line 3: 10.0.0.1/16: port x has this address already");
  CHECK(config_error("port x\nip 10.0.0.1/24\nport y\nip 10.0.0.1/24%7") ==
        "line 4: 10.0.0.1/24%7: port x has this address already");
  CHECK(config_error("port x\nip 10.0.0.1/24\nip 10.0.0.1/24%7").empty());
  CHECK(config_error("port x\nmac 02:00:00:00:00:01\nport y\nmac 02:00:00:00:00:01") ==
        "line 4: 02:00:00:00:00:01: port x has this MAC already");
  const std::string off_link = ": none of the port's addresses before it has the gateway in its prefix";
  CHECK(config_error("port x\nip 10.0.0.1/24\nroute 10.0.1.1") == "line 3: 10.0.1.1" + off_link);
  CHECK(config_error("port x\nip 10.0.0.1/24%7\nroute 10.0.0.2") == "line 3: 10.0.0.2" + off_link);
  CHECK(config_error("port x\nroute 10.0.0.2\nip 10.0.0.1/24") == "line 2: 10.0.0.2" + off_link);
  CHECK(config_error("port x\nip 10.0.0.1/24%7\nroute 10.0.0.2%7").empty());
  CHECK(config_error("port x\nroute fe80::1").empty());
  std::string many;
  for (std::size_t i = 0; i <= kMaxPorts; ++i) many += "port net_tap" + std::to_string(i) + "\n";
  CHECK(config_error(many) == "line 33: there are at most 32 ports");
}

TEST_CASE("Device arguments", "[config]") {
  CHECK(device_name("net_tap0,iface=x") == "net_tap0");
  CHECK(device_name("0000:03:00.0") == "0000:03:00.0");
  CHECK(device_argument("net_tap0,iface=x,mac=fixed", "mac") == "fixed");
  CHECK(device_argument("net_tap0,iface=x", "face").empty());
  CHECK(is_driver("net_tap0,iface=x", "net_tap"));
  CHECK_FALSE(is_driver("net_tapx0", "net_tap"));
  CHECK_FALSE(is_driver("0000:03:00.0", "net_tap"));
}

TEST_CASE("The frames of a packet ring hold the MTU", "[config]") {
  const std::string d = "net_af_packet0,iface=v";
  CHECK(device_for_mtu(d, 1500, 2u << 20) == d + ",framesz=2048,blocksz=65536,framecnt=1024");
  CHECK(device_for_mtu(d, 4200, 2u << 20) == d + ",framesz=8192,blocksz=65536,framecnt=256");
  CHECK(device_for_mtu(d, 9000, 2u << 20) == d + ",framesz=16384,blocksz=65536,framecnt=128");
  CHECK(device_for_mtu(d + ",framesz=4096", 9000, 2u << 20) == d + ",framesz=4096");
  CHECK(device_for_mtu("net_tap0", 9000, 2u << 20) == "net_tap0");
}

TEST_CASE("IBA A17.9.1: the MTU of RoCE leaves room for the headers", "[config]") {
  CHECK(roce_mtu(1500) == 1024);
  CHECK(roce_mtu(4500) == 4096);
  CHECK(roce_mtu(4184) == 4096);
  CHECK(roce_mtu(4183) == 2048);
  CHECK(roce_mtu(9000) == 4096);
  CHECK(roce_mtu(576) == 256);
  CHECK(roce_mtu(600) == 512);
}

TEST_CASE("A station beside the kernel's has a MAC of its own", "[config]") {
  const neigh::Mac device{0x02, 1, 2, 3, 4, 5};
  const neigh::Mac own = default_mac("net_af_packet0,iface=v", device);
  CHECK(own != device);
  CHECK(own == default_mac("net_af_packet0,iface=v", device));
  CHECK(neigh::is_unicast(own));
  CHECK((own[0] & 2) != 0);
  CHECK(default_mac("net_memif0", device) == device);
  CHECK(default_mac("0000:03:00.0", device) == device);
}
