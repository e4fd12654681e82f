// softrnic address: the addresses of a port at run time.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "tools/softrnic/commands.h"
#include "tools/softrnic/nic_process.h"
#include "tools/softrnic/paths.h"

namespace softrnic::tool {
namespace {

// Index of the device, or -1 with a message.
int device_index(const control::HelloInfo& info, const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < info.devices.size(); ++i) {
    if (name == info.devices[i].name) return static_cast<int>(i);
    known += (known.empty() ? "" : ", ") + std::string(info.devices[i].name);
  }
  complain(fmt::format("there is no device '{}' (there is: {})", name, known));
  return -1;
}

}  // namespace

int change_address(const AddressOptions& options) {
  control::Connection nic;
  control::HelloInfo info;
  std::string why;
  if (connect_nic(socket_path(options.dir), &nic, &info, &why) != 0) return complain(why), kExitFailure;
  const int device = device_index(info, options.device);
  if (device < 0) return kExitFailure;
  control::AddressRequest request{};
  request.port = static_cast<std::uint32_t>(device);
  request.add = options.add ? 1 : 0;
  if (options.address.size() >= sizeof(request.address))
    return complain(fmt::format("{}: not an address", options.address)), kExitFailure;
  std::memcpy(request.address, options.address.data(), options.address.size());
  control::Message reply;
  const int error = nic.call(control::MsgType::address, &request, sizeof(request), &reply);
  if (error == 0) return 0;
  why.assign(reply.body.begin(), reply.body.end());
  if (error == ENODEV)
    why = "the NIC is on no network: its addresses are those of this host ('softrnic up --port ...')";
  complain(why.empty() ? fmt::format("{}: {}", options.address, std::strerror(error)) : why);
  return kExitFailure;
}

}  // namespace softrnic::tool
