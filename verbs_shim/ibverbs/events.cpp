// Asynchronous events and completion channels. A wait is a libc read() of the event descriptor, as programs know
// it: it honours O_NONBLOCK, and a thread can be cancelled in it (rping does that).
#include <unistd.h>

#include "verbs_shim/ibverbs/objects.h"

namespace softrnic::shim {
namespace {

// Waits for an event and takes it; on_take sees it under the queue's lock. 0, or -1 with errno.
template <class T, class OnTake>
int take_event(nic::EventQueue<T>& queue, T* out, OnTake on_take) {
  for (;;) {
    std::uint64_t one;
    if (read(queue.fd(), &one, sizeof one) != static_cast<ssize_t>(sizeof one)) return -1;
    if (queue.take(out, on_take)) return 0;  // else its object was destroyed after we were woken
  }
}

// The count of delivered events of the event's object, null for events of the port or device.
Reported* reported_of(const nic::AsyncEventRecord& e) {
  if (e.cq) return &to_shim(static_cast<ibv_cq*>(e.cq->user)).async_reported;
  if (e.qp) return &to_shim(static_cast<ibv_qp*>(e.qp->user)).async_reported;
  if (e.srq) return &to_shim(static_cast<ibv_srq*>(e.srq->user)).async_reported;
  return nullptr;
}

// Counts one acknowledged event.
void acknowledge(pthread_mutex_t* mutex, pthread_cond_t* cond, std::uint32_t* completed, std::uint32_t n) {
  pthread_mutex_lock(mutex);
  *completed += n;
  pthread_cond_signal(cond);
  pthread_mutex_unlock(mutex);
}

}  // namespace

void wait_for_acks(pthread_mutex_t* mutex, pthread_cond_t* cond, const std::uint32_t* completed,
                   const Reported& reported) {
  pthread_mutex_lock(mutex);
  while (*completed != reported.load(std::memory_order_relaxed)) pthread_cond_wait(cond, mutex);
  pthread_mutex_unlock(mutex);
}

}  // namespace softrnic::shim

using namespace softrnic;
using namespace softrnic::shim;

SOFTRNIC_ABI int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  nic::AsyncEventRecord record;
  void* object = nullptr;
  int rc = take_event(to_shim(context).nic->async, &record, [&object](const nic::AsyncEventRecord& e) {
    if (Reported* reported = reported_of(e)) reported->fetch_add(1, std::memory_order_relaxed);
    object = e.cq ? e.cq->user : e.qp ? e.qp->user : e.srq ? e.srq->user : nullptr;
  });
  if (rc != 0) return -1;
  event->event_type = static_cast<ibv_event_type>(record.type);
  if (record.cq) {
    event->element.cq = static_cast<ibv_cq*>(object);
  } else if (record.qp) {
    event->element.qp = static_cast<ibv_qp*>(object);
  } else if (record.srq) {
    event->element.srq = static_cast<ibv_srq*>(object);
  } else {
    event->element.port_num = record.port;
  }
  return 0;
}

SOFTRNIC_ABI void ibv_ack_async_event(ibv_async_event* event) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: {
      ibv_cq* cq = event->element.cq;
      acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed, 1);
      break;
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      ibv_qp* qp = event->element.qp;
      acknowledge(&qp->mutex, &qp->cond, &qp->events_completed, 1);
      break;
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      ibv_srq* srq = event->element.srq;
      acknowledge(&srq->mutex, &srq->cond, &srq->events_completed, 1);
      break;
    }
    default:
      break;
  }
}

SOFTRNIC_ABI ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  return guarded([&]() -> ibv_comp_channel* {
    auto channel = std::make_unique<Channel>();
    int rc = nic::CompletionChannel::create(*to_shim(context).nic, &channel->nic);
    if (rc != 0) return made<ibv_comp_channel>(rc, nullptr);
    channel->ib = {context, channel->nic->fd(), 0};
    return &channel.release()->ib;
  });
}

SOFTRNIC_ABI int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  int rc = to_shim(channel).nic->destroy();
  if (rc == 0) delete &to_shim(channel);
  return status(rc);
}

SOFTRNIC_ABI int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  nic::CompletionQueue* taken = nullptr;
  ibv_cq* owner = nullptr;
  int rc = take_event(to_shim(channel).nic->queue, &taken, [&owner](nic::CompletionQueue* q) {
    owner = static_cast<ibv_cq*>(q->user);
    to_shim(owner).comp_reported.fetch_add(1, std::memory_order_relaxed);
  });
  if (rc != 0) return -1;
  *cq = owner;
  *cq_context = owner->cq_context;
  return 0;
}

SOFTRNIC_ABI void ibv_ack_cq_events(ibv_cq* cq, unsigned int nevents) {
  acknowledge(&cq->mutex, &cq->cond, &cq->comp_events_completed, nevents);
}
