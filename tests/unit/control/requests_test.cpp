// Each request of the control protocol.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "engine/datapath/mapping.h"
#include "tests/unit/control/client_fixture.h"

using namespace softrnic;
using namespace softrnic::test;
using namespace softrnic::control;

TEST_CASE("hello tells the devices and their GIDs", "[control]") {
  HostFixture host;
  Client c(host.socket_path());
  CHECK(std::string(c.info.reply.runtime_dir) == host.dir());
  REQUIRE(c.info.devices.size() == 1);
  CHECK(std::string(c.info.devices[0].name) == "roce0");
  CHECK(c.info.devices[0].num_gids == c.info.gids.size());
}

TEST_CASE("hello with another protocol version is refused and tells the NIC process's version", "[control]") {
  HostFixture host;
  Connection c;
  REQUIRE(c.connect(host.socket_path()) == 0);
  HelloRequest request{};
  request.version = kProtocolVersion + 1;
  Message reply;
  CHECK(c.call(MsgType::hello, &request, sizeof(request), &reply) == EPROTONOSUPPORT);
  const auto body = body_as<HelloReply>(reply);
  CHECK(body.version == kProtocolVersion);
  CHECK(body.daemon_version[0] != '\0');

  SECTION("also when that version's request has another size") {
    const std::uint32_t other[2] = {kProtocolVersion + 7, 0};
    CHECK(c.call(MsgType::hello, other, sizeof(other), &reply) == EPROTONOSUPPORT);
  }
  SECTION("and a correct hello may follow") {
    HelloInfo info;
    CHECK(control::hello(c, &info) == 0);
  }
}

TEST_CASE("attach makes a VF with its memory and a QPN block", "[control]") {
  HostFixture host;
  VfClient a(host.socket_path());
  CHECK(a.id() != dp::kNoVf);
  CHECK(a.attached.first_block >= 1);
  CHECK(a.attached.first_block < dp::kQpnBlocks - 1);
  CHECK(a.attached.route_mode == static_cast<std::uint32_t>(RouteMode::direct));
  dp::Mapping inbox, status, channel, switch_inbox;
  CHECK(inbox.map(a.reply.fds[0], sizeof(dp::Inbox)) == 0);
  CHECK(status.map(a.reply.fds[2], sizeof(dp::StatusPage)) == 0);
  CHECK(channel.map(a.reply.fds[4], dp::channel_bytes(a.attached.ring_size)) == 0);
  CHECK(switch_inbox.map(a.reply.fds[5], sizeof(dp::Inbox)) == 0);
  CHECK(channel.as<dp::RingHeader>()->data_size == a.attached.ring_size);

  SECTION("the block table tells the owner and cannot be written by the VF") {
    dp::Mapping blocks;
    REQUIRE(blocks.map(a.reply.fds[3], sizeof(dp::BlockTable), false) == 0);
    CHECK(blocks.as<dp::BlockTable>()->owner[a.attached.first_block] == a.id());
    dp::Mapping writable;
    CHECK(writable.map(a.reply.fds[3], sizeof(dp::BlockTable), true) == EPERM);
    CHECK(::mprotect(blocks.data(), blocks.size(), PROT_READ | PROT_WRITE) != 0);
  }
  SECTION("memory can neither shrink nor grow nor lose its seals") {
    for (const int i : {0, 2, 3, 4, 5}) {
      CHECK(::ftruncate(a.reply.fds[i], 0) != 0);
      CHECK(::ftruncate(a.reply.fds[i], 1 << 30) != 0);
    }
  }
  SECTION("a second attach on the same connection fails, and the VF stays") {
    CHECK(a.call(MsgType::attach, AttachRequest{}) == EISCONN);
    CHECK(a.call(MsgType::get_block) == 0);
  }
}

