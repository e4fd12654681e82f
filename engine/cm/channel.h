// An event channel: what a program has behind a descriptor of /dev/infiniband/rdma_cm. Its events wait here; the
// descriptor is an eventfd that counts them (EFD_SEMAPHORE), so that it can be polled. A program takes one from the
// count before it asks for an event, hence an event that is removed takes its count with it unless that is taken
// already.
#pragma once

#include <rdma/rdma_user_cm.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <set>

#include "engine/switch/unique_fd.h"

namespace softrnic::rdmacm {

struct Id;
struct Membership;

struct ChannelEvent {
  rdma_ucm_event_resp response{};
  Id* id = nullptr;                  // whose event it is: of CONNECT_REQUEST, the listener
  Id* connection = nullptr;          // CONNECT_REQUEST: the new one
  Membership* membership = nullptr;  // MULTICAST_JOIN, MULTICAST_ERROR
};

class Channel {
 public:
  // Null with errno set when there is no descriptor.
  static std::unique_ptr<Channel> create(std::uint64_t key);

  std::uint64_t key() const { return key_; }
  int fd() const { return eventfd_.get(); }

  void push(const ChannelEvent& event);
  // The oldest event; false when there is none.
  bool take(ChannelEvent* out);
  // Removes the events of an ID, or of a membership, with their counts, and returns them in order.
  std::deque<ChannelEvent> remove(const Id& id);
  std::deque<ChannelEvent> remove(const Membership& membership);
  std::size_t size() const { return events_.size(); }

  std::set<std::uint64_t> holders;  // connections of the processes that have it open
  std::set<Id*> ids;

 private:
  Channel(std::uint64_t key, int fd) : key_(key), eventfd_(fd) {}
  template <class Match>
  std::deque<ChannelEvent> remove_if(Match&& match);

  std::uint64_t key_;
  sw::UniqueFd eventfd_;
  std::deque<ChannelEvent> events_;
};

}  // namespace softrnic::rdmacm
