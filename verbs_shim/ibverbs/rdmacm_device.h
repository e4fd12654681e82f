// /dev/infiniband/rdma_cm for librdmacm: its descriptors, and the commands that are written to them.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

namespace softrnic::shim {

// True for the path of the device.
bool is_cm_device(const char* path);
// As open(). The descriptor is a real one: it can be polled, duplicated, and made O_NONBLOCK.
int open_cm_device(int flags);
// True when the descriptor is one of open_cm_device().
bool is_cm_descriptor(int fd);
// As write(), fstat() and close() of such a descriptor.
ssize_t write_cm_device(int fd, const void* buffer, size_t size);
int stat_cm_device(int fd, struct stat* st);
void close_cm_device(int fd);

// Makes librdmacm's calls of the C library for the device end here, once it is loaded: its own entries for imported
// functions are changed, nobody else's. Called wherever librdmacm may have been loaded meanwhile; costs next to nothing
// when nothing was.
void redirect_librdmacm();

}  // namespace softrnic::shim
