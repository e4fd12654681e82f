// Extended completion queues: one completion at a time, read field by field (ibv_create_cq_ex(3)).
#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {
namespace {

constexpr std::uint64_t kFields = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
                                  IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL |
                                  IBV_WC_EX_WITH_DLID_PATH_BITS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                  IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

const Completion& current(ibv_cq_ex* cq) { return to_shim(cq).current.wc; }

// Takes the next completion: 0, or ENOENT when there is none.
int next_poll(ibv_cq_ex* ib) {
  Cq& cq = to_shim(ib);
  int n = cq.nic->poll(1, [&cq](int, const nic::CqEntry& e) { cq.current = e; });
  if (n <= 0) return n == 0 ? ENOENT : -n;
  ib->wr_id = cq.current.wc.wr_id;
  ib->status = static_cast<ibv_wc_status>(cq.current.wc.status);
  return 0;
}

// The CQ is the caller's until end_poll, unless there was no completion.
int start_poll(ibv_cq_ex* ib, ibv_poll_cq_attr* attr) {
  if (attr->comp_mask != 0) return EINVAL;
  Cq& cq = to_shim(ib);
  if (!cq.single_threaded) cq.poll_lock.lock();
  int rc = next_poll(ib);
  if (rc != 0 && !cq.single_threaded) cq.poll_lock.unlock();
  return rc;
}

void end_poll(ibv_cq_ex* ib) {
  Cq& cq = to_shim(ib);
  if (!cq.single_threaded) cq.poll_lock.unlock();
}

ibv_wc_opcode read_opcode(ibv_cq_ex* cq) { return static_cast<ibv_wc_opcode>(current(cq).opcode); }
std::uint32_t read_vendor_err(ibv_cq_ex* cq) { return current(cq).vendor_err; }
std::uint32_t read_byte_len(ibv_cq_ex* cq) { return current(cq).byte_len; }
__be32 read_imm_data(ibv_cq_ex* cq) { return current(cq).imm_or_rkey; }
std::uint32_t read_qp_num(ibv_cq_ex* cq) { return current(cq).qp_num; }
std::uint32_t read_src_qp(ibv_cq_ex* cq) { return current(cq).src_qp; }
unsigned int read_wc_flags(ibv_cq_ex* cq) { return current(cq).wc_flags; }
std::uint32_t read_slid(ibv_cq_ex* cq) { return current(cq).slid; }
std::uint8_t read_sl(ibv_cq_ex* cq) { return current(cq).sl; }
std::uint8_t read_dlid_path_bits(ibv_cq_ex*) { return 0; }
std::uint64_t read_completion_ts(ibv_cq_ex* cq) { return to_shim(cq).current.timestamp; }
std::uint64_t read_completion_wallclock_ns(ibv_cq_ex* cq) { return wallclock_ns(to_shim(cq).current.timestamp); }

// Fields that no completion here has; creation refuses them, and a program that reads one all the same gets zero.
std::uint16_t read_cvlan(ibv_cq_ex*) { return 0; }
std::uint32_t read_flow_tag(ibv_cq_ex*) { return 0; }
void read_tm_info(ibv_cq_ex*, ibv_wc_tm_info* info) { *info = {}; }

}  // namespace

void install_cq_ex(Cq& cq) {
  cq.ib.start_poll = start_poll;
  cq.ib.next_poll = next_poll;
  cq.ib.end_poll = end_poll;
  cq.ib.read_opcode = read_opcode;
  cq.ib.read_vendor_err = read_vendor_err;
  cq.ib.read_byte_len = read_byte_len;
  cq.ib.read_imm_data = read_imm_data;
  cq.ib.read_qp_num = read_qp_num;
  cq.ib.read_src_qp = read_src_qp;
  cq.ib.read_wc_flags = read_wc_flags;
  cq.ib.read_slid = read_slid;
  cq.ib.read_sl = read_sl;
  cq.ib.read_dlid_path_bits = read_dlid_path_bits;
  cq.ib.read_completion_ts = read_completion_ts;
  cq.ib.read_cvlan = read_cvlan;
  cq.ib.read_flow_tag = read_flow_tag;
  cq.ib.read_tm_info = read_tm_info;
  cq.ib.read_completion_wallclock_ns = read_completion_wallclock_ns;
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  if (attr->wc_flags & ~kFields) return made<ibv_cq_ex>(EOPNOTSUPP, nullptr);
  if (attr->comp_mask & ~static_cast<std::uint32_t>(IBV_CQ_INIT_ATTR_MASK_FLAGS)) {
    return made<ibv_cq_ex>(EOPNOTSUPP, nullptr);
  }
  std::uint32_t flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
  if (flags & ~static_cast<std::uint32_t>(IBV_CREATE_CQ_ATTR_SINGLE_THREADED)) {
    return made<ibv_cq_ex>(EOPNOTSUPP, nullptr);
  }
  if (attr->cqe < 1) return made<ibv_cq_ex>(EINVAL, nullptr);
  return guarded([&]() -> ibv_cq_ex* {
    Cq* cq = nullptr;
    int rc = create_cq(context, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector, &cq);
    if (rc != 0) return made<ibv_cq_ex>(rc, nullptr);
    cq->single_threaded = (flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0;
    install_cq_ex(*cq);
    return &cq->ib;
  });
}

}  // namespace softrnic::shim
