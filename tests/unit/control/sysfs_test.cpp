// The sysfs tree of the NIC process.
#include <unistd.h>
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "engine/control/server/sysfs_tree.h"
#include "tests/unit/control/client_fixture.h"

namespace softrnic::control {
namespace {

namespace fs = std::filesystem;

std::string content(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

HostView host_with(const std::vector<std::uint8_t>& last_bytes) {
  HostView host;
  host.primary_netdev = "lo";
  host.identity = "test";
  for (const std::uint8_t b : last_bytes)
    host.addresses.push_back({{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, b}}, "lo", 1, false});
  return host;
}

TEST_CASE("the tree has the device's identity in the kernel's formats", "[sysfs]") {
  test::TempDir dir;
  DeviceConfig config = host_devices(host_with({7}));
  config.devices[0].node_guid = 0x8877665544332211;  // big-endian
  SysfsTree tree(dir.path());
  REQUIRE(tree.write(config) == 0);
  const std::string roce0 = dir.path() + "/sys/class/infiniband/roce0";
  CHECK(content(roce0 + "/node_guid") == "1122:3344:5566:7788\n");
  CHECK(content(roce0 + "/node_type") == "1: CA\n");
  CHECK(content(roce0 + "/ports/1/state") == "4: ACTIVE\n");
  CHECK(content(roce0 + "/ports/1/gids/3") == "0000:0000:0000:0000:0000:ffff:0a00:0007\n");
  CHECK(content(roce0 + "/ports/1/gid_attrs/types/2") == "IB/RoCE v1\n");
  CHECK(content(roce0 + "/ports/1/gid_attrs/types/3") == "RoCE v2\n");
  CHECK(content(roce0 + "/ports/1/gid_attrs/ndevs/3") == "lo\n");
  CHECK(fs::canonical(roce0 + "/device") == fs::canonical(dir.path() + "/sys/devices/softrnic/roce0"));
  CHECK(content(dir.path() + "/sys/class/infiniband_verbs/uverbs0/ibdev") == "roce0\n");
  CHECK(fs::is_character_file(dir.path() + "/dev/infiniband/uverbs0"));
  tree.remove();
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("addresses come and go in the tree", "[sysfs]") {
  test::TempDir dir;
  const DeviceConfig two = host_devices(host_with({7, 8}));
  DeviceConfig one = host_devices(host_with({8}));
  one.gids = merge_gids(two.gids, one.gids);
  SysfsTree tree(dir.path());
  REQUIRE(tree.write(two) == 0);
  const std::string port = dir.path() + "/sys/class/infiniband/roce0/ports/1";
  const std::string seven = "0000:0000:0000:0000:0000:ffff:0a00:0007\n";
  CHECK(content(port + "/gids/3") == seven);
  REQUIRE(tree.write_gids(one) == 0);
  CHECK(content(port + "/gids/3") == "0000:0000:0000:0000:0000:0000:0000:0000\n");
  CHECK_FALSE(fs::exists(port + "/gid_attrs/types/3"));
  CHECK_FALSE(fs::exists(port + "/gid_attrs/ndevs/3"));
  CHECK(fs::exists(port + "/gid_attrs/types/5"));
  REQUIRE(tree.write_gids(two) == 0);
  CHECK(content(port + "/gids/3") == seven);
  CHECK(content(port + "/gid_attrs/types/3") == "RoCE v2\n");
}

TEST_CASE("counters are replaced as a whole", "[sysfs]") {
  test::TempDir dir;
  SysfsTree tree(dir.path());
  REQUIRE(tree.write(host_devices(host_with({7}))) == 0);
  const std::string port = dir.path() + "/sys/class/infiniband/roce0/ports/1";
  std::ifstream old(port + "/counters/port_xmit_packets");
  ib::QpCounters counters;
  counters.sent_pkts = 12;
  counters.sent_bytes = 4096;
  REQUIRE(tree.write_counters("roce0", counters) == 0);
  CHECK(content(port + "/counters/port_xmit_packets") == "12\n");
  CHECK(content(port + "/counters/port_xmit_data") == "1024\n");
  CHECK(content(port + "/hw_counters/sent_pkts") == "12\n");
  std::string text;
  std::getline(old, text);
  CHECK(text == "0");  // who had it open reads on
  CHECK_FALSE(fs::exists(dir.path() + "/sys/.new"));
}

TEST_CASE("a tree that a dead NIC process left is replaced", "[sysfs]") {
  test::TempDir dir;
  fs::create_directories(dir.path() + "/sys/class/infiniband/roce9/ports/1");
  SysfsTree tree(dir.path());
  REQUIRE(tree.write(host_devices(host_with({7}))) == 0);
  CHECK_FALSE(fs::exists(dir.path() + "/sys/class/infiniband/roce9"));
}

TEST_CASE("the NIC process keeps the tree as long as it runs", "[sysfs]") {
  test::HostFixture host;
  const std::string packets = host.dir() + "/sys/class/infiniband/roce0/ports/1/counters/port_xmit_packets";
  test::Client client(host.socket_path());
  REQUIRE(client.call(MsgType::sysfs) == 0);
  CHECK(content(packets) == "0\n");
  {
    // A queue pair counts on while it is there, and its counts stay when it and its process are gone.
    test::VfClient vf(host.socket_path());
    const int status = vf.reply.fds[2];
    const std::uint64_t retired = 5;
    REQUIRE(::pwrite(status, &retired, sizeof(retired), offsetof(dp::StatusPage, retired)) == sizeof(retired));
    REQUIRE(client.call(MsgType::sysfs) == 0);
    CHECK(content(packets) == "5\n");
  }
  for (int i = 0; i < 3; ++i) REQUIRE(client.call(MsgType::sysfs) == 0);
  CHECK(content(packets) == "5\n");
  host.end_host();
  CHECK_FALSE(fs::exists(host.dir() + "/sys"));
  CHECK_FALSE(fs::exists(host.dir() + "/dev"));
}

}  // namespace
}  // namespace softrnic::control
