// Namespaces of labs. A lab has a process namespace, whose first process keeps the lab, a mount and a network namespace
// and, when an ordinary user made it, a user namespace in which he is root; each of its hosts has a network, mount and
// host name namespace of its own.
#pragma once

#include <sys/types.h>

#include <string>

namespace softrnic::tool {

// Takes this process into a lab's namespaces; the next child is the first process of the process namespace. 0, or an
// errno value with a sentence for the user, which names the setting that forbids it.
int make_lab_namespaces(std::string* why);

// For that first process: /proc of its process namespace, and no mount that anybody else sees. Errors as above.
int mount_lab(std::string* why);

// Takes this process, which has a lab's namespaces, into those of a new host. `hosts_file` becomes its /etc/hosts.
// 0 or an errno value.
int make_host_namespaces(const std::string& name, const std::string& hosts_file);

// Takes this process into the lab that the process behind `keeper_fd` (a pidfd) and `keeper` keeps; its children are in
// the process namespace. 0 or an errno value.
int enter_lab(int keeper_fd, pid_t keeper);

// Takes this process, which is in the lab and its process namespace, into the host that the process `holder` holds.
int enter_host(pid_t holder);

}  // namespace softrnic::tool
