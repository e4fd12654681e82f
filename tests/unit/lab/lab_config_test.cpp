#include "tools/lab/lab_config.h"

#include <catch2/catch.hpp>

using namespace softrnic;
using namespace softrnic::lab;

namespace {

std::string error_of(std::string_view text) {
  Lab lab;
  std::string why;
  return parse_lab(text, "test", &lab, &why) ? "" : why;
}

// A lab with this one host beside another one on "lan".
std::string error_of_interface(const std::string& interface) {
  return error_of(R"({"networks": {"lan": {"mtu": 1500}}, "hosts": {
    "z": {"interfaces": [{"network": "lan", "ip": "10.0.0.9/24"}]},
    "a": {"interfaces": [)" +
                  interface + "]}}}");
}

}  // namespace

TEST_CASE("A lab with a router", "[lab]") {
  Lab lab;
  std::string why;
  REQUIRE(parse_lab(R"({
    "name": "routed",
    // comments are allowed
    "networks": {"right": {"mtu": 9000}, "left": {"cable": true}},
    "hosts": {
      "b": {"interfaces": [
        {"network": "left", "ip": "10.1.0.2/24", "route": ["10.1.0.254"]},
        {"network": "right", "nic": {"route": "10.2.0.254", "ip": ["10.2.0.1/24", "10.7.0.1/24%7"], "mtu": 4200,
                                     "detect-duplicates": true, "mac": "02:00:00:00:00:01"}},
        {"network": "right", "nic": {}}]},
      "a": {"router": true, "interfaces": [{"network": "left", "ip": ["10.1.0.254/24", "fd00::1/64"]}]}}
  })",
                    "file", &lab, &why));
  CHECK(lab.name == "routed");
  REQUIRE(lab.networks.size() == 2);
  CHECK(lab.networks[0].name == "right");  // the order of the file
  CHECK(lab.networks[0].mtu == 9000);
  CHECK(lab.networks[1].mtu == 1500);
  CHECK(lab.networks[1].cable);
  REQUIRE(lab.hosts.size() == 2);
  const Host& b = lab.hosts[0];
  CHECK(b.name == "b");
  CHECK_FALSE(b.router);
  CHECK(lab.hosts[1].router);
  REQUIRE(b.interfaces.size() == 3);
  CHECK(b.interfaces[0].network == 1);
  CHECK_FALSE(b.interfaces[0].has_nic);
  CHECK(b.interfaces[0].kernel.routes.size() == 1);
  CHECK(b.interfaces[1].name == "eth1");
  CHECK(b.interfaces[1].has_nic);
  REQUIRE(b.ports.size() == 2);
  CHECK(b.ports[0].addresses.size() == 2);
  CHECK(b.nic_options == std::vector<std::string>{"--port", "net_af_packet0,iface=eth1", "--mac", "02:00:00:00:00:01",
                                                  "--mtu", "4200", "--detect-duplicates", "yes", "--ip", "10.2.0.1/24",
                                                  "--ip", "10.7.0.1/24%7", "--route", "10.2.0.254", "--port",
                                                  "net_af_packet1,iface=eth2"});
  CHECK(hosts_file(lab) ==
        "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
        "10.1.0.2 b\n10.2.0.1 b-roce0\n10.7.0.1 b-roce0\n10.1.0.254 a\nfd00::1 a\n");
}

TEST_CASE("Mistakes in a lab name their key", "[lab]") {
  const std::string host = R"("a": {"interfaces": [{"network": "lan"}]})";
  const struct {
    std::string text, error;
  } cases[] = {
      {"{",
       "parse error at line 1, column 2: syntax error while parsing object key - unexpected end of input; expected "
       "string literal"},
      {"[]", "the lab: must be an object, {...}"},
      {"{}", "networks: there must be at least one"},
      {R"({"networks": {}, "hosts": {}})", "networks: there must be at least one"},
      {R"({"networks": {"lan": {}}})", "hosts: there must be at least one"},
      {R"({"network": {}})", "network: there is no such key (there is: name, networks, hosts)"},
      {R"({"name": "../x"})",
       "name: '../x': a lab's name has 1 to 32 letters, digits, '-', '_' and '.', a letter first"},
      {R"({"networks": {"lan": {"mtu": 100}}, "hosts": {)" + host + "}}",
       "networks.lan.mtu: an MTU is a number from 576 to 9216"},
      {R"({"networks": {"lan": {"cable": true}}, "hosts": {)" + host + "}}",
       "networks.lan.cable: a cable has two ends, but 1 interfaces are in this network"},
      {R"({"networks": {"lan": {"cable": 1}}, "hosts": {)" + host + "}}", "networks.lan.cable: must be true or false"},
      {R"({"networks": {"lo": {}}, "hosts": {)" + host + "}}", "networks.lo: the kernel uses this name"},
      {R"({"networks": {"lan": {}}, "hosts": {"very-long-name": {}}})",
       "hosts.very-long-name: a name has 1 to 10 letters, digits and '-', a letter first"},
      {R"({"networks": {"lan": {}}, "hosts": {"a": {}}})",
       "hosts.a.interfaces: must be a list, [...], of 1 to 10 interfaces"},
      {R"({"networks": {"lan": {}}, "hosts": {)" + host + ", " + host + "}}", "a: this key is there twice"},
  };
  for (const auto& c : cases) CHECK(error_of(c.text) == c.error);
}

TEST_CASE("Mistakes in an interface name their key", "[lab]") {
  const struct {
    std::string text, error;
  } cases[] = {
      {"{}", "hosts.a.interfaces[0].network: must be the name of a network"},
      {R"({"network": "lam"})", "hosts.a.interfaces[0].network: there is no network 'lam' (there is: lan)"},
      {R"({"network": "lan", "ip": "10.0.0.1/33"})",
       "hosts.a.interfaces[0].ip: 10.0.0.1/33: a prefix has 0 to 32 bits"},
      {R"({"network": "lan", "ip": ["10.0.0.1/24", -1]})",
       "hosts.a.interfaces[0].ip[1]: must be a string, or a number without sign and fraction, or true or false"},
      {R"({"network": "lan", "ip": "10.0.0.1/24%7"})",
       "hosts.a.interfaces[0].ip: only addresses of the NIC can be in a VLAN"},
      {R"({"network": "lan", "ip": "10.0.0.9/24"})",
       "hosts.a.interfaces[0].ip: host z has the address 10.0.0.9 already"},
      {R"({"network": "lan", "nic": {"ip": "10.0.0.9/24"}})",
       "hosts.a.interfaces[0].nic.ip: host z has the address 10.0.0.9 already"},
      {R"({"network": "lan", "route": "10.0.0.254"})",
       "hosts.a.interfaces[0].route: 10.0.0.254: none of the port's addresses before it has the gateway in its prefix"},
      {R"({"network": "lan", "nic": {"ips": []}})",
       "hosts.a.interfaces[0].nic.ips: there is no such key (there is: mac, mtu, detect-duplicates, ip, route)"},
      {R"({"network": "lan", "nic": {"mac": "01:00:00:00:00:01"}})",
       "hosts.a.interfaces[0].nic.mac: 01:00:00:00:00:01: not the MAC address of a station"},
      {R"({"network": "lan", "nic": {"mtu": 9000}})",
       "hosts.a.interfaces[0].nic.mtu: is more than the network's, 1500"},
  };
  for (const auto& c : cases) CHECK(error_of_interface(c.text) == c.error);
}
