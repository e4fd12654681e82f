// The tree that programs and scripts read where a kernel driver has /sys/class/infiniband and its like: plain files
// below <runtime directory>/sys, in the formats of the kernel (Documentation/ABI/stable/sysfs-class-infiniband), and
// <runtime directory>/dev/infiniband for the device nodes that programs look for.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/control/server/host_devices.h"
#include "protocols/ib/qp.h"

namespace softrnic::control {

class SysfsTree {
 public:
  // Nothing is made before write().
  explicit SysfsTree(std::string runtime_dir) : dir_(std::move(runtime_dir)) {}

  // Makes the tree of these devices, in place of one that was there. 0, or the errno value of the first failure.
  int write(const DeviceConfig& config);
  // Brings the address tables up to date.
  int write_gids(const DeviceConfig& config);
  // Brings a device's counters up to date.
  int write_counters(const std::string& device, const ib::QpCounters& counters);
  // Removes what write() made.
  void remove();

 private:
  int write_device(const DeviceRecord& d, std::size_t index);
  int write_port(const DeviceRecord& d);
  int write_device_gids(const DeviceConfig& config, std::size_t index);
  int write_classes(const DeviceConfig& config);
  int file(const std::string& path, const std::string& text);
  int link(const std::string& target, const std::string& path);

  std::string dir_;
  int error_ = 0;                             // first failure of a call of write...()
  std::map<std::string, std::string> known_;  // path of a file and what is in it: only changes are written
};

}  // namespace softrnic::control
