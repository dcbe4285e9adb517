#include "roles/teacher/held_results.h"

#include <ATen/ops/clone.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace retort::roles {
namespace {

constexpr size_t kMaxRemembered = 4096;  // pieces that were dropped

// Without the rest of the tensor that the piece was cut from.
at::Tensor alone(const at::Tensor& tensor) {
  return tensor.defined() && tensor.storage().nbytes() > tensor.nbytes() ? tensor.clone() : tensor;
}

int64_t bytes_of(const Payload& piece) {
  int64_t bytes = 0;
  for (const at::Tensor* tensor : {&piece.hidden, &piece.ids, &piece.logps, &piece.log_tail})
    if (tensor->defined()) bytes += static_cast<int64_t>(tensor->nbytes());
  return bytes;
}

}  // namespace

HeldResults::HeldResults(Options options) : options_(options) {}

std::list<HeldResults::Held>::iterator HeldResults::find(const Place& place) {
  return std::find_if(held_.begin(), held_.end(),
                      [&](const Held& held) { return held.place == place; });
}

void HeldResults::drop(std::list<Held>::iterator held) {
  bytes_ -= held->bytes;
  dropped_.push_back(std::move(held->place));
  if (dropped_.size() > kMaxRemembered) dropped_.pop_front();
  held_.erase(held);
}

HeldResults::Waiters HeldResults::purge() {
  while (!held_.empty() && held_.front().until <= Clock::now())
    drop(held_.begin());
  Waiters gone;
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    const auto alive = std::stable_partition(
        entry->second.begin(), entry->second.end(), [](const Waiting& waiting) {
          return waiting.cancelled->load() || waiting.deadline.expired();
        });
    std::move(entry->second.begin(), alive, std::back_inserter(gone));
    entry->second.erase(entry->second.begin(), alive);
    entry = entry->second.empty() ? waiting_.erase(entry) : std::next(entry);
  }
  return gone;
}

HeldResults::Waiters HeldResults::take_waiters(const Place& place) {
  auto entry = waiting_.extract(place);
  return entry.empty() ? Waiters{} : std::move(entry.mapped());
}

Future<Payload> HeldResults::pull(const std::string& key, int64_t part,
                                  const rpc::CallContext& context) {
  const Place place(key, part);
  Promise<Payload> promise;
  auto future = promise.future();

  // Promises are completed, and destroyed, without the lock.
  Waiters gone;
  Payload piece;
  {
    std::lock_guard lock(mutex_);
    gone = purge();
    const auto held = find(place);
    if (held == held_.end()) {
      const auto dropped = std::find(dropped_.begin(), dropped_.end(), place);
      if (dropped == dropped_.end()) {
        waiting_[place].push_back({std::move(promise), context.deadline, context.cancelled});
        return future;
      }
      dropped_.erase(dropped);
      throw Error(ErrorCode::kUnavailable,
                  "an answer was dropped because it was not fetched in time, or too many others "
                  "wait; ask again")
          .with("part", part);
    }
    piece = std::move(held->piece);
    bytes_ -= held->bytes;
    held_.erase(held);
  }

  promise.set_value(std::move(piece));
  return future;
}

void HeldResults::put(const std::string& key, int64_t part, Payload piece) {
  const Place place(key, part);
  Waiters gone;
  Waiters waiters;
  {
    std::lock_guard lock(mutex_);
    gone = purge();
    waiters = take_waiters(place);
  }

  // Nobody waits yet: the piece is kept, in memory that it does not share with the whole answer.
  if (waiters.empty()) {
    for (at::Tensor* tensor : {&piece.hidden, &piece.ids, &piece.logps, &piece.log_tail})
      *tensor = alone(*tensor);
    std::lock_guard lock(mutex_);
    waiters = take_waiters(place);  // of meanwhile
    if (waiters.empty()) {
      std::erase(dropped_, place);
      if (const auto old = find(place); old != held_.end()) {
        bytes_ -= old->bytes;
        held_.erase(old);
      }
      held_.push_back({place, std::move(piece), 0, Clock::now() + options_.lease});
      held_.back().bytes = bytes_of(held_.back().piece);
      bytes_ += held_.back().bytes;
      // the newest stays, however large
      while (bytes_ > options_.max_bytes && held_.size() > 1)
        drop(held_.begin());
      return;
    }
  }

  for (Waiting& waiting : waiters)
    waiting.promise.set_value(piece);
}

void HeldResults::fail(const std::string& key, const std::exception_ptr& error) {
  Waiters waiters;
  {
    std::lock_guard lock(mutex_);
    for (auto entry = waiting_.lower_bound({key, 0});
         entry != waiting_.end() && entry->first.first == key;) {
      std::move(entry->second.begin(), entry->second.end(), std::back_inserter(waiters));
      entry = waiting_.erase(entry);
    }
  }
  for (Waiting& waiting : waiters)
    waiting.promise.set_error(error);
}

void HeldResults::fail_all(const std::exception_ptr& error) {
  std::map<Place, Waiters> all;
  {
    std::lock_guard lock(mutex_);
    all.swap(waiting_);
  }
  for (auto& [place, waiters] : all)
    for (Waiting& waiting : waiters)
      waiting.promise.set_error(error);
}

int64_t HeldResults::held_bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}
size_t HeldResults::num_held() const {
  std::lock_guard lock(mutex_);
  return held_.size();
}
size_t HeldResults::num_waiting() const {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [place, waiters] : waiting_)
    count += waiters.size();
  return count;
}

}  // namespace retort::roles
