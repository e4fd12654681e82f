// The process's tie to the NIC process: finding it, attaching to it, and telling the user when it is not there.
#include <string.h>
#include <unistd.h>

#include <mutex>

#include "engine/control/client/client.h"
#include "engine/nic/raw_io.h"
#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {
namespace {

std::mutex g_lock;  // trivially destructible, like everything static in this library

std::weak_ptr<nic::Vf>& shared_vf() {
  static auto* vf = new std::weak_ptr<nic::Vf>;  // never destroyed: threads may still run at exit
  return *vf;
}

// A fork while another thread is in here must not leave the lock taken in the child.
void register_fork_handlers() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork([] { g_lock.lock(); }, [] { g_lock.unlock(); }, [] { g_lock.unlock(); }); });
}

std::string reason(const std::string& path, int rc, const control::HelloInfo& info) {
  if (rc == EPROTONOSUPPORT) {
    return "the NIC process at " + path + " is another version (softrnic " + info.reply.daemon_version + ", protocol " +
           std::to_string(info.reply.version) + "; this library: protocol " +
           std::to_string(control::kProtocolVersion) +
           "): stop it with `softrnic down`, or use the libraries it came with";
  }
  return "no NIC process at " + path + " (" + strerrordesc_np(rc) + "): run the program with `softrnic run -- PROGRAM`";
}

// The attachment if there is one that works; one inherited by fork() attaches anew. Under g_lock.
std::shared_ptr<nic::Vf> live_vf() {
  std::shared_ptr<nic::Vf> vf = shared_vf().lock();
  nic::Vf::Impl* engine;
  if (vf && vf->engine(&engine) != 0) return nullptr;
  return vf;
}

}  // namespace

std::shared_ptr<nic::Vf> attach_shared(int* rc) {
  register_fork_handlers();
  std::lock_guard<std::mutex> guard(g_lock);
  if (std::shared_ptr<nic::Vf> vf = live_vf()) return vf;
  std::unique_ptr<nic::Vf> fresh;
  std::string why;
  *rc = nic::Vf::attach(control::default_socket_path(), &fresh, &why);
  if (*rc != 0) {
    complain_once(why);
    return nullptr;
  }
  std::shared_ptr<nic::Vf> vf(std::move(fresh));
  shared_vf() = vf;
  return vf;
}

int discover(control::HelloInfo* out, std::string* why) {
  register_fork_handlers();
  {
    std::lock_guard<std::mutex> guard(g_lock);
    if (std::shared_ptr<nic::Vf> vf = live_vf()) {
      *out = vf->fabric().info();
      return 0;
    }
  }
  std::string path = control::default_socket_path();
  control::Connection connection;
  int rc = connection.connect(path);
  if (rc == 0) rc = control::hello(connection, out);
  if (rc != 0) *why = reason(path, rc, *out);
  return rc;
}

void complain_once(const std::string& why) {
  static std::atomic<bool> done{false};
  if (done.exchange(true)) return;
  std::string line = "softrnic: " + why + "\n";
  raw_write(STDERR_FILENO, line.data(), line.size());
}

std::string runtime_sysfs(const std::string& runtime_dir) {
  std::string root = runtime_dir + "/sys";
  return !runtime_dir.empty() && access((root + "/class/infiniband").c_str(), X_OK) == 0 ? root : std::string();
}

}  // namespace softrnic::shim
