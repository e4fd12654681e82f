// The directory a NIC process lives in: control socket, lock, log. One NIC process a directory.
#pragma once

#include <sys/types.h>

#include <string>

#include "engine/switch/unique_fd.h"

namespace softrnic::control {

// 0 when `path` is a directory that nobody but this user (and root) can plant files in, else EPERM,
// ENOTDIR or the errno of the look-up; `why` gets a sentence for the user.
int check_dir(const std::string& path, std::string* why);

class RuntimeDir {
 public:
  // Makes the directory (mode 0700) if it is not there, checks it and takes its lock. EADDRINUSE when
  // another NIC process holds the lock.
  int open(const std::string& path, std::string* why);
  const std::string& path() const { return path_; }

  // A listening SEQPACKET socket at `socket_path`, mode 0600. A socket that a dead process left is
  // replaced; EADDRINUSE when somebody answers there, EEXIST when another kind of file is in the way.
  int listen(const std::string& socket_path, sw::UniqueFd* out, std::string* why) const;

 private:
  std::string path_;
  sw::UniqueFd lock_;
};

}  // namespace softrnic::control
