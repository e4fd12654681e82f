// symbols LIBRARY RECORDED: what dlopen + dlvsym users (NCCL, Open MPI) do, for every symbol of the recorded list; and
// symbols that are there only to be found fail cleanly when called.
#include <dlfcn.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace {

int g_failures = 0;

void expect(bool ok, const std::string& what) {
  if (ok) return;
  ++g_failures;
  printf("FAILED: %s\n", what.c_str());
}

// `line` is name@version, or name@@version for the default one.
void check_symbol(void* library, const std::string& line) {
  std::size_t at = line.find('@');
  bool is_default = line.compare(at, 2, "@@") == 0;
  std::string name = line.substr(0, at), version = line.substr(at + (is_default ? 2 : 1));
  void* p = dlvsym(library, name.c_str(), version.c_str());
  expect(p != nullptr, line);
  if (is_default) expect(dlsym(library, name.c_str()) == p, name + " without a version is " + version);
}

template <class F>
F find(void* library, const char* name, const char* version) {
  return reinterpret_cast<F>(dlvsym(library, name, version));
}

void check_clean_failures(void* library) {
  auto post = find<int (*)(void*, void*, void*)>(library, "ibv_cmd_post_send", "IBVERBS_PRIVATE_34");
  expect(post && post(nullptr, nullptr, nullptr) == EOPNOTSUPP, "ibv_cmd_post_send gives EOPNOTSUPP");
  auto init = find<void* (*)()>(library, "_verbs_init_and_alloc_context", "IBVERBS_PRIVATE_34");
  expect(init && init() == nullptr, "_verbs_init_and_alloc_context gives null");
  auto open = find<void* (*)(void*)>(library, "ibv_open_device", "IBVERBS_1.0");
  errno = 0;
  expect(open && open(nullptr) == nullptr && errno == EOPNOTSUPP, "ibv_open_device@IBVERBS_1.0 gives null");
  int n = -1;
  auto list = find<void* (*)(int*)>(library, "ibv_get_device_list", "IBVERBS_1.0");
  expect(list && list(&n) == nullptr && n == 0, "ibv_get_device_list@IBVERBS_1.0 gives no devices");
  auto reg = find<void (*)(const char*, void*)>(library, "ibv_register_driver", "IBVERBS_1.1");
  if (reg) reg("none", nullptr);
  auto dmah = find<void* (*)(void*, void*)>(library, "ibv_alloc_dmah", "IBVERBS_1.15");
  errno = 0;
  expect(dmah && dmah(nullptr, nullptr) == nullptr && errno == EOPNOTSUPP, "ibv_alloc_dmah gives EOPNOTSUPP");
  for (const char* version : {"34", "57", "59", "64", "65"}) {
    auto name =
        find<const char* (*)(int)>(library, "ibv_wr_opcode_str", (std::string("IBVERBS_PRIVATE_") + version).c_str());
    expect(name && strcmp(name(2), "send") == 0, std::string("ibv_wr_opcode_str in node ") + version);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    printf("FAILED: %s\n", dlerror());
    return 1;
  }
  std::ifstream recorded(argv[2]);
  int n = 0;
  for (std::string line; std::getline(recorded, line);) {
    if (line.empty() || line[0] == '#') continue;
    check_symbol(library, line);
    ++n;
  }
  expect(n > 100, "the recorded list has symbols");
  check_clean_failures(library);
  printf("%d symbols, %d failures\n", n, g_failures);
  return g_failures == 0 ? 0 : 1;
}
