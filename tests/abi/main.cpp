// Runs the tests of the verbs calls with a NIC process of their own: this program's child.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "engine/control/server/nic_host.h"

namespace {

// The NIC process: says on `ready` that it listens, and ends with its parent.
[[noreturn]] void serve(const std::string& dir, int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  softrnic::control::NicHostOptions options;
  options.dir = dir;
  std::unique_ptr<softrnic::control::NicHost> host;
  std::string why;
  if (softrnic::control::NicHost::create(std::move(options), &host, &why) != 0) {
    fprintf(stderr, "%s\n", why.c_str());
    _exit(1);
  }
  host->start();
  char byte = 'r';
  if (write(ready, &byte, 1) != 1) _exit(1);
  for (;;) pause();
}

}  // namespace

int main(int argc, char** argv) {
  char dir[] = "/tmp/softrnic-abi-XXXXXX";
  int ready[2];
  if (mkdtemp(dir) == nullptr || pipe(ready) != 0) return 2;
  pid_t nic = fork();
  if (nic == 0) serve(std::string(dir) + "/nic", ready[1]);
  close(ready[1]);
  char byte;
  if (nic < 0 || read(ready[0], &byte, 1) != 1) return 2;
  setenv("SOFTRNIC_DIR", (std::string(dir) + "/nic").c_str(), 1);
  unsetenv("SOFTRNIC_SOCKET");

  int result = Catch::Session().run(argc, argv);

  kill(nic, SIGKILL);
  waitpid(nic, nullptr, 0);
  std::filesystem::remove_all(dir);
  return result;
}
