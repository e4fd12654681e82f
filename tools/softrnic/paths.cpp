#include "tools/softrnic/paths.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "engine/control/client/client.h"

namespace softrnic::tool {
namespace {

namespace fs = std::filesystem;

fs::path executable_dir() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path("/usr/bin") : self.parent_path();
}

}  // namespace

std::string library_dir() {
  const fs::path prefix = executable_dir().parent_path();
  std::error_code ignored;
  // Installed, the library has a directory of its own: a libibverbs.so.1 right in lib/ may be the system's.
  for (const char* candidate : {"lib/softrnic", SOFTRNIC_LIBDIR "/softrnic"}) {
    if (fs::exists(prefix / candidate / "libibverbs.so.1", ignored)) return (prefix / candidate).string();
  }
  const fs::path build = prefix / "lib";
  if (fs::exists(prefix / "CMakeCache.txt", ignored) && fs::exists(build / "libibverbs.so.1", ignored))
    return build.string();
  return {};
}

std::string preload_list(const std::string& libraries) {
  const std::string ours = libraries + "/libsoftrnic-preload.so";
  const char* present = std::getenv("LD_PRELOAD");
  std::string list = present != nullptr ? present : "";
  std::error_code ignored;
  if (list.find(ours) != std::string::npos || !fs::exists(ours, ignored)) return list;
  return list.empty() ? ours : list + ":" + ours;
}

std::string daemon_path() { return (executable_dir() / "softrnicd").string(); }

std::string runtime_dir(const std::string& given) {
  std::error_code ignored;
  if (!given.empty()) {
    const fs::path absolute = fs::absolute(given, ignored).lexically_normal();
    return (absolute.has_filename() ? absolute : absolute.parent_path()).string();
  }
  return fs::path(control::default_socket_path()).parent_path().string();
}

std::string socket_path(const std::string& given_dir) {
  return given_dir.empty() ? control::default_socket_path() : runtime_dir(given_dir) + "/control.sock";
}

std::string make_private_dir() {
  const char* base = std::getenv("TMPDIR");
  std::string name = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/softrnic-XXXXXX";
  return ::mkdtemp(name.data()) != nullptr ? name : std::string();
}

}  // namespace softrnic::tool
