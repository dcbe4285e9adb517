// The requests of a generator's callers, from their submission until their samples are collected.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "roles/generator/methods.h"
#include "roles/generator/samples.h"
#include "rpc/agent.h"

namespace retort::roles {

// Requests in the order of their arrival.
//
// States: a request waits (for the weights that it names), then it is drawn (the engine has it),
//   then it is done (all its samples are there, or an error).
// Collecting: its caller is given samples as they end, any number of times. The table keeps them
//   all until the caller says that it has them, so that it can give them again.
// Ending: a request goes when its caller has all samples or its error, and when nobody will take
//   them: see unwanted().
// Threads: compute.
class RequestTable {
 public:
  // Requests of one caller that may be here at a time, in whatever state.
  static constexpr size_t kMaxPerCaller = 256;
  // Tokens of one answer, unless a single completion has more.
  static constexpr int64_t kMaxTokensPerAnswer = int64_t{1} << 16;

  using Clock = std::chrono::steady_clock;
  using Key = std::pair<std::string, uint64_t>;  // caller, request id
  // A call that waits for samples beyond the first `have`.
  struct Collector {
    Promise<Samples> reply;
    int64_t have = 0;
    std::shared_ptr<const std::atomic<bool>> cancelled;
    std::shared_ptr<rpc::CallClock> clock;
  };
  struct Job {
    GenerateRequest request;
    std::string process;                       // of its caller
    std::optional<uint64_t> engine_id;         // while it is drawn
    Samples label;                             // of its answers: who drew them, with which weights
    Clock::time_point started;                 // drawing
    std::vector<IndexedCompletion> ended;      // in that order
    std::vector<bool> has_ended;               // by index
    std::vector<Clock::time_point> end_times;  // of each of them
    std::exception_ptr error;
    std::optional<Collector> collector;

    bool complete() const {
      return static_cast<int64_t>(ended.size()) == request.sample_ids.numel();
    }
  };

  // A caller that was connected again may repeat a request; it collects that from the beginning.
  // kInvalidArgument when the caller uses the id for another one already, kResourceExhausted when
  // it has kMaxPerCaller requests here. `process`: which one of the caller's name submits it.
  void add(const Key& key, GenerateRequest request, const std::string& process = {});
  // Samples of `caller`'s request beyond those that it has, now or when there are some. Who has all
  // of them gets an empty answer, and the request is forgotten. kInvalidArgument when there is no
  // such request, or when fewer samples were given out.
  Future<Samples> collect(const CollectRequest& collect, const rpc::CallContext& caller);

  // The engine has it from now on; `label` is what all answers have in common.
  void begin_draw(const Key& key, uint64_t engine_id, Samples label);
  // One of its completions ended. True when that was the last: the request is done.
  bool add_completion(const Key& key, IndexedCompletion completion);
  // Whoever waits for completions that have ended gets them.
  void answer();
  // The request is done, without (more) samples.
  void fail(const Key& key, std::exception_ptr error);
  void forget(const Key& key);

  bool empty() const { return jobs_.empty(); }
  size_t size() const { return jobs_.size(); }
  Job& at(const Key& key) { return jobs_.at(key); }
  // Those that wait for weights of this version or of an older one.
  std::vector<Key> due(uint64_t version) const;
  // Those that the engine has.
  std::vector<Key> drawn() const;
  // Those that are not done and are for weights older than this version.
  std::vector<Key> unfinished_before(uint64_t version) const;
  // Those that another process of the caller's name than this one has submitted.
  std::vector<Key> of_earlier_process(const std::string& caller, const std::string& process) const;
  // Those that nobody will take: who collects them no longer waits, or nobody collects them now and
  // their caller is not among `connected`.
  std::vector<Key> unwanted(const std::set<std::string>& connected) const;

 private:
  size_t count(const std::string& caller) const;
  void end(const Key& key);

  std::map<Key, Job> jobs_;
  std::deque<Key> unfinished_;  // neither done nor gone, in order of arrival
};

}  // namespace retort::roles
