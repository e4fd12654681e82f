// The client's side of a capture.
#pragma once

#include <cstdint>
#include <string>

#include "engine/control/client/client.h"

namespace softrnic::tool {

class CaptureClient {
 public:
  // Starts a capture into `file` ("-": stdout); when it returns, everything the NIC sends is captured. False with a
  // sentence for the user.
  // `filter`: in the language of pcap-filter(7); empty: every packet.
  bool start(const std::string& socket, const std::string& file, unsigned snaplen, const std::string& filter,
             std::string* why);
  // The connection: readable when the capture has ended by itself.
  int fd() const { return connection_.fd(); }
  // Asks for the end. What was captured is still written: wait_for_end().
  void stop();
  // Waits until everything is written. False with a sentence for the user when the capture failed.
  bool wait_for_end(std::string* why);

  // What ended the capture: 0, or an errno value, EPIPE when the reader has gone.
  int error() const { return error_; }
  std::uint64_t packets() const { return packets_; }
  std::uint64_t lost() const { return lost_; }

 private:
  control::Connection connection_;
  std::string file_;
  int error_ = 0;
  std::uint64_t packets_ = 0, lost_ = 0;
};

}  // namespace softrnic::tool
