// The NIC process as the command sees it: finding it, starting it, talking to it.
#pragma once

#include <string>
#include <vector>

#include "engine/control/client/client.h"

namespace softrnic::tool {

// Connects and says hello. 0, or an errno value with a sentence for the user.
int connect_nic(const std::string& socket, control::Connection* connection, control::HelloInfo* info, std::string* why);

// Runs softrnicd with `arguments` until it is ready in the background. 0; EADDRINUSE: another one is there or just
// ending; or EIO. `why` gets what it said, which with 0 are warnings.
int start_nic(const std::vector<std::string>& arguments, std::string* why);

// Joins the NIC process that lives in `dir`, or starts one that ends with its last user, and keeps it alive while
// `connection` is open; `why` as above. Any number of callers may do this at the same time, also while an earlier NIC
// process ends.
int join_or_start(const std::string& dir, const std::string& socket, const std::vector<std::string>& extra_arguments,
                  control::Connection* connection, control::HelloInfo* info, std::string* why);

// Adds fault rules, one a line; with `of_connection` they go when `nic` is closed. False with a sentence for the user.
bool add_faults(control::Connection& nic, const std::string& rules, bool of_connection, control::FaultAddReply* added,
                std::string* why);

// Text that the NIC process has sent, in the reply or in the file that came with it.
std::string report_text(control::Message& reply);

}  // namespace softrnic::tool
