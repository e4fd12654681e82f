// softrnic extcap: Wireshark's interface to capture programs (wireshark.org, "extcap"). What goes to stdout is read by
// Wireshark; what goes to stderr is shown to its user as an error.
#include <fmt/format.h>

#include "engine/observe/packet_filter.h"
#include "tools/softrnic/commands.h"
#include "tools/softrnic/paths.h"

namespace softrnic::tool {
namespace {

constexpr const char* kInterface = "softrnic";
constexpr int kLinkTypeEthernet = 1;  // DLT_EN10MB

void print_interfaces() {
  fmt::print("extcap {{version={}}}{{help=https://www.wireshark.org/docs/man-pages/extcap.html}}{{display=softrnic}}\n",
             SOFTRNIC_VERSION);
  fmt::print("interface {{value={}}}{{display=softrnic, the software RDMA NIC}}\n", kInterface);
}

void print_config() {
  fmt::print(
      "arg {{number=0}}{{call=--dir}}{{display=Directory of the NIC process}}{{type=string}}"
      "{{tooltip=Empty: where programs look, too ({})}}\n",
      runtime_dir(""));
  fmt::print(
      "arg {{number=1}}{{call=--snaplen}}{{display=Bytes of each packet}}{{type=integer}}{{range=0,65535}}{{default=0}}"
      "{{tooltip=0: whole packets}}\n");
}

// Empty when the filter is right.
std::string filter_error(const std::string& filter) {
  std::string why;
  if (!filter.empty()) observe::PacketFilter::compile(filter, &why);
  return why;
}

}  // namespace

int extcap(const ExtcapOptions& options) {
  if (options.list_interfaces) return print_interfaces(), 0;
  if (options.interface != kInterface)
    return complain(options.interface.empty() ? "no interface is given"
                                              : fmt::format("there is no interface '{}'", options.interface)),
           kExitFailure;
  if (options.list_dlts) {
    fmt::print("dlt {{number={}}}{{name=EN10MB}}{{display=Ethernet}}\n", kLinkTypeEthernet);
    return 0;
  }
  if (options.list_config) return print_config(), 0;
  if (!options.capture) {
    // Wireshark asks while its user types: what is printed is what is wrong.
    const std::string why = filter_error(options.filter);
    if (!why.empty()) fmt::print("{}\n", why);
    return 0;
  }
  if (options.fifo.empty()) return complain("no fifo is given"), kExitFailure;
  CaptureOptions capture_options;
  capture_options.dir = options.dir;
  capture_options.file = options.fifo;
  capture_options.snaplen = options.snaplen;
  capture_options.filter = options.filter;
  capture_options.for_reader = true;
  return capture(capture_options);
}

}  // namespace softrnic::tool
