#include "engines/llamacpp/slot_semaphore.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace retort::engines::llamacpp {

void SlotSemaphore::set_count(int64_t count) {
  count_ = count;
  serve();
}

Future<Empty> SlotSemaphore::acquire(Deadline deadline) {
  const auto entry = std::make_shared<Waiting>();
  Future<Empty> result = entry->promise.future();
  waiting_.push_back(entry);
  serve();
  if (result.ready()) return result;

  // A timer takes the entry out of the line at the deadline. Cancelling the acquisition ends that
  // timer with an error, and the entry leaves the line with it.
  Future<Empty> timer = loop_.pause_until(deadline);
  entry->promise.on_cancel(timer.canceller());
  timer.on_outcome([this, entry](const Outcome<Empty>& outcome) {
    std::erase(waiting_, entry);
    if (outcome.error) {
      entry->promise.set_error(outcome.error);
      return;
    }
    entry->promise.set_error(std::make_exception_ptr(Error(
        ErrorCode::kTimeout, "all " + std::to_string(count_) +
                                 " slots of the server were taken by other sequences until the "
                                 "deadline; give it more (--parallel) or more time (timeout)")));
  });
  return result;
}

void SlotSemaphore::release() {
  --taken_;
  serve();
}

void SlotSemaphore::serve() {
  while (taken_ < count_ && !waiting_.empty()) {
    const auto entry = waiting_.front();
    waiting_.pop_front();
    ++taken_;
    if (!entry->promise.set_value({})) --taken_;  // nobody is interested any more
  }
}

}  // namespace retort::engines::llamacpp
