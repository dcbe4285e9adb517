#include "rpc/flow/send_window.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace retort::rpc::detail {

void SendWindow::push(uint64_t id, uint64_t bytes, Send send) {
  line_.push_back({id, bytes, std::move(send)});
  drain();
}

bool SendWindow::remove(uint64_t id) {
  const auto found = std::find_if(line_.begin(), line_.end(),
                                  [id](const Waiting& waiting) { return waiting.id == id; });
  if (found == line_.end()) return false;
  const bool first = found == line_.begin();
  line_.erase(found);
  if (!first) return true;

  // Room that was asked for this one is not wanted any more.
  asked_ = 0;
  drain();
  if (line_.empty()) ask_(sent_);
  return true;
}

bool SendWindow::waits(uint64_t id) const {
  return std::any_of(line_.begin(), line_.end(),
                     [id](const Waiting& waiting) { return waiting.id == id; });
}

void SendWindow::raise(uint64_t limit) {
  if (limit < limit_)
    throw Error(ErrorCode::kCorrupt, "a grant is lower than the one before")
        .with("limit", limit)
        .with("before", limit_);
  limit_ = limit;
  drain();
}

void SendWindow::lower(uint64_t limit, const std::function<void(uint64_t)>& answer) {
  limit_ = std::max(sent_, std::min(limit, limit_));
  answer(limit_);
  // What was granted for the first in line may be gone: it is asked for again.
  asked_ = 0;
  drain();
}

void SendWindow::drain() {
  while (!line_.empty() && line_.front().bytes <= limit_ - sent_) {
    Waiting first = std::move(line_.front());
    line_.pop_front();
    sent_ += first.bytes;
    first.send();
  }
  if (line_.empty()) return;
  const uint64_t needed = sent_ + line_.front().bytes;
  if (needed == asked_) return;
  asked_ = needed;
  ask_(needed);
}

}  // namespace retort::rpc::detail
