// What the server of the run's store knows: keys, values, and the requests that wait for keys. No
// socket and no clock: requests and points in time come in, replies go out.
//
//   a request whose keys exist             -> its reply, inside handle()
//   one that waits (kGet, kWait) for a key -> its reply, inside the handle() that brings the last
//                                             key, or inside expire() at its deadline
//
// A waiter stands in the list of one key that is missing. When that key comes it goes on to the
// next one that is missing, and looks at all of them again before it is answered, because a key may
// have been deleted meanwhile.
//
// Threads: one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "rpc/rendezvous/store_frames.h"

namespace retort::rpc::rendezvous {

class StoreState {
 public:
  using TimePoint = Deadline::Clock::time_point;
  // Sends a reply to the connection whose request it answers. May not call back into this object.
  using Answer = std::function<void(uint64_t connection, const StoreReply&)>;

  StoreState(const StoreLimits& limits, Answer answer);

  void handle(uint64_t connection, StoreRequest request, TimePoint now);
  // Answers every waiter whose deadline has come.
  void expire(TimePoint now);
  // When expire() has something to do again.
  std::optional<TimePoint> next_deadline() const;
  // The connection is gone, and nobody is left to answer.
  void forget(uint64_t connection);

  size_t num_keys() const { return values_.size(); }
  size_t num_waiters() const { return waiters_.size(); }
  size_t stored_bytes() const { return stored_bytes_; }

 private:
  struct Waiter {
    uint64_t connection = 0;
    StoreRequest request;
    size_t next = 0;  // the key that it waits for; those before it existed when it looked
    TimePoint deadline;
    size_t bytes = 0;
  };
  // What a request is answered to.
  struct Caller {
    uint64_t connection = 0;
    uint64_t request = 0;
  };

  void done(Caller caller, int64_t number = 0);
  void done_with(Caller caller, std::string value);
  void refuse(Caller caller, StoreStatus status, std::string text);

  void set(Caller caller, StoreRequest& request);
  void add(Caller caller, const StoreRequest& request);
  void append(Caller caller, StoreRequest& request);
  void compare_set(Caller caller, StoreRequest& request);
  void check(Caller caller, const StoreRequest& request);
  void erase(Caller caller, const std::string& key);
  void wait(Caller caller, StoreRequest& request, TimePoint now);

  // Answers the request and returns true if there is no room for these new keys and bytes.
  bool refuse_if_full(Caller caller, size_t new_keys, size_t new_bytes);
  void put(const std::string& key, std::string value);
  // The keys of a kGet or kWait all exist.
  void answer_wait(Caller caller, const StoreRequest& request);
  // The index of a key that does not exist, looked for from waiter.next on and then before it.
  std::optional<size_t> find_missing(const StoreRequest& request, size_t from) const;
  std::vector<std::string> missing_keys(const StoreRequest& request) const;
  // A key has come: those who wait for it go on.
  void wake(const std::string& key);
  // Takes a waiter out of all lists but that of the key it waits for.
  Waiter take(uint64_t waiter);
  void leave_key(const std::string& key, uint64_t waiter);

  const StoreLimits limits_;
  const Answer answer_;
  std::unordered_map<std::string, std::string> values_;
  size_t stored_bytes_ = 0;

  // A waiter's number counts up, so the sets below are in the order of arrival.
  uint64_t next_waiter_ = 0;
  std::unordered_map<uint64_t, Waiter> waiters_;
  std::unordered_map<std::string, std::set<uint64_t>> by_key_;
  std::unordered_map<uint64_t, std::set<uint64_t>> by_connection_;
  std::set<std::pair<TimePoint, uint64_t>> by_deadline_;
  size_t waiting_bytes_ = 0;
};

}  // namespace retort::rpc::rendezvous
