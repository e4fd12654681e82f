#include "tools/softrnic/capture_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/switch/unique_fd.h"
#include "tools/softrnic/nic_process.h"

namespace softrnic::tool {

bool CaptureClient::start(const std::string& socket, const std::string& file, unsigned snaplen,
                          const std::string& filter, std::string* why) {
  file_ = file;
  sw::UniqueFd out;
  if (file == "-") {
    if (::isatty(STDOUT_FILENO) != 0) return *why = "a capture is binary: redirect stdout, or name a file", false;
    out.reset(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  } else {
    out.reset(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  }
  if (!out) return *why = fmt::format("cannot write '{}': {}", file, std::strerror(errno)), false;

  control::HelloInfo info;
  if (connect_nic(socket, &connection_, &info, why) != 0) return false;
  control::CaptureRequest request{};
  request.snaplen = snaplen;
  std::string body(reinterpret_cast<const char*>(&request), sizeof(request));
  body += filter;
  if (body.size() > control::kMaxMessage - sizeof(control::MsgHeader)) return *why = "the filter is too long", false;
  const int fd = out.get();
  control::Message reply;
  std::vector<control::Message> notices;
  const int error = connection_.call(control::MsgType::capture, body.data(), static_cast<std::uint32_t>(body.size()),
                                     &reply, &notices, &fd, 1);
  if (error == 0) return true;
  *why = error == EINVAL && !reply.body.empty()
             ? fmt::format("the filter is wrong: {}", std::string(reply.body.begin(), reply.body.end()))
             : fmt::format("cannot capture: {}", std::strerror(error));
  // It may have failed before it began, on a full disk for instance.
  for (const control::Message& m : notices) {
    control::CaptureEnd end{};
    if (m.body.size() != sizeof(end)) continue;
    std::memcpy(&end, m.body.data(), sizeof(end));
    *why = fmt::format("writing the capture to '{}' failed: {}", file_, std::strerror(end.error));
  }
  return false;
}

void CaptureClient::stop() { ::shutdown(connection_.fd(), SHUT_WR); }

bool CaptureClient::wait_for_end(std::string* why) {
  control::Message m;
  for (;;) {
    if (connection_.receive(&m) != 0) return *why = "the NIC process ended during the capture", false;
    m.close_fds();
    control::CaptureEnd end{};
    if (m.header.type != static_cast<std::uint16_t>(control::MsgType::capture_end) || m.body.size() != sizeof(end))
      continue;
    std::memcpy(&end, m.body.data(), sizeof(end));
    packets_ = end.packets;
    lost_ = end.lost;
    error_ = end.error;
    if (end.error == 0) return true;
    *why = fmt::format("writing the capture to '{}' failed: {} ({} packets were written)", file_,
                       std::strerror(end.error), end.packets);
    return false;
  }
}

}  // namespace softrnic::tool
