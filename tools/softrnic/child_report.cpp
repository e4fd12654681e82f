#include "tools/softrnic/child_report.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace softrnic::tool {

std::string read_all(int fd) {
  std::string text;
  char buffer[1024];
  ssize_t n = 0;
  while ((n = ::read(fd, buffer, sizeof(buffer))) > 0 || (n < 0 && errno == EINTR))
    if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace softrnic::tool
