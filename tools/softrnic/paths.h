// Where the parts of softrnic are, in a build tree and where it is installed, and where a NIC process lives.
#pragma once

#include <string>

namespace softrnic::tool {

// The directory with our libibverbs.so.1; empty when there is none.
std::string library_dir();
// Value of LD_PRELOAD for programs: the present one, and the library that shows them the sysfs tree of the NIC, from
// `libraries`. It comes last: a sanitizer's run-time library wants to be the first.
std::string preload_list(const std::string& libraries);
// The softrnicd that belongs to this softrnic.
std::string daemon_path();
// The runtime directory: `given` if not empty, else the one that programs look in.
std::string runtime_dir(const std::string& given);
// The control socket in it.
std::string socket_path(const std::string& given_dir);
// A fresh private directory under $TMPDIR. Empty with errno set on failure.
std::string make_private_dir();

}  // namespace softrnic::tool
