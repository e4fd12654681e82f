// Memory regions.
#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {
namespace {

constexpr unsigned int kSupported =
    kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic | kAccessMwBind | kAccessZeroBased;
// Hints: IBV_ACCESS_HUGETLB says how the memory is mapped, and the optional range is there to be ignored by devices
// that do not know a flag (ibv_reg_mr(3)).
constexpr unsigned int kIgnored = +IBV_ACCESS_HUGETLB | +IBV_ACCESS_OPTIONAL_RANGE;

ibv_mr* register_memory(ibv_pd* pd, void* addr, size_t length, std::uint64_t iova, unsigned int access) {
  access &= ~kIgnored;
  if (access & IBV_ACCESS_ON_DEMAND) return made<ibv_mr>(EOPNOTSUPP, nullptr);
  if (access & ~kSupported) return made<ibv_mr>(EINVAL, nullptr);
  return guarded([&]() -> ibv_mr* {
    auto mr = std::make_unique<Mr>();
    nic::ProtectionDomain* domain = to_shim(pd).nic;
    int rc = domain->context->reg_mr(domain, addr, length, iova, access, &mr->nic);
    if (rc != 0) return made<ibv_mr>(rc, nullptr);
    mr->ib = {pd->context, pd, addr, length, mr->nic->lkey, mr->nic->lkey, mr->nic->rkey};
    return &mr.release()->ib;
  });
}

}  // namespace
}  // namespace softrnic::shim

using namespace softrnic;
using namespace softrnic::shim;

SOFTRNIC_ABI ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return register_memory(pd, addr, length, reinterpret_cast<std::uintptr_t>(addr), static_cast<unsigned int>(access));
}

SOFTRNIC_ABI ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  return register_memory(pd, addr, length, iova, static_cast<unsigned int>(access));
}

SOFTRNIC_ABI ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned int access) {
  return register_memory(pd, addr, length, iova, access);
}

// The old region stays as it was.
SOFTRNIC_ABI int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) {
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;
}

SOFTRNIC_ABI int ibv_dereg_mr(ibv_mr* mr) {
  int rc = to_shim(mr).nic->pd->context->dereg_mr(to_shim(mr).nic);
  if (rc == 0) delete &to_shim(mr);
  return status(rc);
}

SOFTRNIC_ABI ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  return made<ibv_mr>(EOPNOTSUPP, nullptr);
}
