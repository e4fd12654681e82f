// softrnic events.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/softrnic/commands.h"
#include "tools/softrnic/nic_process.h"
#include "tools/softrnic/paths.h"

namespace softrnic::tool {
namespace {

using nlohmann::json;

// "12:34:56.123456 text", in local time.
void print_event(std::string_view line) {
  const json event = json::parse(line, nullptr, false);
  if (!event.is_object()) return;
  const auto ns = event.value("time", std::uint64_t{0});
  const std::time_t seconds = static_cast<std::time_t>(ns / 1'000'000'000u);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char clock[16];
  std::strftime(clock, sizeof(clock), "%H:%M:%S", &local);
  fmt::print("{}.{:06} {}\n", clock, ns % 1'000'000'000u / 1000, event.value("text", ""));
}

void print_lines(std::string_view lines, bool as_json) {
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(end == std::string_view::npos ? lines.size() : end + 1);
    if (as_json) {
      fmt::print("{}\n", line);
    } else {
      print_event(line);
    }
  }
  std::fflush(stdout);
}

}  // namespace

int events(const std::string& dir, bool as_json, bool follow) {
  control::Connection nic;
  control::HelloInfo info;
  std::string why;
  if (connect_nic(socket_path(dir), &nic, &info, &why) != 0) return complain(why), kExitFailure;
  control::EventsRequest request{};
  request.wait = follow ? 1 : 0;
  for (;;) {
    control::Message reply;
    const int error = nic.call(control::MsgType::events, &request, sizeof(request), &reply);
    if (error == EPIPE && follow) return 0;  // the end of what there is to follow
    control::EventsReply head{};
    if (error != 0 || reply.body.size() < sizeof(head))
      return complain(fmt::format("the NIC process gives no events: {}", std::strerror(error))), kExitFailure;
    std::memcpy(&head, reply.body.data(), sizeof(head));
    if (head.missed != 0 && request.after != 0) complain(fmt::format("{} events were missed", head.missed));
    print_lines({reinterpret_cast<const char*>(reply.body.data()) + sizeof(head), reply.body.size() - sizeof(head)},
                as_json);
    if (!follow && head.last == request.after) return 0;
    request.after = head.last;
  }
}

}  // namespace softrnic::tool
