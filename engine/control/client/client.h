// The application's end of the control socket. Light: no Boost, no exceptions, raw system calls only,
// descriptors close-on-exec and moved to high numbers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/control/wire.h"

namespace softrnic::control {

// Where the NIC process listens: $SOFTRNIC_SOCKET if set, else $SOFTRNIC_DIR/control.sock, else
// $XDG_RUNTIME_DIR/softrnic/control.sock if that directory may be written to, else /tmp/softrnic-<uid>/control.sock.
std::string default_socket_path();

struct Message {
  MsgHeader header{};
  std::vector<std::uint8_t> body;
  int fds[kMaxFds];
  int num_fds = 0;
  void close_fds();
};

// One connection. Not thread-safe: the owner serialises (send and receive may run on two threads).
class Connection {
 public:
  Connection() = default;
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Connects. 0 or an errno value: ENOENT no socket, ECONNREFUSED nobody listens (stale socket), EPERM the NIC
  // process is neither this user's nor root's, EACCES, ...
  int connect(const std::string& path);
  int fd() const { return fd_; }
  void close();

  // Sends one message. 0 or errno (EPIPE: the NIC process is gone).
  int send(MsgType type, std::uint32_t seq, const void* body, std::uint32_t length, const int* fds = nullptr,
           int num_fds = 0);
  // Receives one message, blocking (or EAGAIN when `nonblocking`). EPIPE at end of file, EPROTO for a malformed one.
  int receive(Message* out, bool nonblocking = false);
  // Sends a request and waits for its reply; notices that arrive meanwhile go to `notices`. Returns the
  // transport's errno or the reply's status.
  int call(MsgType type, const void* body, std::uint32_t length, Message* reply,
           std::vector<Message>* notices = nullptr, const int* fds = nullptr, int num_fds = 0);

 private:
  int fd_ = -1;
  std::uint32_t next_seq_ = 1;
};

// The hello exchange: EPROTONOSUPPORT on a version mismatch (reply then tells the daemon's version).
struct HelloInfo {
  HelloReply reply{};
  std::vector<DeviceRecord> devices;
  std::vector<GidRecord> gids;
};
int hello(Connection& c, HelloInfo* out);

}  // namespace softrnic::control
