// The ports of the port spaces (TCP, UDP, IPoIB, IB): which IDs have which, and who may have one, too.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "engine/cm/id.h"

namespace softrnic::rdmacm {

class PortTable {
 public:
  // Range of the ports that are given to those who ask for any.
  void set_range(std::uint16_t low, std::uint16_t high) { low_ = low, high_ = high; }
  // The kernel's range and limit of privileged ports, from /proc.
  void read_system();

  // Gives an ID the port in its source address, or a free one when that is 0. EACCES: a privileged port. EADDRINUSE,
  // EADDRNOTAVAIL: somebody has it, or there is none left. EPROTONOSUPPORT: the service ID is of none of the port
  // spaces that the ID may use.
  int bind(Id& id);
  // An ID that has its port shared with others wants to listen there.
  int check_listen(const Id& id) const;
  void release(Id& id);
  // IDs with this port.
  const std::vector<Id*>& owners(std::uint16_t port_space, std::uint16_t port) const;

 private:
  using Key = std::pair<std::uint16_t, std::uint16_t>;  // port space, port
  int select_space(Id& id, std::uint16_t* space) const;
  int bind_any(Id& id, std::uint16_t space);
  static int check(const std::vector<Id*>& owners, const Id& id, bool reuse);
  static bool is_unique(const std::vector<Id*>& owners, const Id& id);
  void add(Id& id, std::uint16_t space, std::uint16_t port);

  std::map<Key, std::vector<Id*>> ports_;
  std::map<const Id*, Key> of_id_;
  std::uint16_t low_ = 32768, high_ = 60999, first_unprivileged_ = 1024, last_used_ = 0;
  std::mt19937 random_{std::random_device{}()};
};

}  // namespace softrnic::rdmacm
