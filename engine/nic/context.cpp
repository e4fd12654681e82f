// Opened devices and the objects that are nothing but control state: protection domains, memory regions and windows,
// address handles.
#include <algorithm>
#include <cerrno>

#include "engine/nic/address.h"
#include "engine/nic/guarded_copy.h"
#include "engine/nic/memory_probe.h"
#include "engine/nic/vf_impl.h"

namespace softrnic::nic {
namespace {

constexpr std::uint32_t kAccessOnDemand = 64;
constexpr std::uint32_t kAccessHugeTlb = 128;
constexpr std::uint32_t kAccessOptional = 0x3FF00000;  // IBV_ACCESS_OPTIONAL_RANGE: hints, ignored when unknown
constexpr std::uint32_t kAccessKnown = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead |
                                       kAccessRemoteAtomic | kAccessMwBind | kAccessZeroBased | kAccessHugeTlb |
                                       kAccessOptional;

// The kernel's ib_check_mr_access: remote write and atomic access require local write (IBA 10.6.3.1).
int check_access(std::uint32_t access) {
  const bool remote_change = (access & (kAccessRemoteWrite | kAccessRemoteAtomic)) != 0;
  if (remote_change && (access & kAccessLocalWrite) == 0) return EINVAL;
  if ((access & kAccessOnDemand) != 0) return EOPNOTSUPP;
  return (access & ~kAccessKnown) != 0 ? EINVAL : 0;
}

}  // namespace

int Context::open(Vf& vf, std::uint32_t device, Context** out) {
  Vf::Impl* engine;
  if (const int rc = vf.engine(&engine); rc != 0) return rc;
  Vf::Impl& v = *engine;
  if (device >= vf.devices().size()) return EINVAL;
  auto ctx = std::make_unique<Context>();
  if (const int rc = ctx->async.open(); rc != 0) return rc;
  ctx->vf_ = &vf;
  ctx->device_ = device;
  {
    std::lock_guard g(v.control);
    v.lock_progress();
    v.contexts.push_back(ctx.get());
    v.unlock_progress();
  }
  v.fabric->status().contexts.fetch_add(1, std::memory_order_relaxed);
  v.helper.start();  // events come while no verb is called, too; without the thread they come late
  *out = ctx.release();
  return 0;
}

int Context::close() {
  Vf::Impl& v = vf_->impl();
  if (v.inherited()) {
    std::erase(v.contexts, this);
  } else {
    std::lock_guard g(v.control);
    // Queue pairs that the application left open stop here, as when the kernel closes the device.
    for (;;) {
      v.lock_progress();
      Vf::Impl::QpImpl* left = v.all_qps.front();
      while (left != nullptr && left->pd->context != this) left = left->all_hook.next;
      v.unlock_progress();
      if (left == nullptr) break;
      v.remove_qp(*left);
    }
    v.lock_progress();
    std::erase(v.contexts, this);
    v.unlock_progress();
    v.fabric->status().contexts.fetch_sub(1, std::memory_order_relaxed);
  }
  delete this;
  return 0;
}

const control::DeviceRecord& Context::device() const { return vf_->devices()[device_]; }

int Context::gid(std::uint32_t index, control::GidRecord* out) const {
  Vf::Impl& v = vf_->impl();
  if (v.inherited()) return ENODEV;
  SpinGuard g(v.gids_lock);
  for (const control::GidRecord& r : v.gids) {
    if (r.device == device_ && r.index == index) {
      *out = r;
      return 0;
    }
  }
  return EINVAL;
}

std::uint32_t Context::num_gids() const {
  Vf::Impl& v = vf_->impl();
  SpinGuard g(v.gids_lock);
  return static_cast<std::uint32_t>(
      std::count_if(v.gids.begin(), v.gids.end(), [this](const auto& r) { return r.device == device_; }));
}

int Context::alloc_pd(ProtectionDomain** out) {
  Vf::Impl* engine;
  if (const int rc = vf_->engine(&engine); rc != 0) return rc;
  if (!take_one(engine->use[device_].pds, device().max_pd)) return ENOMEM;
  std::lock_guard g(engine->control);
  *out = new ProtectionDomain{.context = this, .engine = engine, .handle = engine->next_pd++};
  return 0;
}

int Context::dealloc_pd(ProtectionDomain* pd) {
  if (pd->users.load(std::memory_order_acquire) != 0) return EBUSY;
  pd->engine->use[device_].pds.fetch_sub(1, std::memory_order_relaxed);
  delete pd;
  return 0;
}

int Context::reg_mr(ProtectionDomain* pd, void* addr, std::uint64_t length, std::uint64_t iova, std::uint32_t access,
                    MemoryRegion** out) {
  Vf::Impl& v = *pd->engine;
  if (const int rc = v.usable(); rc != 0) return rc;
  if (const int rc = check_access(access); rc != 0) return rc;
  const auto start = reinterpret_cast<std::uint64_t>(addr);
  if (length == 0 || length > device().max_mr_size || start + length < start) return EINVAL;
  if ((access & kAccessZeroBased) != 0) {
    iova = 0;
  } else if (iova + (length - 1) < iova) {
    return EINVAL;
  }
  install_fault_guard();
  if (const int rc = probe_memory(start, length, (access & kAccessLocalWrite) != 0); rc != 0) return rc;
  if (!take_one(v.use[device_].mrs, device().max_mr)) return ENOMEM;
  auto* mr =
      new MemoryRegion{.pd = pd, .lkey = 0, .rkey = 0, .addr = start, .length = length, .iova = iova, .access = access};
  if (const int rc = v.memory.add_region(*mr); rc != 0) {
    delete mr;
    v.use[device_].mrs.fetch_sub(1, std::memory_order_relaxed);
    return rc;
  }
  pd->users.fetch_add(1, std::memory_order_relaxed);
  v.fabric->status().mrs.fetch_add(1, std::memory_order_relaxed);
  *out = mr;
  return 0;
}

int Context::dereg_mr(MemoryRegion* mr) {
  Vf::Impl& v = *mr->pd->engine;
  if (!v.inherited()) {
    v.lock_progress();
    const bool busy = mr->windows.load(std::memory_order_relaxed) != 0;
    if (!busy) v.memory.remove(mr->lkey);
    v.unlock_progress();
    if (busy) return EBUSY;
    v.fabric->status().mrs.fetch_sub(1, std::memory_order_relaxed);
  }
  v.use[device_].mrs.fetch_sub(1, std::memory_order_relaxed);
  mr->pd->users.fetch_sub(1, std::memory_order_release);
  delete mr;
  return 0;
}

int Context::alloc_mw(ProtectionDomain* pd, std::uint8_t type, MemoryWindow** out) {
  Vf::Impl& v = *pd->engine;
  if (const int rc = v.usable(); rc != 0) return rc;
  if (type != 1 && type != 2) return EINVAL;
  if (!take_one(v.use[device_].mws, device().max_mw)) return ENOMEM;
  auto* mw = new MemoryWindow{.pd = pd, .rkey = 0, .type = type};
  if (const int rc = v.memory.add_window(*mw); rc != 0) {
    delete mw;
    v.use[device_].mws.fetch_sub(1, std::memory_order_relaxed);
    return rc;
  }
  pd->users.fetch_add(1, std::memory_order_relaxed);
  *out = mw;
  return 0;
}

int Context::dealloc_mw(MemoryWindow* mw) {
  Vf::Impl& v = *mw->pd->engine;
  if (!v.inherited()) {
    v.lock_progress();
    v.memory.remove(mw->rkey);
    v.unlock_progress();
  }
  v.use[device_].mws.fetch_sub(1, std::memory_order_relaxed);
  mw->pd->users.fetch_sub(1, std::memory_order_release);
  delete mw;
  return 0;
}

int Context::create_ah(ProtectionDomain* pd, const AddressVector& av, AddressHandle** out) {
  Vf::Impl& v = *pd->engine;
  if (const int rc = v.usable(); rc != 0) return rc;
  ResolvedAddress address;
  if (const int rc = resolve_address(*this, av, 0, &address); rc != 0) return rc;
  if (!take_one(v.use[device_].ahs, device().max_ah)) return ENOMEM;
  std::lock_guard g(v.control);
  const std::uint32_t number = v.addresses.add(pd->handle, address);
  if (number == 0) {
    v.use[device_].ahs.fetch_sub(1, std::memory_order_relaxed);
    return ENOMEM;
  }
  pd->users.fetch_add(1, std::memory_order_relaxed);
  *out = new AddressHandle{.pd = pd, .av = av, .number = number};
  return 0;
}

int Context::destroy_ah(AddressHandle* ah) {
  Vf::Impl& v = *ah->pd->engine;
  if (!v.inherited()) {
    std::lock_guard g(v.control);
    v.addresses.remove(ah->number);
  }
  v.use[device_].ahs.fetch_sub(1, std::memory_order_relaxed);
  ah->pd->users.fetch_sub(1, std::memory_order_release);
  delete ah;
  return 0;
}

}  // namespace softrnic::nic
