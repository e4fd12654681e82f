#include "engine/control/server/address_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <chrono>

#include "engine/switch/unique_fd.h"

namespace softrnic::control {
namespace {

constexpr std::chrono::milliseconds kSettle{50};

}  // namespace

bool AddressWatch::start(std::function<void()> on_change) {
  on_change_ = std::move(on_change);
  sw::UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return false;
  socket_.assign(fd.release());
  wait();
  return true;
}

void AddressWatch::wait() {
  socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    // What changed does not matter, nor whether notices were lost (ENOBUFS): everything is read anew.
    char buffer[8192];
    while (::recv(socket_.native_handle(), buffer, sizeof(buffer), MSG_DONTWAIT) >= 0 || errno == ENOBUFS) {
    }
    settle_.expires_after(kSettle);
    settle_.async_wait([this](const boost::system::error_code& e) {
      if (!e) on_change_();
    });
    wait();
  });
}

}  // namespace softrnic::control
