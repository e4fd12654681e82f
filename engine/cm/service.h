// The RDMA connection manager of the NIC: what drivers/infiniband/core/ucma.c and cma.c are in a kernel. Takes the
// commands of programs (rdma/rdma_user_cm.h, ABI version 4), keeps their IDs and event channels, and sets up
// connections by a CM agent for each device. Runs on one thread, makes no system calls but those of the event
// descriptors, and knows no sockets: its host passes commands, frames and time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "engine/cm/channel.h"
#include "engine/cm/gsi_frame.h"
#include "engine/cm/id.h"
#include "engine/cm/ports.h"
#include "protocols/cm/cm.h"

namespace softrnic::rdmacm {

// How to reach an address that is not of this NIC.
struct FoundRoute {
  int error = 0;  // errno: ENETUNREACH no route, EHOSTUNREACH nobody there
  Gid source{};   // address of this NIC to send from
  std::uint8_t hop_limit = 64;
};

// What the service needs of the NIC process.
class Host {
 public:
  virtual ~Host() = default;
  virtual Nanos now() = 0;
  virtual GidTable gids() = 0;
  // Sends a frame of the NIC itself.
  virtual void send(std::vector<std::uint8_t> frame) = 0;
  // Looks for a route to `destination`, from `source` unless that is zero; `answer` is called once, at once or later.
  // False: this NIC is on no network.
  virtual bool find_route(const Gid& destination, const Gid& source, std::function<void(const FoundRoute&)> answer) = 0;
};

// A command as a program wrote it to the device.
struct Command {
  Channel* channel = nullptr;
  std::uint32_t number = 0;    // RDMA_USER_CM_CMD_*
  std::uint16_t out_size = 0;  // room for the response
  Bytes in;                    // the command's struct
  Bytes option;                // SET_OPTION: the option's value
  Channel* other = nullptr;    // MIGRATE_ID: the channel that the ID is taken from
  bool privileged = false;     // may use ports below 1024
};

class Service {
 public:
  Service(Host& host, std::uint64_t seed);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // A new channel that `holder` has open. 0 or errno.
  int open(std::uint64_t holder, Channel** out);
  // The channel of this key, null when there is none; `holder` has it open from now on (it was passed to it).
  Channel* find(std::uint64_t holder, std::uint64_t key);
  // The holder closes a channel, or is gone. What nobody has open any more ends, with its IDs: their peers are told.
  void close(std::uint64_t holder, std::uint64_t key);
  void forget(std::uint64_t holder);

  // Does a command. 0 with the response in `*out`, or an errno value as the kernel gives it.
  int command(const Command& command, std::vector<std::uint8_t>* out);

  // A frame for QP 1 of one of the devices.
  void on_frame(Bytes frame);
  Nanos next_timeout() const;
  void on_timeout();

  // Service IDs that somebody listens to, once for each device.
  std::vector<std::uint64_t> services() const;
  std::size_t ids() const { return ids_.size(); }
  std::size_t channels() const { return channels_.size(); }
  // Connections at the agents, those in time-wait among them.
  std::size_t connections() const;

 private:
  using Out = std::vector<std::uint8_t>;
  using Handler = int (Service::*)(const Command&, Out*);

  // --- commands (commands.cpp) ---
  static const Handler kHandlers[];
  int create_id(const Command& c, Out* out);
  int destroy_id(const Command& c, Out* out);
  int bind_ip(const Command& c, Out* out);
  int bind(const Command& c, Out* out);
  int resolve_ip(const Command& c, Out* out);
  int resolve_addr(const Command& c, Out* out);
  int resolve_route(const Command& c, Out* out);
  int connect(const Command& c, Out* out);
  int listen(const Command& c, Out* out);
  int accept(const Command& c, Out* out);
  int reject(const Command& c, Out* out);
  int disconnect(const Command& c, Out* out);
  int get_event(const Command& c, Out* out);
  int set_option(const Command& c, Out* out);
  int notify(const Command& c, Out* out);
  int migrate_id(const Command& c, Out* out);
  int set_id_option(Id& id, std::uint32_t name, Bytes value);
  // --- queries (queries.cpp) ---
  int query_route(const Command& c, Out* out);
  int query(const Command& c, Out* out);
  int query_addr(const Id& id, const Command& c, Out* out);
  int query_path(const Id& id, const Command& c, Out* out);
  int query_gid(const Id& id, const Command& c, Out* out);
  int init_qp_attr(const Command& c, Out* out);
  // --- groups (multicast.cpp) ---
  int join_ip_mcast(const Command& c, Out* out);
  int join_mcast(const Command& c, Out* out);
  int leave_mcast(const Command& c, Out* out);
  int join(const Command& c, std::uint32_t handle, std::uint64_t uid, const Address& address, std::uint16_t flags,
           Out* out);

