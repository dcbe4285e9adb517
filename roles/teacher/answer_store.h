// The store where finished pieces of answers meet the ranks that asked for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "roles/payload/payload.h"
#include "rpc/agent.h"

namespace retort::roles {

// A piece goes out once, then it is forgotten. Whoever asks before it is there waits for it. One
// that nobody fetched within the lease, or that no longer fits (the oldest first), is dropped, and
// the next who asks for it is told so with kUnavailable: asked for again, the answer is computed
// again. Threads: any.
class AnswerStore {
 public:
  struct Options {
    int64_t max_bytes = int64_t{1} << 30;
    std::chrono::milliseconds lease{240'000};
  };
  explicit AnswerStore(Options options);

  // `key`: result_key of the request. `caller` gets the piece as soon as it is there; when it no
  // longer waits by then, the future fails with kClosed.
  Future<Payload> pull(const std::string& key, int64_t part, const rpc::CallContext& caller);
  // For those who wait; if nobody does, it is kept.
  void put(const std::string& key, int64_t part, Payload piece);
  // For those who wait, and for nobody else. False: nobody did.
  bool answer_waiting(const std::string& key, int64_t part, const Payload& piece);
  // True if somebody who is still there waits for a part of it.
  bool is_wanted(const std::string& key) const;
  // Whoever waits for a part of it gets the error.
  void fail(const std::string& key, const std::exception_ptr& error);
  void fail_all(const std::exception_ptr& error);

  int64_t kept_bytes() const;
  size_t num_kept() const;
  size_t num_waiting() const;

 private:
  using Place = std::pair<std::string, int64_t>;
  using Clock = std::chrono::steady_clock;
  struct Kept {
    Place place;
    Payload piece;
    int64_t bytes = 0;
    Clock::time_point until;
  };
  struct Waiting {
    Promise<Payload> promise;
    rpc::CallContext caller;
  };
  using Waiters = std::vector<Waiting>;
  // All with the lock.
  std::list<Kept>::iterator find(const Place& place);
  void keep(const Place& place, Payload piece);
  void drop(std::list<Kept>::iterator kept);
  Waiters purge();  // callers that are gone, to be destroyed without the lock
  Waiters take_waiters(const Place& place);

  Options options_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // oldest first
  int64_t bytes_ = 0;
  std::map<Place, Waiters> waiting_;
  std::list<Place> dropped_;  // the last of them
};

}  // namespace retort::roles