TEST_CASE("QPN blocks are dealt out first in, first out, after a quarantine", "[control]") {
  BlockAllocator blocks(1000);
  const auto first = blocks.allocate(1, 0);
  REQUIRE(first);
  CHECK(*first == 1);  // block 0 has QPN 0 and 1
  std::uint32_t last = 0;
  for (std::uint32_t i = 1; i < dp::kQpnBlocks - 2; ++i) last = blocks.allocate(2, 0).value();
  CHECK(last == dp::kQpnBlocks - 2);  // the last block has QPN 0xFFFFFF
  CHECK_FALSE(blocks.allocate(1, 0));

  CHECK_FALSE(blocks.release(1, 2, 5));  // another VF's
  CHECK_FALSE(blocks.release(1, 0, 5));
  CHECK_FALSE(blocks.release(1, dp::kQpnBlocks + 3, 5));
  CHECK(blocks.release(2, 7, 10));
  CHECK_FALSE(blocks.release(2, 7, 10));
  CHECK(blocks.release(1, 1, 20));
  CHECK(blocks.owner(7) == dp::kNoVf);
  CHECK_FALSE(blocks.allocate(3, 1009));
  CHECK(blocks.allocate(3, 1010) == 7u);
  CHECK_FALSE(blocks.allocate(3, 1019));
  CHECK(blocks.allocate(3, 1020) == 1u);
}

TEST_CASE("get_block and return_block", "[control]") {
  HostFixture host;
  VfClient a(host.socket_path()), b(host.socket_path());
  REQUIRE(a.call(MsgType::get_block) == 0);
  const auto block = body_as<BlockReply>(a.reply);
  CHECK(block.block != a.attached.first_block);
  CHECK(block.block != b.attached.first_block);
  CHECK(b.call(MsgType::return_block, block) == EINVAL);
  CHECK(a.call(MsgType::return_block, block) == 0);
  CHECK(a.call(MsgType::return_block, block) == EINVAL);
}

TEST_CASE("a VF gets only so many QPN blocks", "[control]") {
  NicHostOptions options;
  options.sizes.max_blocks_per_vf = 3;
  HostFixture host(std::move(options));
  VfClient a(host.socket_path());
  CHECK(a.call(MsgType::get_block) == 0);
  CHECK(a.call(MsgType::get_block) == 0);
  CHECK(a.call(MsgType::get_block) == ENOSPC);
}

TEST_CASE("connect_peer gives both sides the same channel", "[control]") {
  HostFixture host;
  VfClient a(host.socket_path()), b(host.socket_path());
  const auto at_a = a.connect_to(b.attached.first_block);
  REQUIRE(a.reply.num_fds == 3);
  CHECK(at_a.vf_id == b.id());
  CHECK(at_a.my_slot != 0);
  CHECK(at_a.ring_index == (a.id() < b.id() ? 0 : 1));

  Message notice = b.next_notice();
  REQUIRE(notice.header.type == static_cast<std::uint16_t>(MsgType::peer_added));
  REQUIRE(notice.num_fds == 3);
  const auto at_b = body_as<PeerReply>(notice);
  CHECK(at_b.vf_id == a.id());
  CHECK(at_b.my_slot == at_a.peer_slot);
  CHECK(at_b.peer_slot == at_a.my_slot);
  CHECK(at_b.ring_index == 1 - at_a.ring_index);
  CHECK(at_b.ring_size == at_a.ring_size);

  dp::Mapping ma, mb;
  REQUIRE(ma.map(a.reply.fds[0], dp::channel_bytes(at_a.ring_size)) == 0);
  REQUIRE(mb.map(notice.fds[0], dp::channel_bytes(at_a.ring_size)) == 0);
  ma.data()[dp::kRingDataOffset] = 42;
  CHECK(mb.data()[dp::kRingDataOffset] == 42);
  notice.close_fds();

  SECTION("asking again gives the same channel and no second notice") {
    const auto again = b.connect_to(a.attached.first_block);
    CHECK(again.my_slot == at_b.my_slot);
    REQUIRE(b.call(MsgType::get_block) == 0);
    CHECK(b.notices.empty());
  }
  SECTION("the peer learns of a death") {
    {
      VfClient gone(host.socket_path());
      b.connect_to(gone.attached.first_block);
    }
    Message m = b.next_notice();
    CHECK(m.header.type == static_cast<std::uint16_t>(MsgType::peer_gone));
  }
}

