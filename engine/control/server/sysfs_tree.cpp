#include "engine/control/server/sysfs_tree.h"

#include <fmt/format.h>
#include <net/if.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "engine/control/server/device_text.h"

namespace softrnic::control {
namespace {

namespace fs = std::filesystem;

// Major numbers and first minor ones as the kernel has them (drivers/infiniband/core): where it has none of these
// devices, nothing else has the numbers.
constexpr unsigned kInfinibandMajor = 231;
constexpr unsigned kFirstUverbs = 192;
constexpr unsigned kFirstUmad = 0;
constexpr unsigned kFirstIssm = 64;

// Devices of the class misc get their numbers at run time; this is what most machines have.
constexpr const char* kRdmaCmDev = "10:58";
// What the names of device nodes lead to: a character device that anybody may open, as nodes of our own would need
// privileges. Commands that are written to it fail.
constexpr const char* kNode = "/dev/full";

std::string gid_text(const Gid& gid) {
  std::string out;
  for (std::size_t i = 0; i < 16; i += 2)
    out += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", gid.raw[i], gid.raw[i + 1]);
  return out;
}

const char* node_type_text(std::uint8_t type) { return type == 4 ? "4: RNIC" : "1: CA"; }

std::string netdev_of(const GidRecord& g, const DeviceRecord& d) {
  char name[IF_NAMESIZE]{};
  return g.ndev_ifindex != 0 && ::if_indextoname(g.ndev_ifindex, name) != nullptr ? name : d.netdev;
}

std::string host_name() {
  char name[65]{};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

std::string text_in(const char* path, const std::string& otherwise) {
  std::ifstream in(path);
  std::string line;
  return std::getline(in, line) && !line.empty() ? line : otherwise;
}

std::string device_dir(const std::string& dir, const std::string& device) {
  return dir + "/sys/devices/softrnic/" + device;
}
std::string ibdev_dir(const std::string& dir, const std::string& device) {
  return device_dir(dir, device) + "/infiniband/" + device;
}

}  // namespace

// Replaced as a whole, so that a reader sees the old text or the new one.
int SysfsTree::file(const std::string& path, const std::string& text) {
  const auto known = known_.find(path);
  if (known != known_.end() && known->second == text) return 0;
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  const std::string fresh = dir_ + "/sys/.new";
  {
    std::ofstream out(fresh, std::ios::trunc);
    out << text << '\n';
    out.flush();
    if (!out) error = std::error_code(errno != 0 ? errno : EIO, std::system_category());
  }
  if (!error) {
    ::chmod(fresh.c_str(), 0444);
    fs::rename(fresh, path, error);
  }
  if (error) {
    if (error_ == 0) error_ = error.value();
    return error.value();
  }
  known_[path] = text;
  return 0;
}

int SysfsTree::link(const std::string& target, const std::string& path) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  fs::create_symlink(target, path, error);
  if (error && error_ == 0) error_ = error.value();
  return error.value();
}

int SysfsTree::write(const DeviceConfig& config) {
  remove();
  error_ = 0;
  for (std::size_t i = 0; i < config.devices.size(); ++i) {
    write_device(config.devices[i], i);
    write_device_gids(config, i);
    write_counters(config.devices[i].name, {});
  }
  write_classes(config);
  return error_;
}

int SysfsTree::write_device(const DeviceRecord& d, std::size_t index) {
  const std::string parent = device_dir(dir_, d.name);
  const std::string ib = ibdev_dir(dir_, d.name);
  // The device that the RDMA one belongs to, with its network interface.
  file(parent + "/numa_node", "-1");
  file(parent + "/local_cpus", text_in("/sys/devices/system/node/node0/cpumap", "1"));
  file(parent + "/local_cpulist", text_in("/sys/devices/system/cpu/online", "0"));
  if (::if_nametoindex(d.netdev) != 0) {
    link(std::string("/sys/class/net/") + d.netdev, parent + "/net/" + d.netdev);
  } else {
    file(parent + "/net/" + d.netdev + "/address", mac_text(d));
  }
  file(ib + "/node_type", node_type_text(d.node_type));
  file(ib + "/node_guid", guid_text(d.node_guid));
  file(ib + "/sys_image_guid", guid_text(d.sys_image_guid));
  file(ib + "/node_desc", fmt::format("{} {}", host_name(), d.name));
  file(ib + "/fw_ver", d.fw_ver);
  file(ib + "/hca_type", "softrnic");
  file(ib + "/board_id", "softrnic");
  file(ib + "/hw_rev", fmt::format("{:#x}", d.hw_ver));
  link("../..", ib + "/device");
  write_port(d);

  const std::string uverbs = fmt::format("uverbs{}", index);
  const std::string verbs = parent + "/infiniband_verbs/" + uverbs;
  file(verbs + "/ibdev", d.name);
  file(verbs + "/abi_version", "1");
  file(verbs + "/dev", fmt::format("{}:{}", kInfinibandMajor, kFirstUverbs + index));
  link("../..", verbs + "/device");
  for (const auto& [kind, minor] : {std::pair("umad", kFirstUmad), std::pair("issm", kFirstIssm)}) {
    const std::string mad = fmt::format("{}/infiniband_mad/{}{}", parent, kind, index);
    file(mad + "/ibdev", d.name);
    file(mad + "/port", "1");
    file(mad + "/dev", fmt::format("{}:{}", kInfinibandMajor, minor + index));
    link("../..", mad + "/device");
  }
  return error_;
}

// What ibv_query_port() says (query.cpp in verbs_shim), in the kernel's words.
int SysfsTree::write_port(const DeviceRecord& d) {
  const std::string port = ibdev_dir(dir_, d.name) + "/ports/1";
  const bool ethernet = d.link_layer == 2;
  file(port + "/state", "4: ACTIVE");
  file(port + "/phys_state", "5: LinkUp");
  file(port + "/link_layer", ethernet ? "Ethernet" : "InfiniBand");
  file(port + "/rate", "100 Gb/sec (4X EDR)");
  file(port + "/lid", "0x0");
  file(port + "/sm_lid", "0x0");
  file(port + "/sm_sl", "0");
  file(port + "/lid_mask_count", "0");
  file(port + "/cap_mask", ethernet ? "0x04010000" : "0x00010000");
  file(port + "/pkeys/0", "0xffff");
  return error_;
}

int SysfsTree::write_gids(const DeviceConfig& config) {
  error_ = 0;
  for (std::size_t i = 0; i < config.devices.size(); ++i) write_device_gids(config, i);
  return error_;
}

// An empty place has no type and no interface: a kernel gives EINVAL when they are read, here the files are not there.
int SysfsTree::write_device_gids(const DeviceConfig& config, std::size_t index) {
  const DeviceRecord& d = config.devices[index];
  const std::string port = ibdev_dir(dir_, d.name) + "/ports/1";
  std::set<std::string> valid;
  for (const GidRecord& g : config.gids) {
    if (g.device != index) continue;
    const std::string gid = fmt::format("{}/gids/{}", port, g.index);
    file(gid, gid_text(g.gid));
    valid.insert(gid);
    if (g.gid == Gid{}) continue;
    const std::string type = fmt::format("{}/gid_attrs/types/{}", port, g.index);
    const std::string ndev = fmt::format("{}/gid_attrs/ndevs/{}", port, g.index);
    file(type, g.type == 0 ? "IB/RoCE v1" : "RoCE v2");
    file(ndev, netdev_of(g, d));
    valid.insert(type);
    valid.insert(ndev);
  }
  const std::string tables[] = {port + "/gids/", port + "/gid_attrs/types/", port + "/gid_attrs/ndevs/"};
  std::erase_if(known_, [&](const auto& entry) {
    const std::string& path = entry.first;
    const bool gone = !valid.contains(path) &&
                      std::ranges::any_of(tables, [&](const std::string& table) { return path.starts_with(table); });
    if (gone) ::unlink(path.c_str());
    return gone;
  });
  return error_;
}

int SysfsTree::write_counters(const std::string& device, const ib::QpCounters& c) {
  const std::string port = ibdev_dir(dir_, device) + "/ports/1";
  const auto number = [this](const std::string& path, std::uint64_t n) { file(path, std::to_string(n)); };
  const std::string counters = port + "/counters/";
  // IBA 16.1.3.5: data in units of four bytes.
  number(counters + "port_xmit_data", c.sent_bytes / 4);
  number(counters + "port_rcv_data", c.rcvd_bytes / 4);
  number(counters + "port_xmit_packets", c.sent_pkts);
  number(counters + "port_rcv_packets", c.rcvd_pkts);
  for (const char* name : {"VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery",
                           "local_link_integrity_errors", "port_rcv_constraint_errors", "port_rcv_errors",
                           "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors",
                           "port_xmit_constraint_errors", "port_xmit_discards", "port_xmit_wait", "symbol_error"})
    number(counters + name, 0);

  const std::string hw = port + "/hw_counters/";
  number(hw + "lifespan", 10);
  number(hw + "sent_pkts", c.sent_pkts);
  number(hw + "rcvd_pkts", c.rcvd_pkts);
  number(hw + "duplicate_request", c.duplicate_request);
  number(hw + "out_of_seq_request", c.out_of_seq_request);
  number(hw + "rcvd_rnr_err", c.rcvd_rnr_err);
  number(hw + "send_rnr_err", c.send_rnr_err);
  number(hw + "rcvd_seq_err", c.rcvd_seq_err);
  number(hw + "retry_exceeded_err", c.retry_exceeded_err);
  number(hw + "retry_rnr_exceeded_err", c.retry_rnr_exceeded_err);
  number(hw + "completer_retry_err", c.completer_retry_err);
  number(hw + "local_ack_timeout_err", c.local_ack_timeout_err);
  number(hw + "rx_drops", c.drops);
  return error_;
}

int SysfsTree::write_classes(const DeviceConfig& config) {
  const std::string classes = dir_ + "/sys/class";
  const std::string nodes = dir_ + "/dev/infiniband";
  for (std::size_t i = 0; i < config.devices.size(); ++i) {
    const std::string name = config.devices[i].name;
    const std::string up = "../../devices/softrnic/" + name;
    link(up + "/infiniband/" + name, classes + "/infiniband/" + name);
    const auto add = [&](const std::string& sysfs_class, const std::string& entry) {
      link(fmt::format("{}/{}/{}", up, sysfs_class, entry), fmt::format("{}/{}/{}", classes, sysfs_class, entry));
    };
    add("infiniband_verbs", fmt::format("uverbs{}", i));
    add("infiniband_mad", fmt::format("umad{}", i));
    add("infiniband_mad", fmt::format("issm{}", i));
    link(kNode, fmt::format("{}/uverbs{}", nodes, i));
  }
  file(classes + "/infiniband_verbs/abi_version", "6");
  file(classes + "/infiniband_mad/abi_version", "5");
  file(classes + "/misc/rdma_cm/abi_version", "4");
  file(classes + "/misc/rdma_cm/dev", text_in("/sys/class/misc/rdma_cm/dev", kRdmaCmDev));
  link(kNode, nodes + "/rdma_cm");
  return error_;
}

void SysfsTree::remove() {
  std::error_code ignored;
  fs::remove_all(dir_ + "/sys", ignored);
  fs::remove_all(dir_ + "/dev", ignored);
  known_.clear();
}

}  // namespace softrnic::control
