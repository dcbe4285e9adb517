// The requests of a generator's callers, from their submission until their samples are collected.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "roles/generator/methods.h"
#include "rpc/agent.h"

namespace retort::roles {

// Requests in the order of their arrival.
//
// States: a request waits (for the weights that it names), then it is drawn (the engine has it),
//   then it is done (its samples are there, or an error).
// Ending: it goes when its outcome was given to the caller who collects it, and when nobody will:
//   see unwanted().
// Threads: compute.
class RequestTable {
 public:
  // Requests of one caller that may be here at a time, in whatever state.
  static constexpr size_t kMaxPerCaller = 256;

  using Key = std::pair<std::string, uint64_t>;  // caller, request id
  struct Job {
    GenerateRequest request;
    std::optional<uint64_t> engine_id;  // while it is drawn
    std::chrono::steady_clock::time_point started;
    std::optional<Outcome<Samples>> outcome;             // done, not collected yet
    std::optional<Promise<Samples>> collector;           // collected, not done yet
    std::shared_ptr<const std::atomic<bool>> cancelled;  // of the collector
    std::shared_ptr<rpc::CallClock> clock;               // of the collector
  };

  // A caller that was connected again may repeat a request; it collects that once more.
  // kInvalidArgument when the caller uses the id for another one already, kResourceExhausted when
  // it has kMaxPerCaller requests here.
  void add(const Key& key, GenerateRequest request);
  // The outcome, now or later, for `caller`, once. kInvalidArgument when there is no such request.
  Future<Samples> collect(uint64_t request_id, const rpc::CallContext& caller);
  // The request is done. Whoever collected it gets the outcome, else it is kept.
  void finish(const Key& key, Outcome<Samples> outcome);
  void forget(const Key& key);

  bool empty() const { return jobs_.empty(); }
  Job& at(const Key& key) { return jobs_.at(key); }
  // Those that wait for weights of this version or of an older one.
  std::vector<Key> due(uint64_t version) const;
  // The engine has it from now on.
  void begin_draw(const Key& key, uint64_t engine_id);
  // Those that the engine has.
  std::vector<Key> drawn() const;
  // Those that are not done and are for weights older than this version.
  std::vector<Key> unfinished_before(uint64_t version) const;
  // Those that nobody will take: their collector no longer waits, or nobody collected them and
  // their caller is not among `connected`.
  std::vector<Key> unwanted(const std::set<std::string>& connected) const;

 private:
  size_t count(const std::string& caller) const;

  std::map<Key, Job> jobs_;
  std::deque<Key> unfinished_;  // neither done nor gone, in order of arrival
};

}  // namespace retort::roles
