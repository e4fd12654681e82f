// Messages on the control socket: a Unix SOCK_SEQPACKET socket, one message a packet, little-endian
// host structs (both ends are on one machine), file descriptors by SCM_RIGHTS. The server answers every
// request with the same `seq`; notices have seq 0. Both ends check type, length and ranges.
#pragma once

#include <cstdint>

#include "engine/datapath/shm_layout.h"
#include "protocols/common/types.h"

namespace softrnic::control {

inline constexpr std::uint32_t kProtocolVersion = 2;  // exact match required
inline constexpr std::uint32_t kMaxMessage = 65536;
inline constexpr int kMaxFds = 8;

enum class MsgType : std::uint16_t {
  // requests and their replies
  hello = 1,  // HelloRequest -> HelloReply, DeviceRecord[], GidRecord[]
  attach =
      2,  // AttachRequest -> AttachReply + fds {inbox, eventfd, status, blocks, channel, switch inbox, switch eventfd}
  get_block = 3,     // (nothing) -> BlockReply
  connect_peer = 4,  // ConnectPeerRequest -> PeerReply + fds {channel, peer inbox, peer eventfd}; see PeerReply
  mcast = 5,         // McastRequest -> status only
  return_block = 6,  // BlockReply -> status only
  // for the softrnic command
  status = 20,      // -> JSON text; when it is longer than a message: no body, but a fd {memfd with the text}
  capture = 21,     // CaptureRequest, text of the filter, fd to write to -> status, once every VF sends through the
                    // eSwitch. Runs until
                    // this connection's end, or until the client shuts down its direction: then capture_end follows
  shutdown = 22,    // -> status; the NIC process ends
  hold = 23,        // keeps a NIC process alive that ends with its last user, while this connection is open
  keep = 24,        // the NIC process no longer ends with its last user
  address = 25,     // AddressRequest -> status; a sentence for the user when it is not 0
  fault_add = 26,   // FaultAddRequest, text of the rules -> FaultAddReply, once every VF sends through the eSwitch;
                    // EINVAL: a rule is wrong, the body is a sentence that says where
  fault_list = 27,  // -> JSON text, as for status
  fault_del = 28,   // FaultDelRequest -> status only; ENOENT: there is no such rule
  events = 29,      // EventsRequest -> EventsReply and lines of JSON text
  sysfs = 30,       // -> status, once the counters in the sysfs tree are those of now
  cm_open = 31,     // opens an event channel of rdma_cm -> CmChannel + fd {eventfd that counts its events}
  cm_close = 32,    // CmChannel -> status only
  cm_command = 33,  // CmCommand, command, option's value -> status, response
  // notices from the server
  peer_added = 40,   // PeerReply + fds: another VF opened a channel to this one
  peer_gone = 41,    // PeerGone: its rings become sinks
  route = 42,        // RouteNotice: change path, then send route_done
  gid_change = 43,   // GidRecord[] follow: the new table
  capture_end = 44,  // CaptureEnd: everything is written, or writing failed
  // notices from the client
  route_done = 60,  // RouteDone
};

struct MsgHeader {
  std::uint16_t type;
  std::uint16_t reserved;
  std::uint32_t seq;
  std::int32_t status;   // replies: 0 or an errno value
  std::uint32_t length;  // bytes that follow
};
static_assert(sizeof(MsgHeader) == 16);

struct HelloRequest {
  std::uint32_t version;
  std::uint32_t pid;
  char comm[16];
  char library_version[32];
};
struct HelloReply {
  std::uint32_t version;
  std::uint32_t num_devices;
  std::uint32_t num_gids;  // all devices together, ordered by device then index
  std::uint32_t daemon_pid;
  char daemon_version[32];
  char runtime_dir[256];
};
// Limits and identity of a device. Everything the query verbs report comes from here.
struct DeviceRecord {
  char name[16];
  std::uint64_t node_guid;  // big-endian, as verbs give it
  std::uint64_t sys_image_guid;
  std::uint32_t vendor_id, vendor_part_id, hw_ver;
  char fw_ver[32];
  std::uint32_t active_mtu;  // bytes
  std::uint32_t max_msg_sz;
  std::uint32_t max_qp, max_qp_wr, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_srq, max_srq_wr,
      max_srq_sge, max_ah, max_mw, max_inline, max_qp_rd_atom, max_qp_init_rd_atom, max_mcast_grp, max_mcast_qp_attach;
  std::uint64_t max_mr_size;
  std::uint8_t link_layer;  // IBV_LINK_LAYER_*
  std::uint8_t mac[6];
  std::uint8_t node_type;  // IBV_NODE_*
  char netdev[16];         // name of the network interface behind it
  std::uint32_t num_gids;
  std::uint32_t reserved[8];
};
struct GidRecord {
  Gid gid;
  std::uint8_t type;  // 0: IB/RoCE v1, 1: RoCE v2
  std::uint8_t reserved[3];
  std::uint32_t device;  // index of the device
  std::uint32_t index;   // in the device's table
  std::uint32_t ndev_ifindex;
  std::uint16_t vlan_id;  // 0xFFFF: none
  std::uint16_t reserved2;
};

struct AttachRequest {
  std::uint32_t flags;  // none yet
};
struct AttachReply {
  std::uint16_t vf_id;        // 1..
  std::uint16_t switch_slot;  // this VF's slot in the eSwitch's inbox
  std::uint32_t first_block;  // QPN block number
  std::uint32_t ring_size;    // data bytes of each ring of the channel to the eSwitch
  std::uint32_t route_mode;   // RouteMode now in force
  std::uint32_t route_epoch;
  // In the VF's own inbox, slot 0 is the eSwitch.
};
struct BlockReply {
  std::uint32_t block;
};
struct ConnectPeerRequest {
  std::uint32_t block;  // QPN block of the peer
};
// `vf_id` kNoVf: nobody owns the block (no fds): packets for it go to the eSwitch, which counts and
// drops them. `vf_id` == own id: the peer is this process (no fds, loop back inside).
// Otherwise the channel: fds {channel memfd, peer inbox memfd, peer eventfd}.
struct PeerReply {
  std::uint16_t vf_id;
  std::uint16_t my_slot;     // this side's inbox slot for the channel
  std::uint16_t peer_slot;   // the other side's
  std::uint16_t ring_index;  // ring this side produces into (0 or 1)
  std::uint32_t ring_size;
};
struct PeerGone {
  std::uint16_t vf_id;
};
enum class RouteMode : std::uint32_t {
  direct = 0,      // host-local peers use their channel
  via_switch = 1,  // everything passes the eSwitch
};
struct RouteNotice {
  std::uint32_t mode;
  std::uint32_t epoch;
};
struct RouteDone {
  std::uint32_t epoch;
};
struct McastRequest {
  Gid mgid;
  std::uint32_t attach;  // 1 attach, 0 detach; counted per VF
};
// An address of a port, as in the configuration: "10.0.0.1/24", "fd00::1/64%7".
struct AddressRequest {
  std::uint32_t port;  // index of its device
  std::uint32_t add;   // 1 add, 0 remove
  char address[64];    // filled up with zeros
};
// The filter in libpcap's language follows; none: every packet. EINVAL: it is wrong, the body is a sentence that says
// why.
struct CaptureRequest {
  std::uint32_t flags;
  std::uint32_t snaplen;  // 0: whole packets
};

struct CaptureEnd {
  std::int32_t error;  // 0, or the errno value that ended the capture (ENOSPC, EPIPE, ...)
  std::uint32_t reserved;
  std::uint64_t packets;  // in the file
  std::uint64_t lost;     // seen but not in the file
};

// Rules in the fault language, one a line.
struct FaultAddRequest {
  std::uint32_t flags;  // kFaultOfConnection
};
inline constexpr std::uint32_t kFaultOfConnection = 1;  // removed when this connection ends
struct FaultAddReply {
  std::uint32_t first_id;  // the others follow it
  std::uint32_t count;
};
struct FaultDelRequest {
  std::uint32_t id;  // 0: all
};

struct EventsRequest {
  std::uint64_t after;  // number of the last event that the client has; 0: none
  std::uint32_t wait;   // 1: answer when there is one
  std::uint32_t reserved;
};
struct EventsReply {
  std::uint64_t last;    // number of the last event in the reply, or `after` again
  std::uint64_t missed;  // events after `after` that are no longer kept
};

// A channel is named by its key: whoever has that (a child of fork(), too) may use it.
struct CmChannel {
  std::uint64_t key;
};
// A command of rdma/rdma_user_cm.h, as a program writes it to the device. The struct of the command follows, then the
// value of an option.
struct CmCommand {
  std::uint64_t key;
  std::uint64_t other_key;  // MIGRATE_ID: the channel that the ID is taken from; the struct's `fd` is not looked at
  std::uint32_t number;     // RDMA_USER_CM_CMD_*
  std::uint16_t in_size;    // of the struct
  std::uint16_t out_size;   // room for the response
};

}  // namespace softrnic::control
