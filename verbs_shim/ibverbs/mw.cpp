// Memory windows. Type 2 windows are bound by work requests (post.h), type 1 windows by ibv_bind_mw().
#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (number(type) != IBV_MW_TYPE_1 && number(type) != IBV_MW_TYPE_2) return made<ibv_mw>(EINVAL, nullptr);
  return guarded([&]() -> ibv_mw* {
    auto mw = std::make_unique<Mw>();
    nic::ProtectionDomain* domain = to_shim(pd).nic;
    int rc = domain->context->alloc_mw(domain, static_cast<std::uint8_t>(type), &mw->nic);
    if (rc != 0) return made<ibv_mw>(rc, nullptr);
    mw->ib = {pd->context, pd, mw->nic->rkey, mw->nic->rkey >> 8, type};
    return &mw.release()->ib;
  });
}

int dealloc_mw(ibv_mw* mw) {
  int rc = to_shim(mw).nic->pd->context->dealloc_mw(to_shim(mw).nic);
  if (rc == 0) delete &to_shim(mw);
  return status(rc);
}

// A bind is a request in the send queue; the window's new R_Key is valid once it has been executed (IBA 10.6.7.2.1).
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) {
  ibv_send_wr wr{}, *bad;
  wr.wr_id = bind->wr_id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = bind->send_flags;
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
  wr.bind_mw.bind_info = bind->bind_info;
  int rc = post_send(qp, &wr, &bad);
  if (rc == 0) mw->rkey = wr.bind_mw.rkey;
  return status(rc);
}

}  // namespace softrnic::shim
