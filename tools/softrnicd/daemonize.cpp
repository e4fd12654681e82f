#include "tools/softrnicd/daemonize.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace softrnic::daemon {
namespace {

// What the child reports: a status byte, then a message.
[[noreturn]] void wait_for_report(int fd, pid_t child) {
  std::string report;
  char buffer[1024];
  ssize_t n = 0;
  while ((n = ::read(fd, buffer, sizeof(buffer))) > 0 || (n < 0 && errno == EINTR))
    if (n > 0) report.append(buffer, static_cast<std::size_t>(n));
  if (report.empty()) {
    int status = 0;
    ::waitpid(child, &status, 0);
    std::fprintf(stderr, "softrnicd: ended before it was ready (%s %d)\n", WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    ::_exit(EXIT_FAILURE);
  }
  if (report.size() > 1) std::fprintf(stderr, "softrnicd: %s\n", report.c_str() + 1);
  std::fflush(stderr);
  ::_exit(report[0]);
}

void write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return;  // the parent is gone
    if (n > 0) done += static_cast<std::size_t>(n);
  }
}

}  // namespace

void Background::enter() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    std::perror("softrnicd: pipe");
    std::exit(EXIT_FAILURE);
  }
  const pid_t child = ::fork();
  if (child < 0) {
    std::perror("softrnicd: fork");
    std::exit(EXIT_FAILURE);
  }
  if (child > 0) {
    ::close(fds[1]);
    wait_for_report(fds[0], child);
  }
  ::close(fds[0]);
  report_fd_ = fds[1];
  ::setsid();
}

void Background::ready(const std::string& warning) {
  if (report_fd_ < 0) return;
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= 2 && null >= 0; ++fd) ::dup2(null, fd);
  if (null > 2) ::close(null);
  write_all(report_fd_, std::string(1, '\0') + warning);
  ::close(report_fd_);
  report_fd_ = -1;
}

void Background::failed(const std::string& message, int status) {
  if (report_fd_ < 0) {
    std::fprintf(stderr, "softrnicd: %s\n", message.c_str());
    return;
  }
  write_all(report_fd_, std::string(1, static_cast<char>(status)) + message);
  ::close(report_fd_);
  report_fd_ = -1;
}

}  // namespace softrnic::daemon
