// Reading the sysfs tree, for librdmacm and others of rdma-core's family.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>

#include "verbs_shim/ibverbs/objects.h"
#include "verbs_shim/ibverbs/rdmacm_device.h"

namespace softrnic::shim {
namespace {

char g_sysfs_path[IBV_SYSFS_PATH_MAX];

// $SYSFS_PATH (not for a set-uid program), else the tree that the NIC process keeps if there is one, else /sys.
void choose_sysfs_path() {
  const char* env = getuid() == geteuid() ? getenv("SYSFS_PATH") : nullptr;
  snprintf(g_sysfs_path, sizeof g_sysfs_path, "%s", env ? env : "/sys");
  if (env == nullptr) {
    control::HelloInfo info;
    std::string why, own;
    if (discover(&info, &why) == 0) own = runtime_sysfs(info.reply.runtime_dir);
    if (!own.empty() && own.size() < sizeof g_sysfs_path) memcpy(g_sysfs_path, own.c_str(), own.size() + 1);
  }
  for (size_t n = strlen(g_sysfs_path); n > 0 && g_sysfs_path[n - 1] == '/'; --n) g_sysfs_path[n - 1] = '\0';
}

}  // namespace
}  // namespace softrnic::shim

SOFTRNIC_ABI const char* ibv_get_sysfs_path(void) {
  softrnic::shim::redirect_librdmacm();
  static std::once_flag once;
  std::call_once(once, softrnic::shim::choose_sysfs_path);
  return softrnic::shim::g_sysfs_path;
}

// The number of bytes read without the final newline, and a terminating zero; -1 with errno.
SOFTRNIC_ABI int ibv_read_sysfs_file(const char* dir, const char* file, char* buf, size_t size) {
  char path[4096];
  int length = snprintf(path, sizeof path, "%s/%s", dir, file);
  if (length < 0 || static_cast<size_t>(length) >= sizeof path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n = read(fd, buf, size);
  int error = errno;
  close(fd);
  if (n < 0) {
    errno = error;
    return -1;
  }
  if (n > 0 && buf[n - 1] == '\n') {
    buf[--n] = '\0';
  } else if (static_cast<size_t>(n) < size) {
    buf[n] = '\0';
  } else {
    errno = EOVERFLOW;  // no room for the terminating zero
    return -1;
  }
  return static_cast<int>(n);
}
