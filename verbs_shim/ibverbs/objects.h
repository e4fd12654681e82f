// The objects behind the structs of the verbs ABI: each begins with the public struct, so a conversion is a cast.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "engine/nic/nic.h"
#include "engine/nic/spinlock.h"
#include "verbs_shim/ibverbs/abi.h"

namespace softrnic::shim {

// --- devices ---------------------------------------------------------------------------------------------------

// What providers' own libraries (libmlx5, libefa) look at to see whose device it is: the pointer behind ibv_device
// is compared with their own table, so it must not be null.
struct DeviceOps {
  const char* name;
  const void* reserved[15];
};

// Lives as long as the process: there are few, and programs keep pointers in surprising places.
struct Device {
  ibv_device ib;  // must be first
  const DeviceOps* ops;
  const void* reserved[6];  // rdma-core's verbs_device continues here; nobody else reads it
  control::DeviceRecord record;
  std::uint32_t index;
  std::string runtime_dir;
};
inline Device& to_shim(ibv_device* d) { return *reinterpret_cast<Device*>(d); }

// The process's attachment to the NIC process, made when the first device is opened, shared by all contexts and given
// up with the last of them. On failure null, and `*rc` an errno value; the user has been told.
std::shared_ptr<nic::Vf> attach_shared(int* rc);
// What the NIC process says about itself and its devices; asks it if this process is not attached. 0 or an errno value
// and in `*why` a sentence for the user.
int discover(control::HelloInfo* out, std::string* why);
// Tells the user why there are no devices: once a process, on standard error.
void complain_once(const std::string& why);
// Root of the sysfs tree that the NIC process keeps, or an empty string.
std::string runtime_sysfs(const std::string& runtime_dir);

// --- objects ---------------------------------------------------------------------------------------------------

struct Context {
  verbs_context verbs;
  std::shared_ptr<nic::Vf> vf;
  nic::Context* nic = nullptr;
};
inline Context& to_shim(ibv_context* c) {
  return *reinterpret_cast<Context*>(reinterpret_cast<char*>(c) - offsetof(verbs_context, context));
}

// Whether the NIC can be used now. In a child of fork() this attaches anew if nothing has yet, as creating an
// object does.
inline bool usable(const Context& c) {
  nic::Vf::Impl* engine;
  return c.vf->engine(&engine) == 0;
}

struct Pd {
  ibv_pd ib;
  nic::ProtectionDomain* nic;
};
inline Pd& to_shim(ibv_pd* p) { return *reinterpret_cast<Pd*>(p); }

struct Mr {
  ibv_mr ib;
  nic::MemoryRegion* nic;
};
inline Mr& to_shim(ibv_mr* m) { return *reinterpret_cast<Mr*>(m); }

struct Mw {
  ibv_mw ib;
  nic::MemoryWindow* nic;
};
inline Mw& to_shim(ibv_mw* m) { return *reinterpret_cast<Mw*>(m); }

struct Ah {
  ibv_ah ib;
  nic::AddressHandle* nic;
};
inline Ah& to_shim(ibv_ah* a) { return *reinterpret_cast<Ah*>(a); }

struct Channel {
  ibv_comp_channel ib;
  nic::CompletionChannel* nic;
};
inline Channel& to_shim(ibv_comp_channel* c) { return *reinterpret_cast<Channel*>(c); }

// Events of an object that were handed to the application. Counted under the lock of the event queue they are taken
// from, so that once the object's events have left the queue the number stands.
using Reported = std::atomic<std::uint32_t>;

struct Cq {
  ibv_cq_ex ib;  // also every plain CQ: its struct is the beginning of this one
  nic::CompletionQueue* nic;
  Reported comp_reported{0}, async_reported{0};
  // Extended polling: the entry that the read functions look at, and the lock from start_poll to end_poll.
  SpinLock poll_lock;
  bool single_threaded = false;
  nic::CqEntry current;
};
inline Cq& to_shim(ibv_cq* c) { return *reinterpret_cast<Cq*>(c); }
inline Cq& to_shim(ibv_cq_ex* c) { return *reinterpret_cast<Cq*>(c); }

struct Srq {
  ibv_srq ib;
  nic::SharedReceiveQueue* nic;
  Reported async_reported{0};
};
inline Srq& to_shim(ibv_srq* s) { return *reinterpret_cast<Srq*>(s); }

struct Qp {
  ibv_qp_ex ib;             // also every plain QP: its struct is the first member
  void* newer_builders[8];  // room for builders that later headers append to ibv_qp_ex
  nic::QueuePair* nic;
  std::uint32_t max_send_sge, max_inline;  // granted; fixed for life
  bool has_builders = false;
  bool sq_sig_all = false;
  Reported async_reported{0};
  // Between ibv_wr_start and ibv_wr_complete: the request under construction and the first error.
  SendWqe* building = nullptr;
  int build_error = 0;
};
inline Qp& to_shim(ibv_qp* q) { return *reinterpret_cast<Qp*>(q); }
inline Qp& to_shim(ibv_qp_ex* q) { return *reinterpret_cast<Qp*>(q); }

// --- shared by several files -------------------------------------------------------------------------------------

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                    size_t attr_size);
int query_port(ibv_context* context, uint8_t port_num, ibv_port_attr* attr, size_t attr_size);
int query_rt_values(ibv_context* context, ibv_values_ex* values);
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);
int poll_cq(ibv_cq* cq, int num_entries, ibv_wc* wc);
int req_notify_cq(ibv_cq* cq, int solicited_only);
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type);
int dealloc_mw(ibv_mw* mw);
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind);

// Makes a CQ whatever its kind; create_cq_ex then adds the polling functions.
int create_cq(ibv_context* context, std::uint32_t cqe, void* cq_context, ibv_comp_channel* channel,
              std::uint32_t comp_vector, Cq** out);
// Sets the polling and reading functions of an extended CQ.
void install_cq_ex(Cq& cq);
// Sets the ibv_wr_* functions of an extended QP.
void install_builders(Qp& qp);

nic::AddressVector to_address_vector(const ibv_ah_attr& attr);
ibv_ah_attr from_address_vector(const nic::AddressVector& av);

// Waits until the application has acknowledged `reported` events, as the destroying verbs do.
void wait_for_acks(pthread_mutex_t* mutex, pthread_cond_t* cond, const std::uint32_t* completed,
                   const Reported& reported);

// CLOCK_MONOTONIC to CLOCK_REALTIME, both in ns.
std::uint64_t wallclock_ns(std::uint64_t monotonic_ns);

}  // namespace softrnic::shim
