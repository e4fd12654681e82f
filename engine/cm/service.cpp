// IDs, channels and agents.
#include "engine/cm/service.h"

#include <rdma/ib_user_verbs.h>

#include <algorithm>
#include <cerrno>

namespace softrnic::rdmacm {
namespace {

constexpr std::size_t kMaxChannels = 65536;
constexpr std::uint32_t kMaxIds = 65536;  // librdmacm's table of IDs has so many places

}  // namespace

Service::Service(Host& host, std::uint64_t seed) : host_(host), random_(seed) { ports_.read_system(); }
Service::~Service() = default;

int Service::open(std::uint64_t holder, Channel** out) {
  if (channels_.size() >= kMaxChannels) return EMFILE;
  std::uint64_t key = 0;
  do {
    key = random_();
  } while (key == 0 || channels_.contains(key));
  auto channel = Channel::create(key);
  if (channel == nullptr) return errno;
  channel->holders.insert(holder);
  *out = channel.get();
  channels_[key] = std::move(channel);
  return 0;
}

Channel* Service::find(std::uint64_t holder, std::uint64_t key) {
  const auto it = channels_.find(key);
  if (it == channels_.end()) return nullptr;
  it->second->holders.insert(holder);
  return it->second.get();
}

void Service::close(std::uint64_t holder, std::uint64_t key) {
  const auto it = channels_.find(key);
  if (it == channels_.end()) return;
  it->second->holders.erase(holder);
  if (!it->second->holders.empty()) return;
  end_channel(*it->second);
  channels_.erase(it);
  pump();
}

void Service::forget(std::uint64_t holder) {
  std::vector<std::uint64_t> held;
  for (const auto& [key, channel] : channels_)
    if (channel->holders.contains(holder)) held.push_back(key);
  for (const std::uint64_t key : held) close(holder, key);
}

void Service::end_channel(Channel& channel) {
  while (!channel.ids.empty()) remove_id(**channel.ids.begin());
}

int Service::find_id(const Command& c, std::uint32_t handle, Id** out) {
  const auto it = ids_.find(handle);
  if (it == ids_.end()) return ENOENT;
  // A connection whose request was not reported yet is not known to anybody.
  if (it->second->channel != c.channel || !c.channel->ids.contains(it->second.get())) return EINVAL;
  *out = it->second.get();
  return 0;
}

// Handles are as small as possible.
Id* Service::make_id(Channel& channel, std::uint16_t port_space, std::uint8_t qp_type) {
  std::uint32_t handle = static_cast<std::uint32_t>(ids_.size());
  if (!free_handles_.empty()) {
    handle = *free_handles_.begin();
    free_handles_.erase(free_handles_.begin());
  }
  if (handle >= kMaxIds) return nullptr;
  auto id = std::make_unique<Id>();
  id->handle = handle;
  id->channel = &channel;
  id->port_space = port_space;
  id->qp_type = qp_type;
  id->seq_num = static_cast<std::uint32_t>(random_() & 0xFFFFFF);
  return (ids_[handle] = std::move(id)).get();
}

// What rdma_destroy_id() does, and what is left of the ID in its channel.
void Service::remove_id(Id& id) {
  std::erase_if(route_queries_, [&](const auto& query) { return query.second == &id; });
  stop_listening(id);
  drop_comm(id);
  for (const auto& group : id.groups) memberships_.erase(group->handle);
  ports_.release(id);
  for (const ChannelEvent& event : id.channel->remove(id))
    if (event.connection != nullptr) remove_id(*event.connection);
  id.channel->ids.erase(&id);
  const std::uint32_t handle = id.handle;
  ids_.erase(handle);
  free_handles_.insert(handle);
}

void Service::post(Id& id, std::uint32_t event, int status) {
  ChannelEvent e;
  e.response.event = event;
  e.response.status = static_cast<std::uint32_t>(status);
  post(id, e);
}

void Service::post(Id& id, const ChannelEvent& event) {
  // Nothing for a connection that the program has not accepted yet: its accept will fail.
  if (event.connection == nullptr && id.uid == 0) return;
  ChannelEvent e = event;
  e.id = &id;
  if (e.membership == nullptr) {
    e.response.uid = id.uid;
    e.response.id = id.handle;
  }
  id.channel->push(e);
}

cm::Agent& Service::agent(std::uint32_t device) {
  if (agents_.size() <= device) agents_.resize(device + 1);
  if (agents_[device] == nullptr) {
    cm::AgentOptions options;
    options.ca_guid = __builtin_bswap64(host_.gids().devices[device].node_guid);
    options.ca_ack_delay = 15;  // what ibv_query_device() says
    options.seed = random_();
    agents_[device] = std::make_unique<cm::Agent>(options);
  }
  return *agents_[device];
}

// Takes in what the agents have to say, and sends what they have to send.
void Service::pump() {
  if (pumping_) return;
  pumping_ = true;
  bool any = true;
  while (any) {
    any = false;
    for (std::uint32_t device = 0; device < agents_.size(); ++device) {
      if (agents_[device] == nullptr) continue;
      cm::Event event;
      while (agents_[device]->poll_event(&event)) {
        any = true;
        on_event(device, event);
      }
      mad::OutMad mad;
      while (agents_[device]->poll_transmit(host_.now(), &mad)) {
        any = true;
        std::vector<std::uint8_t> frame;
        if (build_mad_frame(host_.gids(), mad, &frame)) host_.send(std::move(frame));
      }
    }
  }
  pumping_ = false;
}

int Service::command(const Command& c, std::vector<std::uint8_t>* out) {
  if (c.number > RDMA_USER_CM_CMD_JOIN_MCAST) return EINVAL;
  const Handler handler = kHandlers[c.number];
  if (handler == nullptr) return ENOSYS;
  const int error = (this->*handler)(c, out);
  pump();
  return error;
}

void Service::on_frame(Bytes frame) {
  mad::MadRoute route;
  Bytes mad;
  if (!parse_mad_frame(host_.gids(), frame, &route, &mad)) return;
  agent(device_of(route.context)).on_mad(host_.now(), route, mad);
  pump();
}

Nanos Service::next_timeout() const {
  Nanos next = kNever;
  for (const auto& agent : agents_)
    if (agent != nullptr) next = std::min(next, agent->next_timeout());
  return next;
}

void Service::on_timeout() {
  for (const auto& agent : agents_)
    if (agent != nullptr && agent->next_timeout() <= host_.now()) agent->on_timeout(host_.now());
  pump();
}

std::vector<std::uint64_t> Service::services() const {
  std::vector<std::uint64_t> out;
  for (const auto& [key, listener] : listeners_) out.push_back(key.second);
  return out;
}

std::size_t Service::connections() const {
  std::size_t n = 0;
  for (const auto& agent : agents_)
    if (agent != nullptr) n += agent->size();
  return n;
}

}  // namespace softrnic::rdmacm
