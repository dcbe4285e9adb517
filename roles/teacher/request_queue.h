// A teacher's requests that wait to be computed, and which of their parts were asked for.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "roles/teacher/methods.h"
#include "rpc/agent.h"

namespace retort::roles {

// Requests of one or several parts, each to be computed once however many ranks ask for its parts:
// in the order of their arrival, but those that name ids before all others. A student waits for
// these, the rest is computed ahead (HiddenStateCache). Threads: compute.
class RequestQueue {
 public:
  // `lease`: for how long a part of a computed request may be asked for, AnswerStore::Options.
  explicit RequestQueue(std::chrono::milliseconds lease) : lease_(lease) {}

  // `caller` wants request.part. The request waits to be computed, unless it waits already, or was
  // taken and this part not asked for since. `key`: result_key of the request.
  void add(const std::string& key, const ForwardRequest& request, const rpc::CallContext& caller);
  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }
  // The first that waits, and those behind it as long as all together have at most `max_tokens`.
  // Those whose callers have all gone are dropped.
  RequestBatch take(int64_t max_tokens);
  // It could not be computed, or a piece of it is no longer there: whoever asks for a part of it
  // from now on asks anew.
  void forget(const std::string& key);

 private:
  // All that is known of a request until it was taken and every part asked for, or the lease is
  // over.
  struct Entry {
    std::vector<bool> asked;  // of each part: whether it was asked for
    bool taken = false;
    std::vector<rpc::CallContext> callers;  // who wait for it to be taken
    std::chrono::steady_clock::time_point taken_at;

    bool all_asked() const;
    bool wanted() const;
  };
  using Entries = std::map<std::string, Entry>;
  struct Waiting {
    std::string key;
    ForwardRequest request;
    bool is_urgent = false;  // these stand before all others
  };
  void put_first(Waiting urgent);
  void mark_taken(Entries::iterator entry);
  void forget_old();

  std::chrono::milliseconds lease_;
  Entries entries_;
  std::deque<Waiting> waiting_;  // each has an entry
};

}  // namespace retort::roles
