#include "verbs_shim/ibverbs/rdmacm_device.h"

#include <fcntl.h>
#include <rdma/rdma_user_cm.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "engine/control/wire.h"
#include "engine/nic/raw_io.h"
#include "engine/nic/raw_syscall.h"
#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {
namespace {

using control::MsgType;

constexpr char kDevice[] = "/dev/infiniband/rdma_cm";
constexpr std::uint32_t kMaxOption = 32768;
constexpr std::uint32_t kDeviceRemoval = 11;  // RDMA_CM_EVENT_DEVICE_REMOVAL

struct CmChannel {
  std::uint64_t key = 0;
  std::shared_ptr<nic::Vf> vf;
  // IDs and what the program calls them: when the NIC process is gone, nobody else can say what went with it. Under
  // g_lock.
  std::shared_ptr<std::map<std::uint32_t, std::uint64_t>> ids;
};

std::mutex g_lock;

std::map<int, CmChannel>& channels() {
  static auto* map = new std::map<int, CmChannel>;  // never destroyed: threads may still run at exit
  return *map;
}

bool find_channel(int fd, CmChannel* out) {
  std::lock_guard<std::mutex> guard(g_lock);
  const auto it = channels().find(fd);
  if (it == channels().end()) return false;
  *out = it->second;
  return true;
}

// The NIC process is gone: whoever waits for events, or will, must find out. Called with the engine's locks held.
void wake_all() {
  constexpr std::uint64_t kMany = 1u << 20;
  std::lock_guard<std::mutex> guard(g_lock);
  for (const auto& [fd, channel] : channels()) raw_write(fd, &kMany, sizeof kMany);
}

void register_hooks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { g_lock.lock(); }, [] { g_lock.unlock(); }, [] { g_lock.unlock(); });
    nic::Vf::set_fatal_hook(wake_all);
  });
}

// The kernel's number of the device where it has one, since programs may have been told it by netlink.
dev_t device_number() {
  char text[32] = {};
  unsigned major_number = 10, minor_number = 58;
  const long fd = raw_syscall(SYS_openat, AT_FDCWD, raw_pointer("/sys/class/misc/rdma_cm/dev"), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    raw_read(static_cast<int>(fd), text, sizeof text - 1);
    raw_close(static_cast<int>(fd));
    if (sscanf(text, "%u:%u", &major_number, &minor_number) != 2) return makedev(10, 58);
  }
  return makedev(major_number, minor_number);
}

// Where in the struct of a command the address for its response is; -1: it has none.
int response_offset(std::uint32_t command) {
  switch (command) {
    case RDMA_USER_CM_CMD_CREATE_ID:
      return offsetof(rdma_ucm_create_id, response);
    case RDMA_USER_CM_CMD_DESTROY_ID:
    case RDMA_USER_CM_CMD_LEAVE_MCAST:
      return offsetof(rdma_ucm_destroy_id, response);
    case RDMA_USER_CM_CMD_QUERY_ROUTE:
    case RDMA_USER_CM_CMD_QUERY:
      return offsetof(rdma_ucm_query, response);
    case RDMA_USER_CM_CMD_INIT_QP_ATTR:
      return offsetof(rdma_ucm_init_qp_attr, response);
    case RDMA_USER_CM_CMD_GET_EVENT:
      return offsetof(rdma_ucm_get_event, response);
    case RDMA_USER_CM_CMD_JOIN_IP_MCAST:
      return offsetof(rdma_ucm_join_ip_mcast, response);
    case RDMA_USER_CM_CMD_JOIN_MCAST:
      return offsetof(rdma_ucm_join_mcast, response);
    case RDMA_USER_CM_CMD_MIGRATE_ID:
      return offsetof(rdma_ucm_migrate_id, response);
    default:
      return -1;
  }
}

int request(const CmChannel& channel, MsgType type, const void* body, std::size_t length, control::Message* reply) {
  nic::Vf::Impl* engine;
  if (channel.vf->engine(&engine) != 0) return ENODEV;
  const int rc = channel.vf->fabric().request(type, body, static_cast<std::uint32_t>(length), reply);
  return rc == EPIPE ? ENODEV : rc;
}

