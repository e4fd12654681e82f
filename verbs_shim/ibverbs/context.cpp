// Opening and closing devices. The context carries the calls that verbs.h makes inline; calls that stay null are
// not supported, and the inline functions then give EOPNOTSUPP.
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/nic/raw_io.h"
#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {
namespace {

// cmd_fd: nothing can be asked of it, but programs watch, inherit and compare it, so it has an inode of its own.
int make_command_fd() {
  long fd = syscall(SYS_memfd_create, "softrnic-uverbs", 1u /* MFD_CLOEXEC */);
  if (fd < 0) return -1;
  int high = raw_move_high(static_cast<int>(fd));
  return high < 0 ? static_cast<int>(fd) : high;
}

int compat_query_device(ibv_context* context, ibv_device_attr* attr) { return ibv_query_device(context, attr); }
int compat_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attr) {
  return ibv_query_port(context, port, attr);
}

void install_calls(verbs_context& v) {
  v.sz = sizeof v;
  v.query_port = query_port;
  v.query_device_ex = query_device_ex;
  v.query_rt_values = query_rt_values;
  v.create_cq_ex = create_cq_ex;
  v.create_qp_ex = create_qp_ex;

  ibv_context_ops& ops = v.context.ops;
  ops._compat_query_device = compat_query_device;
  ops._compat_query_port = compat_query_port;
  ops.alloc_mw = alloc_mw;
  ops.bind_mw = bind_mw;
  ops.dealloc_mw = dealloc_mw;
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = req_notify_cq;
  ops.post_srq_recv = post_srq_recv;
  ops.post_send = post_send;
  ops.post_recv = post_recv;
}

// The device's index in the attachment: the NIC process may have been restarted with others since it was listed.
int find_device(const nic::Vf& vf, const Device& device, std::uint32_t* index) {
  const auto& records = vf.devices();
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    if (strncmp(records[i].name, device.ib.name, sizeof records[i].name) == 0) {
      *index = i;
      return 0;
    }
  }
  return ENODEV;
}

ibv_context* open_device(Device& device) {
  int rc = 0;
  auto context = std::make_unique<Context>();
  context->vf = attach_shared(&rc);
  if (!context->vf) return made<ibv_context>(rc, nullptr);
  std::uint32_t index = 0;
  rc = find_device(*context->vf, device, &index);
  if (rc == 0) rc = nic::Context::open(*context->vf, index, &context->nic);
  if (rc != 0) return made<ibv_context>(rc, nullptr);

  verbs_context& v = context->verbs;
  v.context.device = &device.ib;
  v.context.cmd_fd = make_command_fd();
  v.context.async_fd = context->nic->async.fd();
  v.context.num_comp_vectors = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  pthread_mutex_init(&v.context.mutex, nullptr);
  v.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  install_calls(v);
  return &context.release()->verbs.context;
}

}  // namespace

}  // namespace softrnic::shim

using namespace softrnic;
using namespace softrnic::shim;

SOFTRNIC_ABI ibv_context* ibv_open_device(ibv_device* device) {
  return guarded([&] { return open_device(to_shim(device)); });
}

SOFTRNIC_ABI int ibv_close_device(ibv_context* context) {
  std::unique_ptr<Context> c(&to_shim(context));
  int rc = c->nic->close();
  if (context->cmd_fd >= 0) raw_close(context->cmd_fd);
  pthread_mutex_destroy(&context->mutex);
  return status(rc);
}

SOFTRNIC_ABI int ibv_fork_init(void) { return 0; }

// Fork needs no preparation: the parent's memory stays its own, and no page of it is pinned.
SOFTRNIC_ABI ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
SOFTRNIC_ABI int ibv_dontfork_range(void*, size_t) { return 0; }
SOFTRNIC_ABI int ibv_dofork_range(void*, size_t) { return 0; }
