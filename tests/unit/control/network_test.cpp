// A NIC process on a network: its devices follow the ports, and the programs hear of it.
#include <atomic>
#include <cerrno>

#include "tests/unit/control/client_fixture.h"

using namespace softrnic;
using namespace softrnic::test;
using namespace softrnic::control;

namespace {

// An uplink that is never used.
class IdleUplink final : public sw::Uplink {
 public:
  int receive(Nanos, int, OnFrame, void*) override { return 0; }
  bool has_room() override { return true; }
  void send(Nanos, const Gid&, std::uint16_t, MutableBytes) override {}
  bool flush() override { return true; }
  void set_group_member(Nanos, const Gid&, bool) override {}
  Nanos next_timeout() const override { return kNever; }
  void on_timeout(Nanos) override {}
  int wakeup_fd() const override { return -1; }
  bool drain_wakeup() override { return false; }
};

Gid gid(std::uint8_t last) {
  Gid g{};
  g.raw[0] = 0xFD;
  g.raw[15] = last;
  return g;
}

// Two ports; "add" and "remove" understand addresses of one digit.
class FakeNetwork final : public Network {
 public:
  FakeNetwork() : ports_(2) {
    ports_[0].mac = {2, 0, 0, 0, 0, 1};
    ports_[1].mac = {2, 0, 0, 0, 0, 2};
    for (std::size_t i = 0; i < 2; ++i) ports_[i].addresses = {{gid(static_cast<std::uint8_t>(i + 1)), 0xFFFF}};
  }
  std::vector<std::shared_ptr<sw::Uplink>> uplinks() override {
    return {std::make_shared<IdleUplink>(), std::make_shared<IdleUplink>()};
  }
  std::string status() override { return R"([{"name":"one"},{"name":"two"}])"; }
  std::string neighbours() override { return R"([[{"address":"10.0.0.9"}],[]])"; }
  DeviceConfig devices() override { return port_devices(ports_); }
  int change_address(std::size_t port, bool add, const std::string& address, std::string* why) override {
    if (address.size() != 1) {
      *why = address + " is no digit";
      return EINVAL;
    }
    const Gid g = gid(static_cast<std::uint8_t>(address[0] - '0'));
    auto& list = ports_[port].addresses;
    if (add) list.push_back({g, 0xFFFF});
    if (!add) std::erase_if(list, [&](const PortView::Address& a) { return a.gid == g; });
    on_change_();
    return 0;
  }
  void set_on_change(std::function<void()> on_change) override { on_change_ = std::move(on_change); }

 private:
  std::vector<PortView> ports_;
  std::function<void()> on_change_;
};

AddressRequest request(std::uint32_t port, bool add, const char* address) {
  AddressRequest r{};
  r.port = port;
  r.add = add ? 1 : 0;
  std::memcpy(r.address, address, std::strlen(address));
  return r;
}

std::vector<GidRecord> gids_of(const Message& m) {
  REQUIRE(m.header.type == static_cast<std::uint16_t>(MsgType::gid_change));
  REQUIRE(m.body.size() % sizeof(GidRecord) == 0);
  std::vector<GidRecord> all(m.body.size() / sizeof(GidRecord));
  std::memcpy(all.data(), m.body.data(), m.body.size());
  return all;
}

}  // namespace

TEST_CASE("Each port of the network is a device", "[control][network]") {
  HostFixture host({}, std::make_unique<FakeNetwork>());
  Client c(host.socket_path());
  REQUIRE(c.info.devices.size() == 2);
  CHECK(std::string(c.info.devices[1].name) == "roce1");
  REQUIRE(c.info.gids.size() == 4);
  CHECK(c.info.gids[3].device == 1);
  CHECK(c.info.gids[3].gid == gid(2));
  REQUIRE(c.call(MsgType::status) == 0);
  const std::string report(c.reply.body.begin(), c.reply.body.end());
  CHECK(report.find("\"name\":\"two\"") != std::string::npos);
  CHECK(report.find("\"neighbours\":[{\"address\":\"10.0.0.9\"}]") != std::string::npos);
}

TEST_CASE("An address that comes or goes changes the tables of all programs before it is answered",
          "[control][network]") {
  HostFixture host({}, std::make_unique<FakeNetwork>());
  VfClient program(host.socket_path());
  Client tool(host.socket_path());
  REQUIRE(tool.call(MsgType::address, request(1, true, "7")) == 0);
  auto gids = gids_of(program.next_notice());
  REQUIRE(gids.size() == 6);
  CHECK(gids[5].gid == gid(7));
  CHECK(gids[5].device == 1);
  CHECK(gids[5].index == 3);
  REQUIRE(tool.call(MsgType::address, request(1, false, "2")) == 0);
  gids = gids_of(program.next_notice());
  REQUIRE(gids.size() == 6);
  CHECK(gids[2].gid == Gid{});  // its place stays empty, so that the others keep theirs
  CHECK(gids[5].gid == gid(7));
  const Client late(host.socket_path());
  CHECK(late.info.gids.size() == 6);
  CHECK(late.info.devices[1].num_gids == 4);
}

TEST_CASE("A change of addresses that cannot be made is answered with the reason", "[control][network]") {
  HostFixture host({}, std::make_unique<FakeNetwork>());
  Client tool(host.socket_path());
  CHECK(tool.call(MsgType::address, request(0, true, "seven")) == EINVAL);
  CHECK(std::string(tool.reply.body.begin(), tool.reply.body.end()) == "seven is no digit");
  CHECK(tool.call(MsgType::address, request(2, true, "7")) == ENODEV);
  HostFixture local;
  Client other(local.socket_path());
  CHECK(other.call(MsgType::address, request(0, true, "7")) == ENODEV);
}