  // --- IDs (service.cpp) ---
  int find_id(const Command& c, std::uint32_t handle, Id** out);
  Id* make_id(Channel& channel, std::uint16_t port_space, std::uint8_t qp_type);
  void remove_id(Id& id);
  void end_channel(Channel& channel);
  void post(Id& id, std::uint32_t event, int status = 0);
  void post(Id& id, const ChannelEvent& event);
  cm::Agent& agent(std::uint32_t device);
  cm::Agent& agent(const Id& id) { return agent(static_cast<std::uint32_t>(id.device)); }
  void pump();

  // --- addresses and routes (resolve.cpp) ---
  int bind_address(Id& id, const Address& address);
  int resolve_address(Id& id, const Address& source, const Address& destination);
  int resolve_own(Id& id, const control::GidRecord& record);
  bool resolve_anywhere(Id& id, const Gid& destination);
  int ask_for_route(Id& id);
  void on_route(std::uint64_t query, const FoundRoute& found);
  void use_source(Id& id, const control::GidRecord& record);
  int set_path(Id& id, Bytes option);
  int start_listening(Id& id, std::uint32_t backlog);
  void stop_listening(Id& id);
  std::uint64_t service_id(const Id& id, const Address& address) const;

  // --- connections (connections.cpp) ---
  int start_connection(Id& id, const rdma_ucm_conn_param& param, const rdma_ucm_ece& ece);
  int request_connection(Id& id, const rdma_ucm_conn_param& param, Bytes private_data);
  int request_service(Id& id, Bytes private_data);
  int answer_request(Id& id, const rdma_ucm_conn_param& param);
  int answer_service(Id& id, cm::SidrStatus status, std::uint32_t qkey, Bytes private_data);
  int refuse(Id& id, cm::RejReason reason, Bytes private_data);
  int set_qkey(Id& id, std::uint32_t qkey);
  void set_comm(Id& id, cm::CommId comm);
  void drop_comm(Id& id);
  mad::MadRoute mad_route(const Id& id) const;
  cm::Path path(const Id& id) const;
  // --- what the agents tell (cm_events.cpp) ---
  void on_event(std::uint32_t device, const cm::Event& event);
  void on_request(std::uint32_t device, const cm::Event& event);
  Id* listener_for(std::uint32_t device, const cm::Event& event);
  void on_own_event(Id& id, const cm::Event& event);
  int set_service(Id& id, const cm::Event& event, ChannelEvent* e);

  struct Listener {
    cm::CommId comm = cm::kNoId;
    std::vector<Id*> ids;
  };

  Host& host_;
  std::mt19937_64 random_;
  PortTable ports_;
  std::vector<std::unique_ptr<cm::Agent>> agents_;  // by device
  std::map<std::uint64_t, std::unique_ptr<Channel>> channels_;
  std::map<std::uint32_t, std::unique_ptr<Id>> ids_;                       // by handle
  std::map<std::uint32_t, Membership*> memberships_;                       // by handle
  std::unordered_map<std::uint64_t, Id*> by_comm_;                         // device << 32 | communication ID
  std::map<std::pair<std::uint32_t, std::uint64_t>, Listener> listeners_;  // by device and service ID
  std::map<std::uint64_t, Id*> route_queries_;
  std::uint64_t next_query_ = 1;
  std::set<std::uint32_t> free_handles_;
  bool pumping_ = false;
};

}  // namespace softrnic::rdmacm