// What goes with a command beside its struct: the descriptor of another channel, the value of an option.
int add_referred(const rdma_ucm_cmd_hdr& header, const std::uint8_t* in, control::CmCommand* command,
                 std::vector<std::uint8_t>* message) {
  if (header.cmd == RDMA_USER_CM_CMD_MIGRATE_ID && header.in >= sizeof(rdma_ucm_migrate_id)) {
    rdma_ucm_migrate_id migrate;
    memcpy(&migrate, in, sizeof migrate);
    CmChannel other;
    if (find_channel(static_cast<int>(migrate.fd), &other)) command->other_key = other.key;
  } else if (header.cmd == RDMA_USER_CM_CMD_SET_OPTION && header.in >= sizeof(rdma_ucm_set_option)) {
    rdma_ucm_set_option option;
    memcpy(&option, in, sizeof option);
    if (option.optlen > kMaxOption) return EINVAL;
    const auto* value = reinterpret_cast<const std::uint8_t*>(option.optval);
    if (option.optlen != 0) message->insert(message->end(), value, value + option.optlen);
  }
  return 0;
}

template <class T>
T part(const std::uint8_t* bytes, std::size_t size) {
  T t{};
  memcpy(&t, bytes, std::min(size, sizeof t));
  return t;
}

// Keeps CmChannel::ids up to date with a command that was done.
void follow_ids(const CmChannel& channel, const rdma_ucm_cmd_hdr& header, const std::uint8_t* in,
                const std::vector<std::uint8_t>& out) {
  CmChannel other;
  if (header.cmd == RDMA_USER_CM_CMD_MIGRATE_ID)
    find_channel(static_cast<int>(part<rdma_ucm_migrate_id>(in, header.in).fd), &other);
  std::lock_guard<std::mutex> guard(g_lock);
  auto& ids = *channel.ids;
  if (header.cmd == RDMA_USER_CM_CMD_CREATE_ID) {
    ids[part<rdma_ucm_create_id_resp>(out.data(), out.size()).id] = part<rdma_ucm_create_id>(in, header.in).uid;
  } else if (header.cmd == RDMA_USER_CM_CMD_DESTROY_ID) {
    ids.erase(part<rdma_ucm_destroy_id>(in, header.in).id);
  } else if (header.cmd == RDMA_USER_CM_CMD_ACCEPT) {
    const auto accept = part<rdma_ucm_accept>(in, header.in);
    if (accept.conn_param.valid != 0) ids[accept.id] = accept.uid;
  } else if (other.ids != nullptr && other.ids != channel.ids) {
    if (auto node = other.ids->extract(part<rdma_ucm_migrate_id>(in, header.in).id)) ids.insert(std::move(node));
  }
}

// A command after the end of the NIC process, as after the removal of a device: each ID gets that event, and can be
// destroyed.
int after_removal(const CmChannel& channel, const rdma_ucm_cmd_hdr& header, const std::uint8_t* in,
                  std::vector<std::uint8_t>* out) {
  std::lock_guard<std::mutex> guard(g_lock);
  auto& ids = *channel.ids;
  if (header.cmd == RDMA_USER_CM_CMD_DESTROY_ID) {
    ids.erase(part<rdma_ucm_destroy_id>(in, header.in).id);
    out->assign(sizeof(rdma_ucm_destroy_id_resp), 0);
    return 0;
  }
  if (header.cmd != RDMA_USER_CM_CMD_GET_EVENT || ids.empty()) return ENODEV;
  rdma_ucm_event_resp event{};
  event.event = kDeviceRemoval;
  event.id = ids.begin()->first;
  event.uid = ids.begin()->second;
  ids.erase(ids.begin());
  out->resize(sizeof event);
  memcpy(out->data(), &event, sizeof event);
  return 0;
}

int send_command(const CmChannel& channel, const rdma_ucm_cmd_hdr& header, const std::uint8_t* in) {
  control::CmCommand command{};
  command.key = channel.key;
  command.number = header.cmd;
  command.in_size = header.in;
  command.out_size = header.out;
  std::vector<std::uint8_t> message(sizeof command);
  message.insert(message.end(), in, in + header.in);
  if (const int rc = add_referred(header, in, &command, &message); rc != 0) return rc;
  memcpy(message.data(), &command, sizeof command);
  control::Message reply;
  int rc = request(channel, MsgType::cm_command, message.data(), message.size(), &reply);
  reply.close_fds();
  if (rc == ENODEV) {
    rc = after_removal(channel, header, in, &reply.body);
  } else if (rc == 0) {
    follow_ids(channel, header, in, reply.body);
  }
  const int offset = response_offset(header.cmd);
  if (rc == 0 && offset >= 0 && offset + sizeof(std::uint64_t) <= header.in) {
    std::uint64_t address;
    memcpy(&address, in + offset, sizeof address);
    const std::size_t n = std::min<std::size_t>(reply.body.size(), header.out);
    if (n != 0) memcpy(reinterpret_cast<void*>(address), reply.body.data(), n);
  }
  return rc;
}

