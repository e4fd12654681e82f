// Where the labs of a user are: each has a directory "labs/NAME" in the runtime directory, whose lock its keeper holds.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "engine/switch/unique_fd.h"

namespace softrnic::tool {

class LabStore {
 public:
  // `given`: the runtime directory, or empty for the usual one.
  explicit LabStore(const std::string& given);

  // Makes the directory and keeps others from making and removing labs while this object lives. 0, or an errno value
  // and a sentence.
  int lock(std::string* why);
  // Also removes the directory when the last lab is gone.
  void unlock();

  std::vector<std::string> names() const;  // in order
  std::string dir(const std::string& lab) const { return base_ + "/" + lab; }
  std::string host_dir(const std::string& lab, const std::string& host) const { return dir(lab) + "/" + host; }
  std::string file(const std::string& lab) const { return dir(lab) + "/lab.json"; }     // a copy of the user's
  std::string state(const std::string& lab) const { return dir(lab) + "/state.json"; }  // what its keeper has made
  // The process that keeps the lab alive; 0: it has died.
  pid_t keeper(const std::string& lab) const;
  // The same as a descriptor of a process that cannot be mistaken for a later one.
  sw::UniqueFd open_keeper(const std::string& lab, pid_t* pid) const;

  // The lab that is meant: `name`, or the only one when that is empty. Empty with a sentence when there is none.
  std::string find(const std::string& name, std::string* why) const;

 private:
  std::string base_;
  sw::UniqueFd lock_;
};

// For the keeper: takes the lab's lock, as long as this process lives. 0 or an errno value.
int hold_lab(const std::string& dir);

}  // namespace softrnic::tool
