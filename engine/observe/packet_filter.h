// Capture filters in libpcap's language (pcap-filter(7)), compiled by libpcap.
#pragma once

#include <memory>
#include <string>

#include "protocols/common/types.h"

namespace softrnic::observe {

class PacketFilter {
 public:
  // Null with libpcap's message in `why` when the expression is wrong.
  static std::unique_ptr<PacketFilter> compile(const std::string& expression, std::string* why);
  ~PacketFilter();

  // `frame` begins with an Ethernet header. Any thread, several at once.
  bool matches(Bytes frame) const;

 private:
  PacketFilter();
  struct Program;
  std::unique_ptr<Program> program_;
};

}  // namespace softrnic::observe
