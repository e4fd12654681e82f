// softrnic capture.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <cstdio>

#include "engine/switch/unique_fd.h"
#include "tools/softrnic/capture_client.h"
#include "tools/softrnic/commands.h"
#include "tools/softrnic/paths.h"

namespace softrnic::tool {

int capture(const CaptureOptions& options) {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, s);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  sw::UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC));

  CaptureClient client;
  std::string why;
  if (!client.start(socket_path(options.dir), options.file, options.snaplen, options.filter, &why))
    return complain(why), kExitFailure;
  if (!options.for_reader)
    fmt::print(stderr, "softrnic: capturing into {}, end with Ctrl-C\n", options.file == "-" ? "stdout" : options.file);

  pollfd fds[2] = {{signals.get(), POLLIN, 0}, {client.fd(), POLLIN, 0}};
  while (::poll(fds, 2, -1) < 0) {
  }
  if (fds[0].revents != 0) client.stop();
  const bool ok = client.wait_for_end(&why) || (options.for_reader && client.error() == EPIPE);
  if (!ok) complain(why);
  if (!options.for_reader)
    fmt::print(stderr, "softrnic: {} packets captured, {} lost\n", client.packets(), client.lost());
  return ok ? 0 : kExitFailure;
}

}  // namespace softrnic::tool
