// Which names belong to RDMA devices, and what they are in the tree that the NIC process keeps.
#pragma once

#include <limits.h>
#include <stddef.h>

namespace softrnic::preload {

// Could `path` be one of ours? Cheap, since every call with a path asks.
inline bool may_be_ours(const char* path) {
  return path != nullptr && path[0] == '/' &&
         ((path[1] == 's' && path[2] == 'y' && path[3] == 's' && path[4] == '/') ||
          (path[1] == 'd' && path[2] == 'e' && path[3] == 'v' && path[4] == '/' && path[5] == 'i'));
}

// A path as the C library shall see it: the same, or the one in the tree. Lives as long as the call it is for.
class Path {
 public:
  explicit Path(const char* path) : path_(may_be_ours(path) ? translate(path) : path) {}
  operator const char*() const { return path_; }

 private:
  const char* translate(const char* path);

  const char* path_;
  char buffer_[PATH_MAX];
};

// The other way round, in place: a path inside the tree becomes the name that programs know it by.
void untranslate(char* path);

}  // namespace softrnic::preload
