// The functions of the C library that take a path: each looks whether the path is one of ours, and calls the C
// library's.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "verbs_shim/preload/tree.h"

// The fortified forms and inline functions of the headers would get in the way of definitions.
#undef stat64
#undef lstat64

using softrnic::preload::may_be_ours;
using softrnic::preload::Path;

namespace {

// The next definition of a function, looked up when it is first called.
template <class F>
F* next(F*& cached, const char* name) {
  F* f = __atomic_load_n(&cached, __ATOMIC_RELAXED);
  if (f == nullptr) {
    f = reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
    __atomic_store_n(&cached, f, __ATOMIC_RELAXED);
  }
  return f;
}

template <class R>
R missing(R value) {
  errno = ENOSYS;
  return value;
}

bool has_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// NAME(PATH, ...) with the path first.
#define PATH_FIRST(result, failure, name, params, ...)                     \
  EXPORT result name params {                                              \
    using Function = result params;                                        \
    static Function* cached;                                               \
    Function* call = next(cached, #name);                                  \
    return call != nullptr ? call(__VA_ARGS__) : missing<result>(failure); \
  }

// open() and openat(): their last parameter is the mode, where there is one.
#define OPENING(name, params, ...)                                         \
  EXPORT int name params {                                                 \
    using Function = int params;                                           \
    static Function* cached;                                               \
    mode_t mode = 0;                                                       \
    if (has_mode(flags)) {                                                 \
      va_list args;                                                        \
      va_start(args, flags);                                               \
      mode = va_arg(args, mode_t);                                         \
      va_end(args);                                                        \
    }                                                                      \
    Function* call = next(cached, #name);                                  \
    return call != nullptr ? call(__VA_ARGS__, flags, mode) : missing(-1); \
  }

OPENING(open, (const char* path, int flags, ...), Path(path))
OPENING(open64, (const char* path, int flags, ...), Path(path))
OPENING(openat, (int dir, const char* path, int flags, ...), dir, Path(path))
OPENING(openat64, (int dir, const char* path, int flags, ...), dir, Path(path))
PATH_FIRST(int, -1, __open_2, (const char* path, int flags), Path(path), flags)
PATH_FIRST(int, -1, __open64_2, (const char* path, int flags), Path(path), flags)
PATH_FIRST(int, -1, __openat_2, (int dir, const char* path, int flags), dir, Path(path), flags)
PATH_FIRST(int, -1, __openat64_2, (int dir, const char* path, int flags), dir, Path(path), flags)

PATH_FIRST(FILE*, nullptr, fopen, (const char* path, const char* mode), Path(path), mode)
PATH_FIRST(FILE*, nullptr, fopen64, (const char* path, const char* mode), Path(path), mode)
PATH_FIRST(FILE*, nullptr, freopen, (const char* path, const char* mode, FILE* file), Path(path), mode, file)
PATH_FIRST(FILE*, nullptr, freopen64, (const char* path, const char* mode, FILE* file), Path(path), mode, file)

PATH_FIRST(int, -1, stat, (const char* path, struct stat* st), Path(path), st)
PATH_FIRST(int, -1, lstat, (const char* path, struct stat* st), Path(path), st)
PATH_FIRST(int, -1, stat64, (const char* path, struct stat64* st), Path(path), st)
PATH_FIRST(int, -1, lstat64, (const char* path, struct stat64* st), Path(path), st)
PATH_FIRST(int, -1, fstatat, (int dir, const char* path, struct stat* st, int flags), dir, Path(path), st, flags)
PATH_FIRST(int, -1, fstatat64, (int dir, const char* path, struct stat64* st, int flags), dir, Path(path), st, flags)
PATH_FIRST(int, -1, __xstat, (int version, const char* path, struct stat* st), version, Path(path), st)
PATH_FIRST(int, -1, __lxstat, (int version, const char* path, struct stat* st), version, Path(path), st)
PATH_FIRST(int, -1, __xstat64, (int version, const char* path, struct stat64* st), version, Path(path), st)
PATH_FIRST(int, -1, __lxstat64, (int version, const char* path, struct stat64* st), version, Path(path), st)
PATH_FIRST(int, -1, __fxstatat, (int version, int dir, const char* path, struct stat* st, int flags), version, dir,
           Path(path), st, flags)
PATH_FIRST(int, -1, __fxstatat64, (int version, int dir, const char* path, struct stat64* st, int flags), version, dir,
           Path(path), st, flags)
PATH_FIRST(int, -1, statx, (int dir, const char* path, int flags, unsigned mask, struct statx* st), dir, Path(path),
           flags, mask, st)

PATH_FIRST(int, -1, access, (const char* path, int mode), Path(path), mode)
PATH_FIRST(int, -1, euidaccess, (const char* path, int mode), Path(path), mode)
PATH_FIRST(int, -1, eaccess, (const char* path, int mode), Path(path), mode)
PATH_FIRST(int, -1, faccessat, (int dir, const char* path, int mode, int flags), dir, Path(path), mode, flags)

PATH_FIRST(ssize_t, -1, readlink, (const char* path, char* out, size_t size), Path(path), out, size)
PATH_FIRST(ssize_t, -1, readlinkat, (int dir, const char* path, char* out, size_t size), dir, Path(path), out, size)
PATH_FIRST(ssize_t, -1, __readlink_chk, (const char* path, char* out, size_t size, size_t room), Path(path), out, size,
           room)

PATH_FIRST(DIR*, nullptr, opendir, (const char* path), Path(path))
PATH_FIRST(int, -1, scandir,
           (const char* path, struct dirent*** names, int (*filter)(const struct dirent*),
            int (*compare)(const struct dirent**, const struct dirent**)),
           Path(path), names, filter, compare)
PATH_FIRST(int, -1, scandir64,
           (const char* path, struct dirent64*** names, int (*filter)(const struct dirent64*),
            int (*compare)(const struct dirent64**, const struct dirent64**)),
           Path(path), names, filter, compare)
PATH_FIRST(int, -1, chdir, (const char* path), Path(path))
PATH_FIRST(int, -1, inotify_add_watch, (int fd, const char* path, uint32_t mask), fd, Path(path), mask)
PATH_FIRST(ssize_t, -1, getxattr, (const char* path, const char* name, void* value, size_t size), Path(path), name,
           value, size)
PATH_FIRST(ssize_t, -1, lgetxattr, (const char* path, const char* name, void* value, size_t size), Path(path), name,
           value, size)
PATH_FIRST(ssize_t, -1, listxattr, (const char* path, char* list, size_t size), Path(path), list, size)
PATH_FIRST(ssize_t, -1, llistxattr, (const char* path, char* list, size_t size), Path(path), list, size)

// What comes out is a name that programs may know, and take apart.
#define REALPATH(name, params, ...)                                                     \
  EXPORT char* name params {                                                            \
    using Function = char* params;                                                      \
    static Function* cached;                                                            \
    Function* call = next(cached, #name);                                               \
    char* result = call != nullptr ? call(__VA_ARGS__) : missing<char*>(nullptr);       \
    if (result != nullptr && may_be_ours(path)) softrnic::preload::untranslate(result); \
    return result;                                                                      \
  }

REALPATH(realpath, (const char* path, char* out), Path(path), out)
REALPATH(canonicalize_file_name, (const char* path), Path(path))
REALPATH(__realpath_chk, (const char* path, char* out, size_t size), Path(path), out, size)
