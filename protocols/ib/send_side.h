// The completion half of a send queue: which requests are done, which are to be flushed, and the
// completions that follow from that. Completions are made when they are asked for, from the requests
// themselves, so nothing is stored per completion.
#pragma once

#include "protocols/common/work_queue.h"
#include "protocols/ib/qp.h"

namespace softrnic::ib {

class SendSide {
 public:
  // Index of the oldest request that is not complete. Requests before it completed with success,
  // apart from flushed ones.
  std::uint32_t done() const { return done_; }
  void complete_to(std::uint32_t index) { done_ = index; }

  // The request at done() fails with `status`; it and all later ones, also those still to be posted,
  // complete in order (IBA 10.3.1.5, 10.3.1.6). No effect when a flush runs already.
  void begin_flush(WcStatus status);
  // SQE -> RTS: what is posted up to now is still flushed, later requests run again. done() moves
  // there.
  void end_flush(std::uint32_t tail);
  // True while failed or flushed requests have not all been through poll().
  bool flushing() const { return flushing_; }
  // Takes back the completion of the last request (its packet could not be built after all).
  void undo_last() {
    if (done_ != reported_) --done_;
  }
  void reset() { *this = SendSide(); }

  // True when poll() may return something.
  bool pending() const { return flushing_ || reported_ != done_; }
  // The next completion. `may_flush` false holds back failed and flushed requests.
  bool poll(const QpInit& init, bool may_flush, QpEvent* out);

 private:
  void fill(const QpInit& init, const SendWqe& w, WcStatus status, QpEvent* out) const;

  std::uint32_t done_ = 0;
  std::uint32_t reported_ = 0;    // requests before it have been through poll()
  std::uint32_t fail_index_ = 0;  // first request that did not succeed
  std::uint32_t flush_end_ = 0;   // valid when !flush_open_
  bool flushing_ = false;
  bool flush_open_ = false;  // later posts are flushed, too
  WcStatus fail_status_ = WcStatus::wr_flush_err;
};

}  // namespace softrnic::ib
