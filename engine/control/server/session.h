// One connection to the control socket: whole messages in and out, never blocking. What arrives is checked for form
// (packet size, header, descriptors) here; what it says is checked by the server.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/control/wire.h"
#include "engine/switch/unique_fd.h"

namespace softrnic::control {

struct Request {
  MsgHeader header{};
  std::span<const std::uint8_t> body;
  std::vector<sw::UniqueFd> fds;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // on_request: a well-formed packet arrived. on_closed: the connection ended, with the reason; called once, and never
  // from inside send().
  struct Callbacks {
    std::function<void(Session&, Request&)> on_request;
    std::function<bool(Session&)> on_end_of_requests;  // end of file; true: keep the connection for what is sent to it
    std::function<void(Session&, const std::string& reason)> on_closed;
  };

  Session(boost::asio::io_context& io, sw::UniqueFd socket, std::uint64_t id, Callbacks callbacks);
  void start();

  std::uint64_t id() const { return id_; }
  // The process at the other end as the kernel knows it; 0 when it is in another PID namespace.
  pid_t pid() const { return pid_; }
  // Its effective user; that of nobody when it is not known.
  uid_t uid() const { return uid_; }

  // Queues a message; descriptors are duplicated. A peer that does not read until too many messages wait is
  // disconnected.
  void send(MsgType type, std::uint32_t seq, int status, const void* body = nullptr, std::size_t length = 0,
            std::span<const int> fds = {});
  // The peer has not read all that was sent to it.
  bool has_unread();
  // Ends the connection when all queued messages are sent.
  void close_when_sent();
  // Ends the connection; on_closed follows from the event loop.
  void close(std::string reason);
  bool closed() const { return closed_; }

  // What the connection is used for, kept by the server.
  bool greeted = false;     // hello done
  bool holding = false;     // keeps the NIC process alive
  std::string comm;         // name of the process, printable
  std::uint16_t vf_id = 0;  // attached VF
  bool capturing = false;   // a capture belongs to it

 private:
  struct Outgoing {
    std::vector<std::uint8_t> bytes;
    std::vector<sw::UniqueFd> fds;
  };
  void watch_process();
  void wait_process();
  void wait_readable();
  bool read_one();
  enum class WriteResult { done, socket_full, no_resources };
  WriteResult write_queued();
  void write_more();

  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::posix::stream_descriptor process_;
  boost::asio::steady_timer retry_;
  const std::uint64_t id_;
  Callbacks callbacks_;
  pid_t pid_ = 0;
  uid_t uid_ = 65534;
  bool closed_ = false;
  bool writing_ = false;
  bool no_more_requests_ = false;
  bool closing_ = false;
  std::deque<Outgoing> out_;
  std::vector<std::uint8_t> buffer_;
};

}  // namespace softrnic::control
