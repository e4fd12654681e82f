// Waits for asynchronous events by poll(2) on the descriptor alone, as event loops do: event_poll DEVICE COUNT. Calls
// no verb until the descriptor is readable.
#include <infiniband/verbs.h>
#include <poll.h>

#include <cstdio>
#include <cstdlib>

#include "tests/interop/progs/open_device.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  ibv_context* context = open_device(argv[1]);
  if (context == nullptr) return 1;
  std::printf("waiting\n");
  std::fflush(stdout);
  for (int left = std::atoi(argv[2]); left > 0; --left) {
    pollfd fd{context->async_fd, POLLIN, 0};
    if (::poll(&fd, 1, -1) != 1) return 1;
    ibv_async_event event{};
    if (ibv_get_async_event(context, &event) != 0) return 1;
    std::printf("%s\n", ibv_event_type_str(event.event_type));
    std::fflush(stdout);
    ibv_ack_async_event(&event);
  }
  return ibv_close_device(context);
}
