// Connection management: the commands of programs and the management datagrams of the eSwitch go to rdmacm::Service.
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstring>
#include <random>

#include "engine/control/server/server.h"

namespace softrnic::control {
namespace {

constexpr int kNoSuchChannel = EBADF;

}  // namespace

struct NicHost::Impl::CmHost final : rdmacm::Host {
  explicit CmHost(NicHost::Impl& impl) : d(impl) {}

  Nanos now() override { return nic::Clock::system_now(); }
  rdmacm::GidTable gids() override { return {d.options.devices.devices, d.options.devices.gids}; }
  void send(std::vector<std::uint8_t> frame) override { d.eswitch->send_own(std::move(frame)); }

  // The ports are the switch's: it is asked there.
  bool find_route(const Gid& destination, const Gid& source,
                  std::function<void(const rdmacm::FoundRoute&)> answer) override {
    if (d.network == nullptr) return false;
    d.eswitch->submit([this, destination, source, answer = std::move(answer)]() mutable {
      d.network->find_route(destination, source, [this, answer = std::move(answer)](const Network::Route& r) {
        boost::asio::post(d.io, [this, answer, found = rdmacm::FoundRoute{r.error, r.source, r.hop_limit}] {
          answer(found);
          d.arm_cm_timer();
        });
      });
    });
    return true;
  }

  NicHost::Impl& d;
};

void NicHost::Impl::start_cm() {
  cm_host = std::make_shared<CmHost>(*this);
  cm =
      std::make_unique<rdmacm::Service>(*cm_host, std::uint64_t{std::random_device{}()} << 32 | std::random_device{}());
}

bool NicHost::Impl::on_cm_open(Session& s, const Request& r) {
  if (!r.body.empty()) return false;
  rdmacm::Channel* channel = nullptr;
  if (const int error = cm->open(s.id(), &channel)) {
    s.send(MsgType::cm_open, r.header.seq, error);
    return true;
  }
  const CmChannel reply{channel->key()};
  const int fd = channel->fd();
  s.send(MsgType::cm_open, r.header.seq, 0, &reply, sizeof(reply), {&fd, 1});
  return true;
}

bool NicHost::Impl::on_cm_close(Session& s, const Request& r) {
  CmChannel request{};
  if (r.body.size() != sizeof(request)) return false;
  std::memcpy(&request, r.body.data(), sizeof(request));
  cm->close(s.id(), request.key);
  s.send(MsgType::cm_close, r.header.seq, 0);
  arm_cm_timer();
  return true;
}

bool NicHost::Impl::on_cm_command(Session& s, const Request& r) {
  CmCommand request{};
  if (r.body.size() < sizeof(request)) return false;
  std::memcpy(&request, r.body.data(), sizeof(request));
  const Bytes rest = r.body.subspan(sizeof(request));
  if (rest.size() < request.in_size) return false;
  rdmacm::Command command;
  command.channel = cm->find(s.id(), request.key);
  if (command.channel == nullptr) {
    s.send(MsgType::cm_command, r.header.seq, kNoSuchChannel);
    return true;
  }
  command.number = request.number;
  command.out_size = request.out_size;
  command.in = rest.first(request.in_size);
  command.option = rest.subspan(request.in_size);
  if (request.other_key != 0) command.other = cm->find(s.id(), request.other_key);
  command.privileged = s.uid() == 0;
  std::vector<std::uint8_t> out;
  const int error = cm->command(command, &out);
  s.send(MsgType::cm_command, r.header.seq, error, out.data(), error == 0 ? out.size() : 0);
  arm_cm_timer();
  return true;
}

void NicHost::Impl::arm_cm_timer() {
  const Nanos next = cm->next_timeout();
  if (next == cm_timer_at) return;
  cm_timer_at = next;
  cm_timer.cancel();
  if (next == kNever) return;
  const Nanos now = cm_host->now();
  cm_timer.expires_after(std::chrono::nanoseconds(next > now ? next - now : 0));
  cm_timer.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    cm_timer_at = kNever;
    cm->on_timeout();
    arm_cm_timer();
  });
}

}  // namespace softrnic::control
