// Tells when addresses or interfaces of this host change (rtnetlink).
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>

namespace softrnic::control {

class AddressWatch {
 public:
  explicit AddressWatch(boost::asio::io_context& io) : socket_(io), settle_(io) {}
  // Calls `on_change` from the event loop, once for changes that come in a burst. False with errno set where
  // netlink is not to be had; the addresses then stay those of the start.
  bool start(std::function<void()> on_change);

 private:
  void wait();

  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer settle_;
  std::function<void()> on_change_;
};

}  // namespace softrnic::control
