// Finished pieces of answers, until the ranks that they are for fetch them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "roles/payload/payload.h"
#include "rpc/agent.h"

namespace retort::roles {

// A piece is handed over once, then forgotten. Whoever comes before it is there waits for it. One
// that nobody fetched within the lease, or that no longer fits (the oldest first), is dropped, and
// the next who asks for it is told so with kUnavailable: asked for again, the answer is computed
// again. Threads: any.
class HeldResults {
 public:
  struct Options {
    int64_t max_bytes = int64_t{1} << 30;
    std::chrono::milliseconds lease{240'000};
  };
  explicit HeldResults(Options options);

  // `key`: result_key of the request.
  Future<Payload> pull(const std::string& key, int64_t part, const rpc::CallContext& context);
  void put(const std::string& key, int64_t part, Payload piece);
  // Whoever waits for a part of it gets the error.
  void fail(const std::string& key, const std::exception_ptr& error);
  void fail_all(const std::exception_ptr& error);

  int64_t held_bytes() const;
  size_t num_held() const;
  size_t num_waiting() const;

 private:
  using Place = std::pair<std::string, int64_t>;
  using Clock = std::chrono::steady_clock;
  struct Held {
    Place place;
    Payload piece;
    int64_t bytes = 0;
    Clock::time_point until;
  };
  struct Waiting {
    Promise<Payload> promise;
    Deadline deadline;
    std::shared_ptr<const std::atomic<bool>> cancelled;
  };
  using Waiters = std::vector<Waiting>;
  std::list<Held>::iterator find(const Place& place);
  void drop(std::list<Held>::iterator held);
  Waiters purge();  // those that nobody waits for any more, to be destroyed without the lock
  Waiters take_waiters(const Place& place);

  Options options_;
  mutable std::mutex mutex_;
  std::list<Held> held_;  // oldest first
  int64_t bytes_ = 0;
  std::map<Place, Waiters> waiting_;
  std::list<Place> dropped_;  // the last of them
};

}  // namespace retort::roles
