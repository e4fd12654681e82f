// Attaching a process, and the tables of its engine.
#include <cerrno>

#include "engine/nic/vf_impl.h"

namespace softrnic::nic {
namespace {

// Freed QPNs are used again when this many wait and not before, as long as there are others: packets and connection
// state of the old use may be about (IBA 12.9.8.4).
constexpr std::size_t kQpnReuseDelay = 2048;
constexpr std::uint32_t kQpnsPerBlock = 1u << dp::kQpnBlockShift;

}  // namespace

Vf::Vf() = default;
Vf::~Vf() = default;

int Vf::attach(const std::string& socket_path, std::unique_ptr<Vf>* out, std::string* why) {
  std::unique_ptr<dp::Fabric> fabric;
  if (const int rc = dp::Fabric::attach(socket_path, &fabric, why); rc != 0) return rc;
  std::unique_ptr<Vf> vf(new Vf);
  vf->impl_ = std::make_unique<Impl>(std::move(fabric));
  *out = std::move(vf);
  return 0;
}

const std::vector<control::DeviceRecord>& Vf::devices() const { return impl_->fabric->info().devices; }
dp::Fabric& Vf::fabric() { return *impl_->fabric; }

Vf::Impl::Impl(std::unique_ptr<dp::Fabric> f) : fabric(std::move(f)), use(fabric->info().devices.size()) {
  switch_path = self_path = path_state(fabric->switch_path());
  if (const std::int64_t block = fabric->get_block(); block >= 0) {
    next_qpn = static_cast<std::uint32_t>(block) << dp::kQpnBlockShift;
    qpns_left = kQpnsPerBlock;
    self_path = path_state(fabric->path_for_qpn(next_qpn));
  }
}

Vf::Impl::~Impl() = default;

bool Vf::Impl::inherited() const { return false; }

int Vf::Impl::usable() const { return inherited() ? ENODEV : fabric->nic_process_dead() ? EIO : 0; }

std::int64_t Vf::Impl::allocate_qpn() {
  if (qpns_left == 0 && freed_qpns.size() < kQpnReuseDelay) {
    const std::int64_t block = fabric->get_block();
    if (block >= 0) {
      next_qpn = static_cast<std::uint32_t>(block) << dp::kQpnBlockShift;
      qpns_left = kQpnsPerBlock;
    }
  }
  if (qpns_left != 0) {
    --qpns_left;
    return next_qpn++;
  }
  if (freed_qpns.empty()) return -1;
  const std::uint32_t qpn = freed_qpns.front();
  freed_qpns.pop_front();
  return qpn;
}

PathState* Vf::Impl::path_state(dp::Path* p) {
  for (const auto& s : paths) {
    if (s->path == p) return s.get();
  }
  paths.push_back(std::make_unique<PathState>());
  paths.back()->path = p;
  blocked_paths.reserve(paths.size());
  return paths.back().get();
}

void Vf::Impl::add_qp(QpImpl& qp) {
  lock_progress();
  timers.reserve(++live_qps);
  auto& block = qp_blocks[qp.qpn >> dp::kQpnBlockShift];
  if (block == nullptr) block = std::make_unique<QpImpl*[]>(kQpnsPerBlock);
  block[qp.qpn & (kQpnsPerBlock - 1)] = &qp;
  all_qps.push_back(qp);
  attach_status(qp);
  unlock_progress();
  fabric->status().qps.fetch_add(1, std::memory_order_relaxed);
}

void Vf::Impl::remove_qp(QpImpl& qp) {
  lock_progress();
  take_doorbells();  // its own among them
  stop_waiting(qp);
  timers.remove(qp);
  touched.remove(qp);
  dirty.remove(qp);
  all_qps.remove(qp);
  qp_blocks[qp.qpn >> dp::kQpnBlockShift][qp.qpn & (kQpnsPerBlock - 1)] = nullptr;
  for (auto& [gid, members] : groups) std::erase(members, &qp);
  qp.send_cq->purge(qp.self);
  if (qp.recv_cq != qp.send_cq) qp.recv_cq->purge(qp.self);
  detach_status(qp);
  --live_qps;
  unlock_progress();
  fabric->status().qps.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace softrnic::nic
