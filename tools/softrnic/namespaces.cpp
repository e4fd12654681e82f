#include "tools/softrnic/namespaces.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "engine/switch/unique_fd.h"
#include "tools/softrnic/pidfd.h"

namespace softrnic::tool {
namespace {

constexpr int kLabNamespaces = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS;
constexpr int kHostNamespaces = CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS;

// Settings that forbid user namespaces to ordinary users, by their value.
struct Setting {
  const char* name;     // as sysctl takes it
  const char* path;     // below /proc/sys
  const char* forbids;  // value
  const char* allows;   // another one
};
constexpr Setting kSettings[] = {
    {"kernel.unprivileged_userns_clone", "kernel/unprivileged_userns_clone", "0", "1"},
    {"user.max_user_namespaces", "user/max_user_namespaces", "0", "10000"},
    {"kernel.apparmor_restrict_unprivileged_userns", "kernel/apparmor_restrict_unprivileged_userns", "1", "0"},
};

int forbidden(int error, std::string* why) {
  std::string reason = "no setting that is known here forbids it: a container's or security module's rules may";
  for (const Setting& s : kSettings) {
    std::ifstream in(std::string("/proc/sys/") + s.path);
    std::string value;
    if (in >> value && value == s.forbids) {
      reason = fmt::format("the setting {} is {} and forbids it; 'sudo sysctl {}={}' allows it", s.name, s.forbids,
                           s.name, s.allows);
      break;
    }
  }
  *why = fmt::format(
      "this user cannot make namespaces here ({}): {}. As root labs need no such permission: 'sudo softrnic net up "
      "FILE', and the other 'softrnic net' commands with sudo, too",
      std::strerror(error), reason);
  return error;
}

int write_file(const char* path, const std::string& text) {
  const sw::UniqueFd fd(::open(path, O_WRONLY | O_CLOEXEC));
  if (!fd || ::write(fd.get(), text.data(), text.size()) < 0) return errno;
  return 0;
}

}  // namespace

int make_lab_namespaces(std::string* why) {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(kLabNamespaces) == 0) return 0;  // as root
  if (::unshare(CLONE_NEWUSER | kLabNamespaces) != 0) return forbidden(errno, why);
  int error = write_file("/proc/self/setgroups", "deny");
  if (error == 0) error = write_file("/proc/self/uid_map", fmt::format("0 {} 1", uid));
  if (error == 0) error = write_file("/proc/self/gid_map", fmt::format("0 {} 1", gid));
  return error == 0 ? 0 : forbidden(error, why);
}

int mount_lab(std::string* why) {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return forbidden(errno, why);
  // Containers that hide parts of /proc do not allow it: then it shows the processes outside.
  ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
  return 0;
}

int make_host_namespaces(const std::string& name, const std::string& hosts_file) {
  if (::unshare(kHostNamespaces) != 0) return errno;
  if (::sethostname(name.data(), name.size()) != 0) return errno;
  // For programs that look for interfaces there. Where it is not allowed they see those outside.
  ::mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
  // Names are a convenience; a system may have no such file.
  ::mount(hosts_file.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr);
  return 0;
}

int enter_lab(int keeper_fd, pid_t keeper) {
  struct stat own {
  }, theirs{};
  if (::stat("/proc/self/ns/user", &own) != 0) return errno;
  if (::stat(fmt::format("/proc/{}/ns/user", keeper).c_str(), &theirs) != 0) return errno;
  const int user = own.st_ino != theirs.st_ino ? CLONE_NEWUSER : 0;  // nobody can enter that which he is in
  return ::setns(keeper_fd, user | CLONE_NEWPID | CLONE_NEWNS) == 0 ? 0 : errno;
}

int enter_host(pid_t holder) {
  const sw::UniqueFd fd = open_process(holder);
  return fd && ::setns(fd.get(), kHostNamespaces) == 0 ? 0 : errno;
}

}  // namespace softrnic::tool
