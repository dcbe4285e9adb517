#include "rpc/rendezvous/store_state.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

namespace retort::rpc::rendezvous {
namespace {

// Reads all of the text as a whole number; nothing if it is none.
std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

size_t bytes_of(const std::vector<std::string>& texts) {
  size_t bytes = 0;
  for (const std::string& text : texts)
    bytes += text.size() + sizeof text;
  return bytes;
}

std::chrono::milliseconds timeout_of(const StoreRequest& request) {
  const int64_t longest = std::chrono::milliseconds(kMaxStoreTimeout).count();
  return std::chrono::milliseconds(std::clamp<int64_t>(request.timeout_ms, 0, longest));
}

}  // namespace

StoreState::StoreState(const StoreLimits& limits, Answer answer)
    : limits_(limits), answer_(std::move(answer)) {}

void StoreState::done(Caller caller, int64_t number) {
  StoreReply reply{.id = caller.request};
  reply.number = number;
  answer_(caller.connection, reply);
}

void StoreState::done_with(Caller caller, std::string value) {
  StoreReply reply{.id = caller.request};
  reply.values.push_back(std::move(value));
  answer_(caller.connection, reply);
}

void StoreState::refuse(Caller caller, StoreStatus status, std::string text) {
  StoreReply reply{.id = caller.request, .status = status};
  reply.text = std::move(text);
  answer_(caller.connection, reply);
}

void StoreState::handle(uint64_t connection, StoreRequest request, TimePoint now) {
  const Caller caller{connection, request.id};
  // The request is the word of another process, so its shape is checked before anything else.
  if (auto problem = problem_of(request, limits_))
    return refuse(caller, StoreStatus::kRefused, std::move(*problem));

  switch (request.op) {
    case StoreOp::kSet: return set(caller, request);
    case StoreOp::kGet:
    case StoreOp::kWait: return wait(caller, request, now);
    case StoreOp::kAdd: return add(caller, request);
    case StoreOp::kAppend: return append(caller, request);
    case StoreOp::kCompareSet: return compare_set(caller, request);
    case StoreOp::kCheck: return check(caller, request);
    case StoreOp::kDelete: return erase(caller, request.keys.front());
    case StoreOp::kCountKeys: return done(caller, static_cast<int64_t>(values_.size()));
  }
}

bool StoreState::refuse_if_full(Caller caller, size_t new_keys, size_t new_bytes) {
  if (values_.size() + new_keys > limits_.max_keys) {
    refuse(caller, StoreStatus::kFull,
           "the store is full: at most " + std::to_string(limits_.max_keys) + " keys");
    return true;
  }
  if (stored_bytes_ + new_bytes > limits_.max_stored_bytes) {
    refuse(caller, StoreStatus::kFull,
           "the store is full: at most " + std::to_string(limits_.max_stored_bytes) + " bytes");
    return true;
  }
  return false;
}

void StoreState::put(const std::string& key, std::string value) {
  const auto [place, is_new] = values_.try_emplace(key);
  stored_bytes_ += (is_new ? key.size() : 0) + value.size() - place->second.size();
  place->second = std::move(value);
}

void StoreState::set(Caller caller, StoreRequest& request) {
  // This is an upper bound: a value that is replaced makes room, which is not counted.
  size_t new_keys = 0;
  size_t new_bytes = 0;
  for (size_t i = 0; i < request.keys.size(); ++i) {
    const bool is_new = values_.count(request.keys[i]) == 0;
    new_keys += is_new ? 1 : 0;
    new_bytes += request.values[i].size() + (is_new ? request.keys[i].size() : 0);
  }
  if (refuse_if_full(caller, new_keys, new_bytes)) return;

  // All values stand before anyone is woken, so that whoever waits for several of these keys finds
  // all of them.
  for (size_t i = 0; i < request.keys.size(); ++i)
    put(request.keys[i], std::move(request.values[i]));
  done(caller);
  for (const std::string& key : request.keys)
    wake(key);
}

void StoreState::add(Caller caller, const StoreRequest& request) {
  const std::string& key = request.keys.front();
  const auto found = values_.find(key);
  const std::optional<int64_t> before =
      found == values_.end() ? std::optional<int64_t>(0) : whole_number(found->second);
  int64_t sum = 0;
  if (!before || __builtin_add_overflow(*before, request.number, &sum))
    return refuse(caller, StoreStatus::kRefused,
                  "key '" + key + "' does not hold a number that this can be added to");

  std::string text = std::to_string(sum);
  const bool is_new = found == values_.end();
  if (refuse_if_full(caller, is_new ? 1 : 0, text.size() + (is_new ? key.size() : 0))) return;
  put(key, std::move(text));
  done(caller, sum);
  wake(key);
}

void StoreState::append(Caller caller, StoreRequest& request) {
  const std::string& key = request.keys.front();
  std::string& addition = request.values.front();
  const auto found = values_.find(key);
  const bool is_new = found == values_.end();
  if (!is_new && found->second.size() + addition.size() > limits_.max_value_bytes)
    return refuse(caller, StoreStatus::kRefused,
                  "the value of key '" + key + "' would be larger than " +
                      std::to_string(limits_.max_value_bytes) + " bytes");
  if (refuse_if_full(caller, is_new ? 1 : 0, addition.size() + (is_new ? key.size() : 0))) return;

  // A value that is there grows in place; put() would need a copy of all of it.
  if (is_new) {
    put(key, std::move(addition));
  } else {
    found->second += addition;
    stored_bytes_ += addition.size();
  }
  done(caller);
  wake(key);
}

// This is the rule of c10d's own stores: where nothing stands, an empty expectation fits, and any
// other one comes back as if it stood there.
void StoreState::compare_set(Caller caller, StoreRequest& request) {
  const std::string& key = request.keys.front();
  std::string& expected = request.values[0];
  std::string& desired = request.values[1];
  const auto found = values_.find(key);
  if (found == values_.end() && !expected.empty()) return done_with(caller, std::move(expected));
  if (found != values_.end() && found->second != expected) return done_with(caller, found->second);

  const bool is_new = found == values_.end();
  if (refuse_if_full(caller, is_new ? 1 : 0, desired.size() + (is_new ? key.size() : 0))) return;
  put(key, desired);
  done_with(caller, std::move(desired));
  wake(key);
}

void StoreState::check(Caller caller, const StoreRequest& request) {
  done(caller, find_missing(request, 0) ? 0 : 1);
}

void StoreState::erase(Caller caller, const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return done(caller, 0);
  stored_bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
  done(caller, 1);
}

std::optional<size_t> StoreState::find_missing(const StoreRequest& request, size_t from) const {
  const size_t count = request.keys.size();
  for (size_t step = 0; step < count; ++step) {
    const size_t index = (from + step) % count;
    if (values_.count(request.keys[index]) == 0) return index;
  }
  return std::nullopt;
}

std::vector<std::string> StoreState::missing_keys(const StoreRequest& request) const {
  std::vector<std::string> missing;
  for (const std::string& key : request.keys)
    if (values_.count(key) == 0) missing.push_back(key);
  return missing;
}

void StoreState::answer_wait(Caller caller, const StoreRequest& request) {
  if (request.op == StoreOp::kWait) return done(caller);

  // The same key may be named a million times, so the size is known before anything is copied.
  size_t bytes = sizeof(StoreReply);
  for (const std::string& key : request.keys)
    bytes += sizeof(uint64_t) + values_.at(key).size();
  if (bytes > limits_.max_frame_bytes)
    return refuse(caller, StoreStatus::kRefused,
                  "the values of these keys have " + std::to_string(bytes) +
                      " bytes; ask for fewer at a time");

  StoreReply reply{.id = caller.request};
  for (const std::string& key : request.keys)
    reply.values.push_back(values_.at(key));
  answer_(caller.connection, reply);
}

void StoreState::wait(Caller caller, StoreRequest& request, TimePoint now) {
  const std::optional<size_t> missing = find_missing(request, 0);
  if (!missing) return answer_wait(caller, request);
  const size_t bytes = bytes_of(request.keys);
  if (waiters_.size() >= limits_.max_waiters || waiting_bytes_ + bytes > limits_.max_waiting_bytes)
    return refuse(caller, StoreStatus::kFull, "too many requests wait for keys of the store");

  // A wait can end by its key, its deadline or the end of its connection, so it is listed under
  // each.
  const uint64_t number = next_waiter_++;
  const TimePoint deadline = now + timeout_of(request);
  by_key_[request.keys[*missing]].insert(number);
  by_connection_[caller.connection].insert(number);
  by_deadline_.emplace(deadline, number);
  waiting_bytes_ += bytes;
  waiters_.emplace(number, Waiter{.connection = caller.connection,
                                  .request = std::move(request),
                                  .next = *missing,
                                  .deadline = deadline,
                                  .bytes = bytes});
}

void StoreState::wake(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  const std::set<uint64_t> woken = std::move(found->second);
  by_key_.erase(found);

  // A waiter stands at one missing key at a time. Woken there it moves on to the next that is
  // missing, so a request for many keys costs no look at all of them for each key.
  for (const uint64_t number : woken) {
    Waiter& waiter = waiters_.at(number);
    if (const auto missing = find_missing(waiter.request, waiter.next)) {
      waiter.next = *missing;
      by_key_[waiter.request.keys[*missing]].insert(number);
      continue;
    }
    const Waiter ready = take(number);
    answer_wait({ready.connection, ready.request.id}, ready.request);
  }
}

StoreState::Waiter StoreState::take(uint64_t number) {
  const auto place = waiters_.find(number);
  Waiter waiter = std::move(place->second);
  waiters_.erase(place);
  by_deadline_.erase({waiter.deadline, number});
  waiting_bytes_ -= waiter.bytes;

  const auto siblings = by_connection_.find(waiter.connection);
  siblings->second.erase(number);
  if (siblings->second.empty()) by_connection_.erase(siblings);
  return waiter;
}

void StoreState::leave_key(const std::string& key, uint64_t number) {
  const auto found = by_key_.find(key);
  found->second.erase(number);
  if (found->second.empty()) by_key_.erase(found);
}

void StoreState::expire(TimePoint now) {
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) {
    const uint64_t number = by_deadline_.begin()->second;
    const Waiter late = take(number);
    leave_key(late.request.keys[late.next], number);
    refuse({late.connection, late.request.id}, StoreStatus::kTimedOut,
           "timed out after " + std::to_string(timeout_of(late.request).count()) +
               " ms; missing: " + key_list(missing_keys(late.request)));
  }
}

std::optional<StoreState::TimePoint> StoreState::next_deadline() const {
  if (by_deadline_.empty()) return std::nullopt;
  return by_deadline_.begin()->first;
}

void StoreState::forget(uint64_t connection) {
  const auto found = by_connection_.find(connection);
  if (found == by_connection_.end()) return;
  const std::set<uint64_t> numbers = found->second;
  for (const uint64_t number : numbers) {
    const Waiter gone = take(number);
    leave_key(gone.request.keys[gone.next], number);
  }
}

}  // namespace retort::rpc::rendezvous
