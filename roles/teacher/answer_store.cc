#include "roles/teacher/answer_store.h"

#include <ATen/ops/clone.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "roles/teacher/caller.h"

namespace retort::roles {
namespace {

constexpr size_t kMaxRemembered = 4096;  // pieces that were dropped

// Copies a piece that is a view of a larger tensor, so that keeping it does not keep the rest.
at::Tensor alone(const at::Tensor& tensor) {
  return tensor.defined() && tensor.storage().nbytes() > tensor.nbytes() ? tensor.clone() : tensor;
}

int64_t bytes_of(const Payload& piece) {
  int64_t bytes = 0;
  for (const at::Tensor* tensor : piece.row_tensors())
    if (tensor->defined()) bytes += static_cast<int64_t>(tensor->nbytes());
  return bytes;
}

}  // namespace

AnswerStore::AnswerStore(Options options) : options_(options) {}

std::list<AnswerStore::Kept>::iterator AnswerStore::find(const Place& place) {
  return std::find_if(kept_.begin(), kept_.end(),
                      [&](const Kept& kept) { return kept.place == place; });
}

void AnswerStore::keep(const Place& place, Payload piece) {
  std::erase(dropped_, place);
  if (const auto old = find(place); old != kept_.end()) {
    bytes_ -= old->bytes;
    kept_.erase(old);
  }

  const int64_t bytes = bytes_of(piece);
  kept_.push_back({place, std::move(piece), bytes, Clock::now() + options_.lease});
  bytes_ += bytes;

  // The newest piece stays, however large, or one beyond the limit could never be fetched.
  while (bytes_ > options_.max_bytes && kept_.size() > 1)
    drop(kept_.begin());
}

void AnswerStore::drop(std::list<Kept>::iterator kept) {
  bytes_ -= kept->bytes;
  // A pull of a dropped piece must fail: without this note it would wait for an answer that never
  // comes.
  dropped_.push_back(std::move(kept->place));
  if (dropped_.size() > kMaxRemembered) dropped_.pop_front();
  kept_.erase(kept);
}

AnswerStore::Waiters AnswerStore::purge() {
  // All leases are equally long, so the list, which is in the order of arrival, is also in the
  // order in which they end.
  while (!kept_.empty() && kept_.front().until <= Clock::now())
    drop(kept_.begin());

  Waiters gone;
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    Waiters& waiters = entry->second;
    const auto alive =
        std::stable_partition(waiters.begin(), waiters.end(),
                              [](const Waiting& waiting) { return !still_waits(waiting.caller); });
    std::move(waiters.begin(), alive, std::back_inserter(gone));
    waiters.erase(waiters.begin(), alive);
    entry = waiters.empty() ? waiting_.erase(entry) : std::next(entry);
  }
  return gone;
}

AnswerStore::Waiters AnswerStore::take_waiters(const Place& place) {
  auto entry = waiting_.extract(place);
  return entry.empty() ? Waiters{} : std::move(entry.mapped());
}

Future<Payload> AnswerStore::pull(const std::string& key, int64_t part,
                                  const rpc::CallContext& caller) {
  const Place place(key, part);
  Promise<Payload> promise;
  auto future = promise.future();

  // Promises are completed, and destroyed, without the lock.
  Waiters gone;
  Payload piece;
  {
    std::lock_guard lock(mutex_);
    gone = purge();
    const auto kept = find(place);
    if (kept == kept_.end()) {
      const auto dropped = std::find(dropped_.begin(), dropped_.end(), place);
      if (dropped == dropped_.end()) {
        caller.clock->wait();  // for the request, which may stand in a queue
        waiting_[place].push_back({std::move(promise), caller});
        return future;
      }
      dropped_.erase(dropped);
      throw Error(ErrorCode::kUnavailable,
                  "an answer was dropped because it was not fetched in time, or too many others "
                  "wait; ask again")
          .with("part", part);
    }
    piece = std::move(kept->piece);
    bytes_ -= kept->bytes;
    kept_.erase(kept);
  }

  promise.set_value(std::move(piece));
  return future;
}

bool AnswerStore::answer_waiting(const std::string& key, int64_t part, const Payload& piece) {
  Waiters gone;
  Waiters waiters;
  {
    std::lock_guard lock(mutex_);
    gone = purge();
    waiters = take_waiters({key, part});
  }
  for (Waiting& waiting : waiters)
    waiting.promise.set_value(piece);
  return !waiters.empty();
}

void AnswerStore::put(const std::string& key, int64_t part, Payload piece) {
  if (answer_waiting(key, part, piece)) return;

  // A kept piece shares no memory with the whole answer. It is copied without the lock, so somebody
  // may have begun to wait when the copy is done, and is looked for again.
  for (at::Tensor* tensor : piece.row_tensors())
    *tensor = alone(*tensor);
  Waiters waiters;
  {
    std::lock_guard lock(mutex_);
    waiters = take_waiters({key, part});
    if (waiters.empty()) keep({key, part}, std::move(piece));
  }
  for (Waiting& waiting : waiters)
    waiting.promise.set_value(piece);
}

bool AnswerStore::is_wanted(const std::string& key) const {
  std::lock_guard lock(mutex_);
  for (auto entry = waiting_.lower_bound({key, 0});
       entry != waiting_.end() && entry->first.first == key; ++entry)
    for (const Waiting& waiting : entry->second)
      if (still_waits(waiting.caller)) return true;
  return false;
}

void AnswerStore::fail(const std::string& key, const std::exception_ptr& error) {
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

void AnswerStore::fail_all(const std::exception_ptr& error) {
  std::map<Place, Waiters> all;
  {
    std::lock_guard lock(mutex_);
    all.swap(waiting_);
  }
  for (auto& [place, waiters] : all)
    for (Waiting& waiting : waiters)
      waiting.promise.set_error(error);
}

int64_t AnswerStore::kept_bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}
size_t AnswerStore::num_kept() const {
  std::lock_guard lock(mutex_);
  return kept_.size();
}
size_t AnswerStore::num_waiting() const {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [place, waiters] : waiting_)
    count += waiters.size();
  return count;
}

}  // namespace retort::roles
