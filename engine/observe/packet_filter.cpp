#include "engine/observe/packet_filter.h"

#include <pcap/pcap.h>

namespace softrnic::observe {
namespace {

constexpr int kSnaplen = 65535;
constexpr int kOptimize = 1;

struct CloseHandle {
  void operator()(pcap_t* p) const { ::pcap_close(p); }
};

}  // namespace

struct PacketFilter::Program {
  bpf_program code{};
  ~Program() { ::pcap_freecode(&code); }
};

PacketFilter::PacketFilter() : program_(std::make_unique<Program>()) {}
PacketFilter::~PacketFilter() = default;

std::unique_ptr<PacketFilter> PacketFilter::compile(const std::string& expression, std::string* why) {
  const std::unique_ptr<pcap_t, CloseHandle> handle(::pcap_open_dead(DLT_EN10MB, kSnaplen));
  if (handle == nullptr) return *why = "out of memory", nullptr;
  std::unique_ptr<PacketFilter> filter(new PacketFilter);
  if (::pcap_compile(handle.get(), &filter->program_->code, expression.c_str(), kOptimize, PCAP_NETMASK_UNKNOWN) != 0)
    return *why = ::pcap_geterr(handle.get()), nullptr;
  return filter;
}

bool PacketFilter::matches(Bytes frame) const {
  pcap_pkthdr header{};
  header.caplen = header.len = static_cast<bpf_u_int32>(frame.size());
  return ::pcap_offline_filter(&program_->code, &header, frame.data()) != 0;
}

}  // namespace softrnic::observe
