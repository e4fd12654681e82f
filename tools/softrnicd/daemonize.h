// A process that goes to the background once it is ready, and tells whoever started it how that went.
#pragma once

#include <string>

namespace softrnic::daemon {

class Background {
 public:
  // Forks. The parent waits until the child calls ready() or failed(), or dies, prints what it says on stderr and exits
  // with the child's verdict; only the child returns, in a session of its own.
  void enter();
  // Ends the parent with status 0, and `warning` on stderr when it is not empty; the standard descriptors go to
  // /dev/null.
  void ready(const std::string& warning);
  // Ends the parent with `message` on stderr and `status`.
  void failed(const std::string& message, int status);

 private:
  int report_fd_ = -1;
};

}  // namespace softrnic::daemon
