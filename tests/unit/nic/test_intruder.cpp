// What a process can do to others with frames that it makes up: nothing. The intruder is a bare fabric, without the
// engine that would keep it honest.
#include "engine/nic/vf_impl.h"
#include "nic_fixture.h"
#include "protocols/ib/opcode.h"
#include "protocols/wire/bth.h"
#include "protocols/wire/eths.h"

using namespace softrnic;
using namespace softrnic::nic;
using namespace softrnic::nic::test;

namespace {

class Intruder {
 public:
  explicit Intruder(const std::string& socket) {
    std::string why;
    REQUIRE(dp::Fabric::attach(socket, &fabric, &why) == 0);
    own_qpn = static_cast<std::uint32_t>(fabric->get_block()) << dp::kQpnBlockShift;
  }
  // Sends `size` bytes as one frame to the owner of `qpn`.
  void send(std::uint32_t qpn, const std::uint8_t* frame, std::uint32_t size) {
    dp::Path* path = fabric->path_for_qpn(qpn);
    REQUIRE(eventually([&] {
      fabric->poll(
          1, [](void*, dp::VfId, Bytes) { return true; }, nullptr);
      return fabric->has_room(*path, size);
    }));
    std::memcpy(fabric->begin(*path, size), frame, size);
    fabric->commit(*path, size);
    fabric->flush();
  }

  std::unique_ptr<dp::Fabric> fabric;
  std::uint32_t own_qpn = 0;
};

// A UD SEND as a frame.
std::vector<std::uint8_t> datagram(const Gid& sgid, const Gid& dgid, std::uint32_t src_qpn, std::uint32_t dest_qpn,
                                   std::uint32_t payload = 16) {
  roce::PathParams params;
  params.sgid = sgid;
  params.dgid = dgid;
  roce::HeaderTemplate headers(params);
  const std::uint32_t transport = 12 + 8 + payload;
  std::vector<std::uint8_t> frame(headers.size() + transport + 4);
  std::uint8_t* bth = frame.data() + headers.size();
  wire::Bth b;
  b.opcode = ib::opcode_of(ib::kTransportUd, ib::Op::send_only);
  b.dest_qpn = dest_qpn;
  b.write(bth);
  wire::Deth{0x11111111, src_qpn}.write(bth + 12);
  headers.write(frame.data(), transport);
  const std::uint32_t icrc = headers.icrc(frame.data(), transport);
  std::memcpy(bth + transport, &icrc, 4);
  return frame;
}

}  // namespace

TEST_CASE("a datagram's source QPN lies in the blocks of its sender, or the datagram is dropped", "[intruder]") {
  Host host;
  Party victim(host), friendly(host);
  QueuePair* qp = victim.make_qp(ib::QpType::ud);
  QueuePair* pretended = friendly.make_qp(ib::QpType::ud);
  to_rts(qp, {}, 0);
  for (std::uint64_t i = 0; i < 8; ++i) REQUIRE(recv(qp, i, sge(victim, i * 256, 256)) == 0);
  Intruder intruder(host.socket());
  const Gid gid = victim.gid_at(victim.gid_index());
  DropCounters& drops = victim.vf->impl().drops;
  const auto send = [&](const std::vector<std::uint8_t>& f) {
    intruder.send(qp->qpn(), f.data(), static_cast<std::uint32_t>(f.size()));
  };

  send(datagram(gid, gid, pretended->qpn(), qp->qpn()));
  send(datagram(gid, gid, qp->qpn(), qp->qpn()));
  send(datagram(gid, gid, 0xABCDEF, qp->qpn()));
  send(datagram(gid, gid, intruder.own_qpn, qp->qpn()));
  const Completion c = victim.wait(1)[0];
  CHECK(c.src_qp == intruder.own_qpn);
  CHECK(victim.quiet());
  CHECK(drops.wrong_source == 3);
}

TEST_CASE("frames that are short, forged, torn or for nobody are dropped and counted", "[intruder]") {
  Host host;
  Party victim(host);
  QueuePair* qp = victim.make_qp(ib::QpType::ud);
  to_rts(qp, {}, 0);
  REQUIRE(recv(qp, 1, sge(victim, 0, 8192)) == 0);
  Intruder intruder(host.socket());
  const Gid gid = victim.gid_at(victim.gid_index());
  DropCounters& drops = victim.vf->impl().drops;
  const std::vector<std::uint8_t> good = datagram(gid, gid, intruder.own_qpn, qp->qpn(), 64);
  std::uint64_t sent = 0;
  const auto send = [&](const std::vector<std::uint8_t>& f, std::size_t size) {
    intruder.send(qp->qpn(), f.data(), static_cast<std::uint32_t>(size));
    ++sent;
  };

  for (std::size_t n = 1; n < good.size(); ++n) send(good, n);  // cut off anywhere
  for (std::size_t at = 14; at < good.size(); ++at) {           // one bit wrong anywhere behind the MACs
    auto bad = good;
    bad[at] ^= 0x10;
    const std::size_t ip = at - 14, bth = at - 42;
    if (ip == 1 || ip == 8 || ip == 26 || ip == 27 || bth == 4) continue;  // fields that the ICRC leaves out
    send(bad, bad.size());
  }
  Gid other = gid;
  other.raw[15] ^= 1;
  send(datagram(gid, other, intruder.own_qpn, qp->qpn()), good.size() - 48);
  send(datagram(gid, gid, intruder.own_qpn, qp->qpn() + 1), good.size() - 48);
  send(datagram(gid, gid, intruder.own_qpn, 0xFFFFFF), good.size() - 48);
  send(good, good.size());
  CHECK(victim.wait(1)[0].byte_len == 64 + 40);
  CHECK(victim.quiet());

  std::uint64_t counted =
      drops.no_qp + drops.wrong_source + drops.wrong_destination + drops.no_group + drops.wrong_transport;
  for (std::uint64_t n : drops.frame) counted += n;
  CHECK(counted == sent - 1);
  CHECK(drops.wrong_destination >= 1);
  CHECK(drops.no_qp >= 1);
  CHECK(drops.frame[static_cast<int>(roce::FrameError::bad_icrc)] > 0);
  CHECK(drops.frame[static_cast<int>(roce::FrameError::too_short)] > 0);
}

TEST_CASE("a datagram for a connected QP and a connected QP's packet for a UD QP are dropped", "[intruder]") {
  Host host;
  Party victim(host);
  Pair rc(victim, victim);
  Intruder intruder(host.socket());
  const Gid gid = victim.gid_at(victim.gid_index());
  const auto f = datagram(gid, gid, intruder.own_qpn, rc.a->qpn());
  intruder.send(rc.a->qpn(), f.data(), static_cast<std::uint32_t>(f.size()));
  REQUIRE(eventually([&] {
    victim.vf->progress(16);
    return victim.vf->impl().drops.wrong_source == 1;
  }));
  CHECK(rc.a->state() == ib::QpState::rts);
}
