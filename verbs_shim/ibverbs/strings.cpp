// Names of enum values for messages. Programs print and sometimes parse them: the texts are those of rdma-core.
#include <cstddef>

#include "verbs_shim/ibverbs/abi.h"

namespace {

template <std::size_t N>
const char* name_of(const char* const (&names)[N], int value) {
  if (value < 0 || static_cast<std::size_t>(value) >= N || names[value] == nullptr) return "unknown";
  return names[value];
}

constexpr const char* kNodeTypes[] = {
    nullptr,
    "InfiniBand channel adapter",
    "InfiniBand switch",
    "InfiniBand router",
    "iWARP NIC",
    "usNIC",
    "usNIC UDP",
    "unspecified",
};

constexpr const char* kPortStates[] = {"no state change (NOP)", "down", "init", "armed", "active", "active defer"};

constexpr const char* kEventTypes[] = {
    "CQ error",
    "local work queue catastrophic error",
    "invalid request local work queue error",
    "local access violation work queue error",
    "communication established",
    "send queue drained",
    "path migrated",
    "path migration request error",
    "local catastrophic error",
    "port active",
    "port error",
    "LID change",
    "P_Key change",
    "SM change",
    "SRQ catastrophic error",
    "SRQ limit reached",
    "last WQE reached",
    "client reregistration",
    "GID table change",
    "WQ fatal",
    "Device link speed change",
};

constexpr const char* kWcStatuses[] = {
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation error",
    "remote invalid RD request",
    "aborted error",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout error",
    "general error",
    "TM error",
    "TM software rendezvous",
};

constexpr const char* kWrOpcodes[] = {
    "rdma-write",
    "rdma-write-with-imm",
    "send",
    "send-with-imm",
    "rdma-read",
    "atomic-cmp-and-swp",
    "atomic-fetch-and-add",
    "local-inv",
    "bind-mw",
    "send-with-inv",
    "tso",
    "driver1",
    nullptr,
    nullptr,
    "flush",
    "atomic-write",
};

}  // namespace

SOFTRNIC_ABI const char* ibv_node_type_str(ibv_node_type node_type) { return name_of(kNodeTypes, node_type); }
SOFTRNIC_ABI const char* ibv_port_state_str(ibv_port_state port_state) { return name_of(kPortStates, port_state); }
SOFTRNIC_ABI const char* ibv_event_type_str(ibv_event_type event) { return name_of(kEventTypes, event); }
SOFTRNIC_ABI const char* ibv_wc_status_str(ibv_wc_status wc_status) { return name_of(kWcStatuses, wc_status); }

// Private, but used by rdma-core's own programs.
SOFTRNIC_ABI const char* softrnic_wr_opcode_str(ibv_wr_opcode opcode) { return name_of(kWrOpcodes, opcode); }
asm(".symver softrnic_wr_opcode_str, ibv_wr_opcode_str@@IBVERBS_PRIVATE_34");
asm(".symver softrnic_wr_opcode_str, ibv_wr_opcode_str@IBVERBS_PRIVATE_57");
asm(".symver softrnic_wr_opcode_str, ibv_wr_opcode_str@IBVERBS_PRIVATE_59");
asm(".symver softrnic_wr_opcode_str, ibv_wr_opcode_str@IBVERBS_PRIVATE_64");
asm(".symver softrnic_wr_opcode_str, ibv_wr_opcode_str@IBVERBS_PRIVATE_65");
