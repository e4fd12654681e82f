// Keeping the sysfs tree true: what its counters show, and when they are brought up to date.
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>

#include "engine/control/server/server.h"
#include "engine/control/server/status_pages.h"

namespace softrnic::control {
namespace {

// For readers that cannot ask for the counters of now.
constexpr std::chrono::seconds kCounterInterval{1};

constexpr std::size_t kCounters = sizeof(ib::QpCounters) / sizeof(std::uint64_t);

void add(std::array<std::uint64_t, 16>* sums, const std::uint8_t* counters) {
  for (std::size_t i = 0; i < kCounters; ++i) (*sums)[i] += field<std::uint64_t>(counters, i * sizeof(std::uint64_t));
}

}  // namespace

void NicHost::Impl::write_sysfs() {
  gone_counters.assign(options.devices.devices.size(), {});
  if (const int error = sysfs->write(options.devices))
    log->warn("the sysfs tree in {} is not complete: {}", options.dir, std::strerror(error));
}

// Adds up what a VF has counted since it attached.
void NicHost::Impl::add_counters(const Vf& vf, DeviceSums* sums) {
  std::array<std::uint8_t, sizeof(dp::StatusPage::retired)> retired{};
  const ssize_t n = ::pread(vf.status->fd(), retired.data(), retired.size(), offsetof(dp::StatusPage, retired));
  if (n == static_cast<ssize_t>(retired.size())) {
    constexpr std::size_t kRow = sizeof(dp::StatusPage::retired[0]);
    for (std::size_t d = 0; d < std::min<std::size_t>(sums->size(), dp::kStatusDevices); ++d)
      add(&(*sums)[d], retired.data() + d * kRow);
  }
  for_each_qp(*vf.status, [&](const std::uint8_t* entry) {
    const auto device = field<std::uint32_t>(entry, offsetof(dp::QpStatus, device));
    if (field<std::uint32_t>(entry, offsetof(dp::QpStatus, qpn)) != 0 && device < sums->size())
      add(&(*sums)[device], entry + offsetof(dp::QpStatus, counters));
  });
}

void NicHost::Impl::refresh_counters() {
  DeviceSums sums = gone_counters;
  for (const auto& [id, vf] : vfs->all()) add_counters(*vf, &sums);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    ib::QpCounters counters;
    std::memcpy(static_cast<void*>(&counters), sums[i].data(), sizeof(counters));
    sysfs->write_counters(options.devices.devices[i].name, counters);
  }
}

void NicHost::Impl::watch_counters() {
  if (watching_counters) return;
  watching_counters = true;
  counter_timer.expires_after(kCounterInterval);
  counter_timer.async_wait([this](const boost::system::error_code& error) {
    watching_counters = false;
    if (error) return;
    refresh_counters();
    if (!vfs->all().empty()) watch_counters();
  });
}

}  // namespace softrnic::control
