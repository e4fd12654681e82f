#include "engine/cm/channel.h"

#include <sys/eventfd.h>

#include <cerrno>

#include "engine/nic/raw_io.h"

namespace softrnic::rdmacm {

std::unique_ptr<Channel> Channel::create(std::uint64_t key) {
  // Blocking: whether it is, is for the program to say, whose descriptor is the same one.
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  return fd >= 0 ? std::unique_ptr<Channel>(new Channel(key, fd)) : nullptr;
}

void Channel::push(const ChannelEvent& event) {
  events_.push_back(event);
  raw_eventfd_write(eventfd_.get());
}

bool Channel::take(ChannelEvent* out) {
  if (events_.empty()) return false;
  *out = events_.front();
  events_.pop_front();
  return true;
}

template <class Match>
std::deque<ChannelEvent> Channel::remove_if(Match&& match) {
  std::deque<ChannelEvent> removed, kept;
  for (const ChannelEvent& event : events_) (match(event) ? removed : kept).push_back(event);
  events_.swap(kept);
  // A count that the program has taken already, it gives up when it finds no event.
  for (std::size_t i = 0; i < removed.size(); ++i) raw_eventfd_take_one_nonblocking(eventfd_.get());
  return removed;
}

std::deque<ChannelEvent> Channel::remove(const Id& id) {
  return remove_if([&](const ChannelEvent& event) { return event.id == &id; });
}

std::deque<ChannelEvent> Channel::remove(const Membership& membership) {
  return remove_if([&](const ChannelEvent& event) { return event.membership == &membership; });
}

}  // namespace softrnic::rdmacm
