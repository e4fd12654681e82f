// Makes what a lab consists of, from inside of the lab's namespaces.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tools/lab/lab_config.h"

namespace softrnic::tool {

class LabBuilder {
 public:
  // `dir`: the lab's directory.
  LabBuilder(const lab::Lab& lab, std::string dir) : lab_(lab), dir_(std::move(dir)) {}

  // Hosts, networks, interfaces and NIC processes. False with a sentence for the user.
  bool build(std::string* why);

  // The process that holds each host, as far as there are some.
  const std::vector<pid_t>& holders() const { return holders_; }

 private:
  bool make_host(const lab::Host& host);
  bool make_network(const lab::Network& network);
  bool connect(std::size_t host, const lab::Interface& interface);
  bool lay_cable(std::size_t host, const lab::Interface& interface);
  bool set_up(std::size_t host, const lab::Interface& interface);
  bool set_up_routes(std::size_t host, const lab::Interface& interface);
  bool start_nic_of(std::size_t host);

  bool ip(pid_t host, const std::vector<std::string>& words);
  bool in_host(pid_t host, const std::function<int()>& work, const std::string& what);
  bool fail(const std::string& what, const std::string& why);

  const lab::Lab& lab_;
  const std::string dir_;
  std::vector<pid_t> holders_;
  struct End {
    std::size_t host;
    const lab::Interface* interface;
  };
  std::vector<std::vector<End>> loose_ends_;  // of each network, when it is a cable
  std::string why_;
};

}  // namespace softrnic::tool
