// Follows fork() (design rule 9): the engines of a process are locked while it forks, and given up in the child.
#pragma once

#include "engine/nic/nic.h"

namespace softrnic::nic {

void fork_watch_add(Vf::Impl& engine);
void fork_watch_remove(Vf::Impl& engine);

}  // namespace softrnic::nic
