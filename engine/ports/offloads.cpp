#include "engine/ports/offloads.h"

#include <fmt/format.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace softrnic::ports {
namespace {

// Whose frames come to the NIC unfinished while it is on.
enum class Spoils { received, sent, nobody };
struct Offload {
  const char* name;
  std::uint32_t get, set;
  Spoils spoils;
};
constexpr Offload kOffloads[] = {
    {"gro", ETHTOOL_GGRO, ETHTOOL_SGRO, Spoils::received}, {"tso", ETHTOOL_GTSO, ETHTOOL_STSO, Spoils::sent},
    {"gso", ETHTOOL_GGSO, ETHTOOL_SGSO, Spoils::sent},     {"tx", ETHTOOL_GTXCSUM, ETHTOOL_STXCSUM, Spoils::sent},
    {"sg", ETHTOOL_GSG, ETHTOOL_SSG, Spoils::nobody},      {"rx", ETHTOOL_GRXCSUM, ETHTOOL_SRXCSUM, Spoils::nobody},
};

class Interface {
 public:
  explicit Interface(const std::string& name) : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    if (name.size() < sizeof(request_.ifr_name)) std::strcpy(request_.ifr_name, name.c_str());
  }
  ~Interface() {
    if (fd_ >= 0) ::close(fd_);
  }
  Interface(const Interface&) = delete;
  Interface& operator=(const Interface&) = delete;

  // 0 or an errno value.
  int call(void* what) {
    request_.ifr_data = static_cast<char*>(what);
    return ::ioctl(fd_, SIOCETHTOOL, &request_) == 0 ? 0 : errno;
  }

 private:
  ifreq request_{};
  const int fd_;
};

bool is_on(Interface& interface, std::uint32_t get) {
  ethtool_value value{get, 0};
  return interface.call(&value) == 0 && value.data != 0;
}

}  // namespace

std::vector<std::string> harmful_offloads(const std::string& iface) {
  Interface interface(iface);
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  const bool on_this_machine = interface.call(&driver) == 0 && std::string_view(driver.driver) == "veth";
  std::vector<std::string> found;
  for (const Offload& o : kOffloads) {
    const bool harmful = o.spoils == Spoils::received || (on_this_machine && o.spoils == Spoils::sent);
    if (harmful && is_on(interface, o.get)) found.emplace_back(o.name);
  }
  ethtool_value flags{ETHTOOL_GFLAGS, 0};
  if (interface.call(&flags) == 0 && (flags.data & ETH_FLAG_LRO) != 0) found.emplace_back("lro");
  return found;
}

std::string offload_warning(const PortConfig& port) {
  // The kernel's end of a tap is another interface than the port.
  if (!is_driver(port.device, "net_af_packet") && !is_driver(port.device, "net_af_xdp")) return {};
  const std::string iface = device_argument(port.device, "iface");
  const std::vector<std::string> found = harmful_offloads(iface);
  if (found.empty()) return {};
  return fmt::format(
      "port {}: offloads of interface {} are on ({}), so frames may arrive merged or without checksums, and be "
      "dropped; "
      "'ethtool -K {} {} off' switches them off",
      device_name(port.device), iface, fmt::join(found, ", "), iface, fmt::join(found, " off "));
}

int switch_offloads_off(const std::string& iface) {
  Interface interface(iface);
  for (const Offload& o : kOffloads) {
    ethtool_value value{o.set, 0};
    const int error = interface.call(&value);
    // What an interface cannot do is off.
    if (error != 0 && error != EOPNOTSUPP && is_on(interface, o.get)) return error;
  }
  return 0;
}

}  // namespace softrnic::ports
