// Attaching a process, and the tables of its engine.
#include <cerrno>

#include "engine/nic/fork_watch.h"
#include "engine/nic/vf_impl.h"

namespace softrnic::nic {
namespace {

// Freed QPNs are used again when this many wait and not before, as long as there are others: packets and connection
// state of the old use may be about (IBA 12.9.8.4).
constexpr std::size_t kQpnReuseDelay = 2048;
constexpr std::uint32_t kQpnsPerBlock = 1u << dp::kQpnBlockShift;

}  // namespace

int Vf::attach(const std::string& socket_path, std::unique_ptr<Vf>* out, std::string* why) {
  std::unique_ptr<dp::Fabric> fabric;
  if (const int rc = dp::Fabric::attach(socket_path, &fabric, why); rc != 0) return rc;
  std::unique_ptr<Vf> vf(new Vf);
  vf->socket_path_ = socket_path;
  vf->impl_ = new Impl(std::move(fabric));
  *out = std::move(vf);
  return 0;
}

Vf::~Vf() {
  // An engine that was inherited stays behind: objects from before the fork may still refer to it.
  if (!impl().inherited()) delete &impl();
}

int Vf::engine(Impl** out) {
  Impl* v = &impl();
  if (v->inherited()) {
    SpinGuard g(attach_lock_);
    v = &impl();
    if (v->inherited()) {  // else another thread was faster
      std::unique_ptr<dp::Fabric> fabric;
      std::string why;
      if (const int rc = dp::Fabric::attach(socket_path_, &fabric, &why); rc != 0) return rc;
      Impl* fresh = new Impl(std::move(fabric));
      fresh->contexts = v->contexts;
      fresh->fabric->status().contexts.store(static_cast<std::uint32_t>(v->contexts.size()), std::memory_order_relaxed);
      impl_.store(v = fresh, std::memory_order_release);
    }
  }
  *out = v;
  return v->usable();
}

const std::vector<control::DeviceRecord>& Vf::devices() const {
  return impl_.load(std::memory_order_acquire)->fabric->info().devices;
}
dp::Fabric& Vf::fabric() { return *impl().fabric; }

int Vf::start_helper() {
  Impl* engine;
  if (const int rc = this->engine(&engine); rc != 0) return rc;
  return engine->helper.start();
}

namespace {
std::atomic<void (*)()> g_fatal_hook{nullptr};
}  // namespace

void Vf::set_fatal_hook(void (*hook)()) { g_fatal_hook.store(hook); }
void Vf::Impl::call_fatal_hook() {
  if (void (*hook)() = g_fatal_hook.load()) hook();
}

Vf::Impl::Impl(std::unique_ptr<dp::Fabric> f)
    : fabric(std::move(f)), gids(fabric->info().gids), use(fabric->info().devices.size()), helper(*fabric, *this) {
  switch_path = self_path = path_state(fabric->switch_path());
  if (const std::int64_t block = fabric->get_block(); block >= 0) {
    next_qpn = static_cast<std::uint32_t>(block) << dp::kQpnBlockShift;
    qpns_left = kQpnsPerBlock;
    self_path = path_state(fabric->path_for_qpn(next_qpn));
  }
  fork_watch_add(*this);
}

Vf::Impl::~Impl() { fork_watch_remove(*this); }

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
