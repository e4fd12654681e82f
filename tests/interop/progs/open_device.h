// Opening an RDMA device by its name.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <string>

// The device of this name, or the first one when it is empty; null with errno: it cannot be opened, or there is none.
inline ibv_context* open_device(const std::string& name) {
  ibv_device** list = ibv_get_device_list(nullptr);
  if (list == nullptr) return nullptr;
  ibv_device** d = list;
  while (*d != nullptr && !name.empty() && name != ibv_get_device_name(*d)) ++d;
  ibv_context* context = *d != nullptr ? ibv_open_device(*d) : nullptr;
  const int error = *d != nullptr ? errno : ENODEV;
  ibv_free_device_list(list);
  errno = error;
  return context;
}