TEST_CASE("a block names the VF that had it after that VF has ended: its last datagrams may still be in rings",
          "[control]") {
  HostFixture host;
  VfClient a(host.socket_path());
  dp::Mapping blocks;
  REQUIRE(blocks.map(a.reply.fds[3], sizeof(dp::BlockTable), false) == 0);
  std::uint32_t block = 0;
  std::uint16_t id = 0;
  {
    VfClient gone(host.socket_path());
    block = gone.attached.first_block;
    id = gone.id();
    a.connect_to(block);
  }
  REQUIRE(a.next_notice().header.type == static_cast<std::uint16_t>(MsgType::peer_gone));
  CHECK(blocks.as<dp::BlockTable>()->owner[block] == id);
  CHECK(a.connect_to(block).vf_id == dp::kNoVf);
}

TEST_CASE("connect_peer to nobody and to oneself", "[control]") {
  HostFixture host;
  VfClient a(host.socket_path());
  CHECK(a.connect_to(0).vf_id == dp::kNoVf);
  CHECK(a.connect_to(4000).vf_id == dp::kNoVf);
  CHECK(a.reply.num_fds == 0);
  CHECK(a.connect_to(a.attached.first_block).vf_id == a.id());
  CHECK(a.reply.num_fds == 0);
}

TEST_CASE("multicast membership is counted per VF", "[control]") {
  HostFixture host;
  VfClient a(host.socket_path());
  McastRequest r{};
  r.mgid.raw[0] = 0xFF;
  r.mgid.raw[15] = 9;
  r.attach = 0;
  CHECK(a.call(MsgType::mcast, r) == EINVAL);
  r.attach = 1;
  CHECK(a.call(MsgType::mcast, r) == 0);
  CHECK(a.call(MsgType::mcast, r) == 0);
  r.attach = 0;
  CHECK(a.call(MsgType::mcast, r) == 0);
  CHECK(a.call(MsgType::mcast, r) == 0);
  CHECK(a.call(MsgType::mcast, r) == EINVAL);
  r.attach = 1;
  r.mgid.raw[0] = 0xFE;
  CHECK(a.call(MsgType::mcast, r) == EINVAL);
}

TEST_CASE("channels get smaller when there are many: memory does not grow with the square of the VFs", "[control]") {
  VfTable::Sizes sizes;
  sizes.peer_ring = 1u << 18;
  sizes.peer_budget = 16u << 20;
  auto table = VfTable::create(sizes, 0);
  REQUIRE(table);
  std::vector<Vf*> vfs;
  std::uint64_t total = 0;
  for (int i = 0; i < 24; ++i) {
    std::uint32_t block = 0;
    int error = 0;
    vfs.push_back(table->attach(1, "x", 0, &block, &error));
    REQUIRE(vfs.back() != nullptr);
    for (int j = 0; j < i; ++j) {
      bool created = false;
      auto channel =
          table->connect(*vfs[static_cast<std::size_t>(i)], *vfs[static_cast<std::size_t>(j)], &created, &error);
      REQUIRE(channel != nullptr);
      CHECK(channel->ring_size >= sizes.min_peer_ring);
      total += channel->memory->size();
    }
  }
  const std::uint64_t pairs = 24 * 23 / 2;
  CHECK(total <= sizes.peer_budget + pairs * dp::channel_bytes(sizes.min_peer_ring));
  CHECK(table->connect(*vfs[0], *vfs[1], std::make_unique<bool>().get(), std::make_unique<int>().get())->ring_size ==
        sizes.peer_ring);
}
