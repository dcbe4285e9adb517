#include "roles/teacher/request_queue.h"

#include <algorithm>

#include "roles/teacher/caller.h"

namespace retort::roles {

bool RequestQueue::Entry::all_asked() const {
  return std::find(asked.begin(), asked.end(), false) == asked.end();
}

bool RequestQueue::Entry::wanted() const {
  return std::any_of(callers.begin(), callers.end(), still_waits);
}

void RequestQueue::forget_old() {
  const auto now = std::chrono::steady_clock::now();
  // A request whose other parts are never asked for would stay for ever.
  std::erase_if(entries_, [&](const auto& item) {
    return item.second.taken && now - item.second.taken_at > lease_;
  });
}

void RequestQueue::forget(const std::string& key) {
  const auto entry = entries_.find(key);
  // An entry that is not taken waits to be computed once more, so it stays.
  if (entry != entries_.end() && entry->second.taken) entries_.erase(entry);
}

void RequestQueue::add(const std::string& key, const ForwardRequest& request,
                       const rpc::CallContext& caller) {
  forget_old();
  const auto part = static_cast<size_t>(request.part);
  const auto parts = static_cast<size_t>(request.parts);
  auto [entry, is_new] = entries_.try_emplace(key);
  if (is_new) entry->second.asked.resize(parts, false);

  // The request is taken and this part is asked for the first time: its piece is in the store, or
  // will be soon.
  if (entry->second.taken && !entry->second.asked[part]) {
    entry->second.asked[part] = true;
    if (entry->second.all_asked()) entries_.erase(entry);
    return;
  }

  // The request is taken, but this part's piece went to whoever asked before: all is computed once
  // more.
  if (entry->second.taken) {
    entry->second = {};
    entry->second.asked.resize(parts, false);
    is_new = true;
  }

  entry->second.asked[part] = true;
  // The work on the request has not begun; mark_taken() says when it has.
  caller.clock->wait();
  entry->second.callers.push_back(caller);
  if (!is_new) return;
  if (request.ids.defined())
    put_first({key, request});
  else
    waiting_.push_back({key, request});
}

// Puts a request that names ids behind those that are urgent already. If the request that computes
// its rows still waits, that one goes ahead of it.
void RequestQueue::put_first(Waiting urgent) {
  urgent.is_urgent = true;
  auto place = std::find_if(waiting_.begin(), waiting_.end(),
                            [](const Waiting& one) { return !one.is_urgent; });
  const auto rows =
      std::find_if(place, waiting_.end(),
                   [key = kept_key(urgent.request)](const Waiting& one) { return one.key == key; });
  if (rows != waiting_.end()) {
    rows->is_urgent = true;
    std::rotate(place, rows, rows + 1);
    ++place;
  }
  waiting_.insert(place, std::move(urgent));
}

RequestBatch RequestQueue::take(int64_t max_tokens) {
  RequestBatch batch;
  int64_t tokens = 0;
  for (; !waiting_.empty(); waiting_.pop_front()) {
    Waiting& next = waiting_.front();
    const auto entry = entries_.find(next.key);
    if (!entry->second.wanted()) {
      entries_.erase(entry);
      continue;
    }

    // The first request is taken whatever its size, or one beyond the limit would never be
    // computed.
    const int64_t more = next.request.input_ids.numel();
    if (!batch.requests.empty() && tokens + more > max_tokens) break;
    tokens += more;
    batch.requests.push_back(std::move(next.request));
    batch.keys.push_back(std::move(next.key));
    mark_taken(entry);
  }
  return batch;
}

void RequestQueue::mark_taken(Entries::iterator entry) {
  for (const rpc::CallContext& caller : entry->second.callers)
    caller.clock->begin();
  if (entry->second.all_asked()) {
    entries_.erase(entry);
    return;
  }
  entry->second.taken = true;
  entry->second.taken_at = std::chrono::steady_clock::now();
  entry->second.callers.clear();
}

}  // namespace retort::roles
