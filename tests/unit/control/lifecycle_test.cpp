// The directory and the socket, the end of processes on either side.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "engine/control/server/runtime_dir.h"
#include "tests/unit/control/client_fixture.h"

using namespace softrnic;
using namespace softrnic::test;
using namespace softrnic::control;

namespace {

int create_host(const std::string& dir, std::unique_ptr<NicHost>* host, std::string* why) {
  NicHostOptions options;
  options.dir = dir;
  return NicHost::create(std::move(options), host, why);
}

// What a NIC process leaves that was killed.
void make_stale_socket(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  ::close(fd);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("The directory is private, and so is the socket", "[control][life]") {
  TempDir parent;
  std::unique_ptr<NicHost> host;
  std::string why;
  REQUIRE(create_host(parent.path() + "/nic", &host, &why) == 0);
  struct stat st {};
  REQUIRE(::stat((parent.path() + "/nic").c_str(), &st) == 0);
  CHECK((st.st_mode & 07777) == 0700);
  REQUIRE(::stat(host->socket_path().c_str(), &st) == 0);
  CHECK((st.st_mode & 07777) == 0600);
  host.reset();
  CHECK(::stat((parent.path() + "/nic/control.sock").c_str(), &st) != 0);
}

TEST_CASE("A second NIC process in the same directory is refused; the first goes on", "[control][life]") {
  HostFixture first;
  std::unique_ptr<NicHost> second;
  std::string why;
  CHECK(create_host(first.dir(), &second, &why) == EADDRINUSE);
  CHECK(contains(why, first.dir()));
  CHECK(contains(why, std::to_string(::getpid())));
  VfClient still(first.socket_path());
}

TEST_CASE("A socket that somebody listens on is not taken away", "[control][life]") {
  HostFixture first;
  TempDir other;
  NicHostOptions options;
  options.dir = other.path();
  options.socket_path = first.socket_path();
  std::unique_ptr<NicHost> second;
  std::string why;
  CHECK(NicHost::create(std::move(options), &second, &why) == EADDRINUSE);
  VfClient still(first.socket_path());
}

TEST_CASE("A stale socket is refused by clients and replaced by the next NIC process", "[control][life]") {
  TempDir dir;
  const std::string path = dir.path() + "/control.sock";
  Connection c;
  CHECK(c.connect(path) == ENOENT);
  make_stale_socket(path);
  CHECK(c.connect(path) == ECONNREFUSED);
  std::unique_ptr<NicHost> host;
  std::string why;
  REQUIRE(create_host(dir.path(), &host, &why) == 0);
  host->start();
  Client ok(path);
}

TEST_CASE("What is in the socket's place and no socket is left alone", "[control][life]") {
  TempDir dir;
  std::ofstream(dir.path() + "/control.sock") << "precious";
  std::unique_ptr<NicHost> host;
  std::string why;
  CHECK(create_host(dir.path(), &host, &why) == EEXIST);
  std::string text;
  std::ifstream(dir.path() + "/control.sock") >> text;
  CHECK(text == "precious");
}

TEST_CASE("Unsafe directories are refused", "[control][life]") {
  TempDir parent;
  const std::string dir = parent.path() + "/d";
  std::unique_ptr<NicHost> host;
  std::string why;
  REQUIRE(::mkdir(dir.c_str(), 0700) == 0);
  SECTION("others may write") {
    ::chmod(dir.c_str(), 0777);
    CHECK(create_host(dir, &host, &why) == EPERM);
    CHECK(contains(why, "chmod"));
  }
  SECTION("the group may write") {
    ::chmod(dir.c_str(), 0770);
    CHECK(create_host(dir, &host, &why) == EPERM);
  }
  SECTION("others may write, but remove nothing") {
    ::chmod(dir.c_str(), 01777);
    CHECK(create_host(dir, &host, &why) == 0);
  }
  SECTION("a symbolic link") {
    REQUIRE(::symlink(dir.c_str(), (parent.path() + "/link").c_str()) == 0);
    CHECK(create_host(parent.path() + "/link", &host, &why) == EPERM);
  }
  SECTION("a file") {
    std::ofstream(parent.path() + "/file") << "x";
    CHECK(create_host(parent.path() + "/file", &host, &why) == ENOTDIR);
  }
  SECTION("somebody else's") {
    // Root can give it away; for others, / is somebody else's.
    std::string theirs = "/";
    if (::geteuid() == 0) {
      REQUIRE(::chown(dir.c_str(), 65534, 65534) == 0);
      theirs = dir;
    }
    CHECK(check_dir(theirs, &why) == EPERM);
    CHECK(contains(why, "belongs to"));
  }
  SECTION("no parent") {
    CHECK(create_host(parent.path() + "/no/such", &host, &why) == ENOENT);
    CHECK(contains(why, parent.path() + "/no/such"));
  }
  SECTION("a path that is too long for a socket") {
    CHECK(create_host(dir + "/" + std::string(120, 'x'), &host, &why) == ENAMETOOLONG);
  }
}

TEST_CASE("Clients see the end of the NIC process", "[control][life]") {
  HostFixture host;
  VfClient a(host.socket_path());
  host.end_host();
  CHECK(a.is_closed());
}

TEST_CASE("A NIC process that ends with its last user", "[control][life]") {
  TempDir dir;
  NicHostOptions options;
  options.dir = dir.path();
  options.end_with_last_user = true;
  std::unique_ptr<NicHost> host;
  std::string why;
  REQUIRE(NicHost::create(std::move(options), &host, &why) == 0);
  std::thread control([&] { host->run(); });
  std::thread eswitch([&] { host->run_switch(); });
  {
    auto holder = std::make_unique<Client>(host->socket_path());
    REQUIRE(holder->call(MsgType::hold) == 0);
    { Client visitor(host->socket_path()); }  // who only looks is no user
    auto user = std::make_unique<VfClient>(host->socket_path());
    holder.reset();
    CHECK(user->call(MsgType::get_block) == 0);  // still there
  }
  control.join();  // run() returns
  eswitch.join();
}

TEST_CASE("keep makes a NIC process stay when its last user is gone", "[control][life]") {
  NicHostOptions options;
  options.end_with_last_user = true;
  HostFixture host(std::move(options));
  {
    Client c(host.socket_path());
    REQUIRE(c.call(MsgType::hold) == 0);
    REQUIRE(c.call(MsgType::keep) == 0);
  }
  VfClient later(host.socket_path());
  CHECK(later.call(MsgType::get_block) == 0);
}

TEST_CASE("shutdown ends the NIC process", "[control][life]") {
  HostFixture host;
  Client c(host.socket_path()), other(host.socket_path());
  const int error = c.call(MsgType::shutdown);
  CHECK((error == 0 || error == EPIPE));
  host.end_host();  // joins its threads
  CHECK(other.is_closed());
}

// A process that attaches, connects to `peer_block` and then waits; `grandchild`: and forks a child that keeps its
// socket open when it dies.
static pid_t start_victim(const std::string& socket, std::uint32_t peer_block, bool grandchild, pid_t* grandchild_pid) {
  int fds[2];
  REQUIRE(::pipe(fds) == 0);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    Connection c;
    HelloInfo info;
    Message reply;
    AttachRequest attach{};
    ConnectPeerRequest peer{};
    peer.block = peer_block;
    pid_t child = 0;
    bool ok = c.connect(socket) == 0 && hello(c, &info) == 0 &&
              c.call(MsgType::attach, &attach, sizeof(attach), &reply) == 0 &&
              c.call(MsgType::connect_peer, &peer, sizeof(peer), &reply) == 0;
    if (grandchild) {
      child = ::fork();
      if (child == 0)
        for (;;) ::pause();
    }
    if (!ok) child = -1;
    if (::write(fds[1], &child, sizeof(child)) < 0) ::_exit(1);
    for (;;) ::pause();
  }
  REQUIRE(::read(fds[0], grandchild_pid, sizeof(pid_t)) == sizeof(pid_t));
  REQUIRE(*grandchild_pid >= 0);
  ::close(fds[0]);
  ::close(fds[1]);
  return pid;
}

TEST_CASE("Rule 10: a killed process is torn down and its peers are told, even if its child keeps the socket open",
          "[control][life]") {
  const bool grandchild = GENERATE(false, true);
  HostFixture host;
  VfClient peer(host.socket_path());
  pid_t child = 0;
  const pid_t victim = start_victim(host.socket_path(), peer.attached.first_block, grandchild, &child);
  Message added = peer.next_notice();
  REQUIRE(added.header.type == static_cast<std::uint16_t>(MsgType::peer_added));
  const auto gone_id = body_as<PeerReply>(added).vf_id;
  added.close_fds();

  REQUIRE(::kill(victim, SIGKILL) == 0);
  REQUIRE(::waitpid(victim, nullptr, 0) == victim);
  Message gone = peer.next_notice();
  CHECK(gone.header.type == static_cast<std::uint16_t>(MsgType::peer_gone));
  CHECK(body_as<PeerGone>(gone).vf_id == gone_id);
  if (child > 0) ::kill(child, SIGKILL);

  // Its block is in quarantine: a new VF gets another one.
  VfClient next(host.socket_path());
  CHECK(next.connect_to(peer.attached.first_block).vf_id == peer.id());
  CHECK(next.attached.first_block > peer.attached.first_block + 1);
}

TEST_CASE("Processes that come while others go are not taken for dead", "[control][life]") {
  HostFixture host;
  // Descriptors of those that go are used again for those that come, in the same turn of the event loop.
  constexpr int kWorkers = 4, kRounds = 60;
  std::vector<pid_t> workers;
  for (int w = 0; w < kWorkers; ++w) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      int failures = 0;
      for (int i = 0; i < kRounds; ++i) {
        const pid_t one = ::fork();
        if (one == 0) {
          Connection c;
          HelloInfo info;
          ::_exit(c.connect(host.socket_path()) == 0 && hello(c, &info) == 0 ? 0 : 1);
        }
        int status = 0;
        ::waitpid(one, &status, 0);
        failures += status != 0;
      }
      ::_exit(failures);
    }
    workers.push_back(pid);
  }
  for (const pid_t pid : workers) {
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
  }
}
