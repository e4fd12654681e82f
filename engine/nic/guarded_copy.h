// Touching memory that belongs to the application and may have been unmapped or protected since it was registered:
// every access is made by one of the functions below, whose code lies between two labels. A fault in there is turned
// into the result "false" by a SIGSEGV/SIGBUS handler; every other fault goes to the handler the application has, or
// would have, got.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softrnic::nic {

// Installs the handlers, or puts them back in front when the application has replaced them since. Cheap when nothing
// changed (two system calls). Called at every registration of memory; any thread.
void install_fault_guard();

// Copies `n` bytes between areas that do not overlap. The stores to `dst` are made in ascending order, the one that
// holds the last byte comes last, and it and every naturally aligned unit of up to 8 bytes at the end of `dst` becomes
// visible as a whole: a program that polls on the last byte or word sees everything before it (design rule 7).
bool guarded_copy(std::uint8_t* dst, const std::uint8_t* src, std::size_t n);

// Atomic read-modify-write of 8 aligned bytes. `*original` gets the old value.
bool guarded_compare_swap(std::uint64_t* p, std::uint64_t compare, std::uint64_t swap, std::uint64_t* original);
bool guarded_fetch_add(std::uint64_t* p, std::uint64_t addend, std::uint64_t* original);

// True when the byte can be read / written. The write leaves the byte as it is, atomically.
bool guarded_probe_read(const std::uint8_t* p);
bool guarded_probe_write(std::uint8_t* p);

}  // namespace softrnic::nic
