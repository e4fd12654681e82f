// Protection domains.
#include "verbs_shim/ibverbs/objects.h"

using namespace softrnic;
using namespace softrnic::shim;

SOFTRNIC_ABI ibv_pd* ibv_alloc_pd(ibv_context* context) {
  return guarded([&]() -> ibv_pd* {
    auto pd = std::make_unique<Pd>();
    int rc = to_shim(context).nic->alloc_pd(&pd->nic);
    if (rc != 0) return made<ibv_pd>(rc, nullptr);
    pd->ib = {context, pd->nic->handle};
    return &pd.release()->ib;
  });
}

SOFTRNIC_ABI int ibv_dealloc_pd(ibv_pd* pd) {
  int rc = to_shim(pd).nic->context->dealloc_pd(to_shim(pd).nic);
  if (rc == 0) delete &to_shim(pd);
  return status(rc);
}
