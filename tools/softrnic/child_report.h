// Children that report by a pipe: what they say, and how they ended.
#pragma once

#include <sys/types.h>

#include <string>

namespace softrnic::tool {

// What is written into the pipe until every writer has ended or closed its end; without line ends behind it.
std::string read_all(int fd);

// Waits for the child's end. Its wait status.
int wait_for(pid_t child);

}  // namespace softrnic::tool
