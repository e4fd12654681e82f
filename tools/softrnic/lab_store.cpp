#include "tools/softrnic/lab_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "engine/control/server/runtime_dir.h"
#include "tools/softrnic/paths.h"
#include "tools/softrnic/pidfd.h"

namespace softrnic::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = "/lock";

struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

int make_dir(const std::string& path, std::string* why) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const int error = errno;
    *why = fmt::format("cannot make the directory '{}': {}", path, std::strerror(error));
    return error;
  }
  return control::check_dir(path, why);
}

}  // namespace

LabStore::LabStore(const std::string& given) : base_(runtime_dir(given) + "/labs") {}

int LabStore::lock(std::string* why) {
  for (;;) {
    if (const int error = make_dir(fs::path(base_).parent_path().string(), why)) return error;
    int error = make_dir(base_, why);
    if (error == ENOENT) continue;  // the last lab has just gone, and the directory with it
    if (error != 0) return error;
    sw::UniqueFd fd(::open(base_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd && errno == ENOENT) continue;
    if (!fd || ::flock(fd.get(), LOCK_EX) != 0) {
      error = errno;
      *why = fmt::format("cannot lock '{}': {}", base_, std::strerror(error));
      return error;
    }
    struct stat locked {
    }, there{};
    if (::fstat(fd.get(), &locked) != 0 || ::stat(base_.c_str(), &there) != 0 || locked.st_ino != there.st_ino)
      continue;
    lock_ = std::move(fd);
    return 0;
  }
}

void LabStore::unlock() {
  if (::rmdir(base_.c_str()) == 0) ::rmdir(fs::path(base_).parent_path().c_str());
  lock_.reset();
}

std::vector<std::string> LabStore::names() const {
  std::vector<std::string> all;
  std::error_code error;
  for (fs::directory_iterator it(base_, error), end; !error && it != end; it.increment(error))
    if (it->is_directory(error)) all.push_back(it->path().filename().string());
  std::sort(all.begin(), all.end());
  return all;
}

pid_t LabStore::keeper(const std::string& lab) const {
  const sw::UniqueFd fd(::open((dir(lab) + kLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct flock lock = whole_file();
  if (!fd || ::fcntl(fd.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
  return lock.l_pid;
}

sw::UniqueFd LabStore::open_keeper(const std::string& lab, pid_t* pid) const {
  *pid = keeper(lab);
  if (*pid <= 0) return sw::UniqueFd();
  sw::UniqueFd fd = open_process(*pid);
  return keeper(lab) == *pid ? std::move(fd) : sw::UniqueFd();
}

std::string LabStore::find(const std::string& name, std::string* why) const {
  const std::vector<std::string> all = names();
  if (name.empty() && all.size() == 1) return all[0];
  if (!name.empty() && std::find(all.begin(), all.end(), name) != all.end()) return name;
  if (all.empty()) {
    *why =
        name.empty() ? "no lab is up ('softrnic net up FILE')" : fmt::format("there is no lab '{}'; none is up", name);
  } else if (name.empty()) {
    *why = fmt::format("several labs are up: say which ({})", fmt::join(all, ", "));
  } else {
    *why = fmt::format("there is no lab '{}' (there is: {})", name, fmt::join(all, ", "));
  }
  return {};
}

int hold_lab(const std::string& dir) {
  const int fd = ::open((dir + kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return errno;
  struct flock lock = whole_file();
  return ::fcntl(fd, F_SETLK, &lock) == 0 ? 0 : errno;  // never closed
}

}  // namespace softrnic::tool