// Takes the oldest event, waiting for one unless the descriptor is O_NONBLOCK.
int get_event(int fd, const CmChannel& channel, const rdma_ucm_cmd_hdr& header, const std::uint8_t* in) {
  for (;;) {
    if (const int rc = raw_eventfd_read(fd); rc != 0) return rc;
    const int rc = send_command(channel, header, in);
    // The event went with its ID, or with the channel it was moved from.
    if (rc != EAGAIN) return rc;
  }
}

}  // namespace

bool is_cm_device(const char* path) { return path != nullptr && strcmp(path, kDevice) == 0; }

int open_cm_device(int flags) {
  register_hooks();
  int rc = 0;
  CmChannel channel;
  channel.vf = attach_shared(&rc);
  channel.ids = std::make_shared<std::map<std::uint32_t, std::uint64_t>>();
  control::Message reply;
  if (channel.vf != nullptr) rc = channel.vf->start_helper();
  if (rc == 0) rc = request(channel, MsgType::cm_open, nullptr, 0, &reply);
  if (rc == 0 && (reply.num_fds != 1 || reply.body.size() != sizeof channel.key)) rc = EPROTO;
  if (rc == 0) {
    memcpy(&channel.key, reply.body.data(), sizeof channel.key);
    // The lowest number, as open() gives: programs use it with select().
    const long fd = raw_syscall(SYS_fcntl, reply.fds[0], (flags & O_CLOEXEC) != 0 ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
    reply.close_fds();
    if (fd >= 0) {
      if ((flags & O_NONBLOCK) != 0) raw_syscall(SYS_fcntl, fd, F_SETFL, O_RDWR | O_NONBLOCK);
      std::lock_guard<std::mutex> guard(g_lock);
      channels()[static_cast<int>(fd)] = std::move(channel);
      return static_cast<int>(fd);
    }
    rc = static_cast<int>(-fd);
  }
  reply.close_fds();
  errno = rc;
  return -1;
}

bool is_cm_descriptor(int fd) {
  std::lock_guard<std::mutex> guard(g_lock);
  return channels().contains(fd);
}

ssize_t write_cm_device(int fd, const void* buffer, size_t size) {
  CmChannel channel;
  rdma_ucm_cmd_hdr header;
  int rc = EINVAL;
  if (!find_channel(fd, &channel)) {
    rc = EBADF;
  } else if (size >= sizeof header) {
    memcpy(&header, buffer, sizeof header);
    const auto* in = static_cast<const std::uint8_t*>(buffer) + sizeof header;
    if (header.in + sizeof header <= size) {
      rc = header.cmd == RDMA_USER_CM_CMD_GET_EVENT ? get_event(fd, channel, header, in)
                                                    : send_command(channel, header, in);
    }
  }
  if (rc == 0) return static_cast<ssize_t>(size);
  errno = rc;
  return -1;
}

int stat_cm_device(int fd, struct stat* st) {
  if (raw_syscall(SYS_fcntl, fd, F_GETFD) < 0) {
    errno = EBADF;
    return -1;
  }
  memset(st, 0, sizeof *st);
  st->st_mode = S_IFCHR | 0666;
  st->st_rdev = device_number();
  st->st_nlink = 1;
  st->st_blksize = 4096;
  return 0;
}

void close_cm_device(int fd) {
  CmChannel channel;
  {
    std::lock_guard<std::mutex> guard(g_lock);
    const auto it = channels().find(fd);
    if (it == channels().end()) return;
    channel = std::move(it->second);
    channels().erase(it);
  }
  const control::CmChannel message{channel.key};
  control::Message reply;
  request(channel, MsgType::cm_close, &message, sizeof message, &reply);
  reply.close_fds();
}

}  // namespace softrnic::shim
