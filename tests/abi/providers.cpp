// providers LIBRARY: libraries of rdma-core's providers that programs link for their direct-verbs interfaces load
// and register themselves when the process already has ours, by preloading or otherwise. Absent ones are skipped.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

// Whether the process's libibverbs is the file `path`.
bool is_ours(const char* path) {
  void* p = dlsym(RTLD_DEFAULT, "ibv_get_device_list");
  Dl_info info;
  if (p == nullptr || dladdr(p, &info) == 0) return false;
  char* a = realpath(info.dli_fname, nullptr);
  char* b = realpath(path, nullptr);
  bool same = a && b && std::string(a) == b;
  free(a);
  free(b);
  return same;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  if (!dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) || !is_ours(argv[1])) {
    printf("FAILED: %s is not the process's libibverbs\n", argv[1]);
    return 1;
  }
  int failures = 0;
  for (const char* name : {"libmlx5.so.1", "libefa.so.1", "libmlx4.so.1", "libmana.so.1", "librdmacm.so.1"}) {
    if (dlopen(name, RTLD_NOW | RTLD_GLOBAL)) {
      printf("%s loads\n", name);
      continue;
    }
    std::string why = dlerror();
    bool absent = why.find("cannot open shared object file") != std::string::npos;
    printf("%s%s\n", absent ? "skipped: " : "FAILED: ", why.c_str());
    if (!absent) ++failures;
  }
  if (!is_ours(argv[1])) ++failures;
  return failures == 0 ? 0 : 1;
}
