// The device list.
#include <cstdio>
#include <mutex>
#include <vector>

#include "verbs_shim/ibverbs/objects.h"
#include "verbs_shim/ibverbs/rdmacm_device.h"

namespace softrnic::shim {
namespace {

std::mutex g_devices_lock;

std::vector<Device*>& known_devices() {
  static auto* devices = new std::vector<Device*>;  // never destroyed, nor are the devices
  return *devices;
}

const DeviceOps kDeviceOps = {"softrnic", {}};

template <std::size_t N>
void set_text(char (&field)[N], const std::string& text) {
  snprintf(field, N, "%s", text.c_str());
}

// Brings a device's public description up to date with its record.
void describe(Device& d, const control::DeviceRecord& record, std::uint32_t index, const std::string& runtime_dir) {
  d.record = record;
  d.index = index;
  d.ib.node_type = static_cast<ibv_node_type>(record.node_type);
  d.ib.transport_type = record.node_type == IBV_NODE_RNIC ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
  std::string name(record.name, strnlen(record.name, sizeof record.name));
  std::string uverbs = "uverbs" + std::to_string(index);
  std::string sys = runtime_sysfs(runtime_dir);
  if (sys.empty()) sys = "/sys";
  set_text(d.ib.name, name);
  set_text(d.ib.dev_name, uverbs);
  set_text(d.ib.dev_path, sys + "/class/infiniband_verbs/" + uverbs);
  set_text(d.ib.ibdev_path, sys + "/class/infiniband/" + name);
}

Device* device_for(const control::DeviceRecord& record) {
  for (Device* d : known_devices()) {
    if (strncmp(d->ib.name, record.name, sizeof record.name) == 0) return d;
  }
  auto* d = new Device{};
  d->ops = &kDeviceOps;
  known_devices().push_back(d);
  return d;
}

ibv_device** device_list(int* num_devices) {
  control::HelloInfo info;
  std::string why;
  if (discover(&info, &why) != 0) {
    complain_once(why);
    info.devices.clear();
  }
  std::lock_guard<std::mutex> guard(g_devices_lock);
  auto** list = static_cast<ibv_device**>(calloc(info.devices.size() + 1, sizeof(ibv_device*)));
  if (list == nullptr) throw std::bad_alloc();
  for (std::uint32_t i = 0; i < info.devices.size(); ++i) {
    Device* d = device_for(info.devices[i]);
    describe(*d, info.devices[i], i, info.reply.runtime_dir);
    list[i] = &d->ib;
  }
  if (num_devices) *num_devices = static_cast<int>(info.devices.size());
  return list;
}

}  // namespace
}  // namespace softrnic::shim

using namespace softrnic;
using namespace softrnic::shim;

SOFTRNIC_ABI ibv_device** ibv_get_device_list(int* num_devices) {
  if (num_devices) *num_devices = 0;
  redirect_librdmacm();
  return guarded([&] { return device_list(num_devices); });
}

SOFTRNIC_ABI void ibv_free_device_list(ibv_device** list) { free(list); }

SOFTRNIC_ABI const char* ibv_get_device_name(ibv_device* device) { return device->name; }

SOFTRNIC_ABI __be64 ibv_get_device_guid(ibv_device* device) { return to_shim(device).record.node_guid; }

SOFTRNIC_ABI int ibv_get_device_index(ibv_device* device) { return static_cast<int>(to_shim(device).index); }
