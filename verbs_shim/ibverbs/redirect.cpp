// Redirects the functions that librdmacm imports. A preloaded library could do it only for programs that let one be
// preloaded; this library is in the process wherever librdmacm is.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "verbs_shim/ibverbs/abi.h"
#include "verbs_shim/ibverbs/rdmacm_device.h"

namespace softrnic::shim {
namespace {

constexpr char kLibrary[] = "librdmacm.so.1";
constexpr int kNlNotSupported = -10;  // -NLE_OPNOTSUPP

int cm_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list args;
    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);
  }
  return is_cm_device(path) ? open_cm_device(flags) : ::open(path, flags, mode);
}

int cm_fstat(int fd, struct stat* st) { return is_cm_descriptor(fd) ? stat_cm_device(fd, st) : ::fstat(fd, st); }

// As older versions of the C library had fstat().
int cm_fxstat(int, int fd, struct stat* st) { return cm_fstat(fd, st); }

ssize_t cm_write(int fd, const void* buffer, size_t size) {
  return is_cm_descriptor(fd) ? write_cm_device(fd, buffer, size) : ::write(fd, buffer, size);
}

int cm_close(int fd) {
  close_cm_device(fd);
  return ::close(fd);
}

// librdmacm asks the kernel by netlink where the device is; ours is not the kernel's.
int cm_nl_connect(void*, int) { return kNlNotSupported; }

struct Redirection {
  const char* name;
  void* function;
};
const Redirection kRedirections[] = {
    {"open", reinterpret_cast<void*>(&cm_open)},
    {"open64", reinterpret_cast<void*>(&cm_open)},
    {"fstat", reinterpret_cast<void*>(&cm_fstat)},
    {"fstat64", reinterpret_cast<void*>(&cm_fstat)},
    {"__fxstat", reinterpret_cast<void*>(&cm_fxstat)},
    {"__fxstat64", reinterpret_cast<void*>(&cm_fxstat)},
    {"write", reinterpret_cast<void*>(&cm_write)},
    {"close", reinterpret_cast<void*>(&cm_close)},
    {"nl_connect", reinterpret_cast<void*>(&cm_nl_connect)},
};
static_assert(sizeof(struct stat) == sizeof(struct stat64));

// A loaded library, as far as its imports go.
struct Image {
  ElfW(Addr) base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela) * tables[2] = {};
  std::size_t sizes[2] = {};
  ElfW(Addr) relro = 0;  // read-only after relocation
  std::size_t relro_size = 0;
};

bool is_import(std::uint64_t type) {
#if defined(__x86_64__)
  return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
  return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT;
#else
  return false;
#endif
}

void read_dynamic(const ElfW(Dyn) * d, Image* image) {
  // The dynamic linker relocates these in place, on most machines.
  const auto address = [image](ElfW(Addr) a) { return a < image->base ? a + image->base : a; };
  for (; d->d_tag != DT_NULL; ++d) {
    switch (d->d_tag) {
      case DT_SYMTAB:
        image->symbols = reinterpret_cast<const ElfW(Sym)*>(address(d->d_un.d_ptr));
        break;
      case DT_STRTAB:
        image->strings = reinterpret_cast<const char*>(address(d->d_un.d_ptr));
        break;
      case DT_JMPREL:
        image->tables[0] = reinterpret_cast<const ElfW(Rela)*>(address(d->d_un.d_ptr));
        break;
      case DT_PLTRELSZ:
        image->sizes[0] = d->d_un.d_val;
        break;
      case DT_RELA:
        image->tables[1] = reinterpret_cast<const ElfW(Rela)*>(address(d->d_un.d_ptr));
        break;
      case DT_RELASZ:
        image->sizes[1] = d->d_un.d_val;
        break;
      default:
        break;
    }
  }
}

void set_entry(const Image& image, void** entry, void* function) {
  if (*entry == function) return;
  const auto at = reinterpret_cast<ElfW(Addr)>(entry);
  const bool read_only = at >= image.relro && at < image.relro + image.relro_size;
  const auto page_size = static_cast<ElfW(Addr)>(sysconf(_SC_PAGESIZE));
  void* page = reinterpret_cast<void*>(at & ~(page_size - 1));
  if (read_only && mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) return;
  __atomic_store_n(entry, function, __ATOMIC_RELEASE);
  if (read_only) mprotect(page, page_size, PROT_READ);
}

void redirect_imports(const Image& image) {
  if (image.symbols == nullptr || image.strings == nullptr) return;
  for (int t = 0; t < 2; ++t) {
    if (image.tables[t] == nullptr) continue;
    for (std::size_t i = 0; i < image.sizes[t] / sizeof(ElfW(Rela)); ++i) {
      const ElfW(Rela)& r = image.tables[t][i];
      if (!is_import(ELF64_R_TYPE(r.r_info))) continue;
      const char* name = image.strings + image.symbols[ELF64_R_SYM(r.r_info)].st_name;
      for (const Redirection& redirection : kRedirections) {
        if (strcmp(name, redirection.name) == 0)
          set_entry(image, reinterpret_cast<void**>(image.base + r.r_offset), redirection.function);
      }
    }
  }
}

bool is_librdmacm(const char* path) {
  const char* slash = strrchr(path, '/');
  const char* name = slash != nullptr ? slash + 1 : path;
  return strncmp(name, kLibrary, sizeof kLibrary - 1) == 0;
}

int look_at(dl_phdr_info* info, size_t size, void* data) {
  // Nothing was loaded since the last time.
  static std::atomic<unsigned long long> seen{0};
  auto* first = static_cast<bool*>(data);
  if (*first && size >= offsetof(dl_phdr_info, dlpi_subs)) {
    *first = false;
    if (seen.exchange(info->dlpi_adds) == info->dlpi_adds) return 1;
  }
  if (info->dlpi_name == nullptr || !is_librdmacm(info->dlpi_name)) return 0;
  Image image;
  image.base = info->dlpi_addr;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& p = info->dlpi_phdr[i];
    if (p.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(image.base + p.p_vaddr);
    if (p.p_type == PT_GNU_RELRO) {
      image.relro = image.base + p.p_vaddr;
      image.relro_size = p.p_memsz;
    }
  }
  if (dynamic != nullptr) read_dynamic(dynamic, &image);
  redirect_imports(image);
  return 0;
}

// Libraries' constructors run after those of what they need: librdmacm is mapped now if the program needs it.
__attribute__((constructor)) void redirect_at_start() { redirect_librdmacm(); }

}  // namespace

void redirect_librdmacm() {
  bool first = true;
  dl_iterate_phdr(look_at, &first);
}

}  // namespace softrnic::shim
