// Samples between their arrival and their scores: the loop thread brings them, a thread that calls
// the rewards takes them in batches, the compute thread waits for the scores of a request.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "models/generation/request.h"
#include "recipes/rewards/reward.h"
#include "recipes/rollout/episode_record.h"

namespace retort::recipes {

// Bound: the samples of the requests that were added and not forgotten. Threads: any.
class ScoringQueue {
 public:
  // A sample that is not scored yet.
  struct Arrived {
    size_t place = 0;                 // in its request
    std::vector<int32_t> prompt_ids;  // RolloutSample's
    models::Completion completion;
    // Of an episode, set by who scores it.
    std::optional<EpisodeRecord> episode = std::nullopt;
  };
  // One that has been scored, so far as that is.
  struct Peek {
    std::vector<int32_t> prompt_ids;  // RolloutSample's
    std::vector<int32_t> token_ids;
    std::vector<uint8_t> is_target;  // of each token: the model's own
    bool scorable = false;
    bool truncated = false;
  };
  struct Scores {
    std::vector<rewards::Scored> samples;                // by place
    std::vector<std::optional<EpisodeRecord>> episodes;  // by place; nullopt: it is none
    double seconds = 0;                                  // that scoring them took
  };
  // One sending of a request. Only the last one counts; what others bring is dropped.
  struct Attempt;
  struct Batch {
    std::shared_ptr<Attempt> attempt;
    std::vector<Arrived> samples;
    std::vector<rewards::RewardInput> inputs;  // of each, without what the completion says
  };

  ScoringQueue();
  ~ScoringQueue();

  // A request that will be scored: its prompts, as rewards see them, with `generations` completions
  // each. `number`: of no other request that is here.
  void add(uint64_t number, std::vector<rewards::RewardInput> prompts, size_t generations);
  void forget(uint64_t number);
  // The request is sent (again).
  std::shared_ptr<Attempt> open(uint64_t number);
  void put(const std::shared_ptr<Attempt>& attempt, Arrived sample);
  // From now on this request goes before all others.
  void prefer(uint64_t number);

  // Waits for samples: those of the preferred request, else of the oldest that has any. nullopt
  // once closed, or after fail().
  std::optional<Batch> next();
  void finish(Batch batch, std::vector<rewards::Scored> scores, double seconds);
  // Nothing is scored any more; all who wait get the error, now and later.
  void fail(std::exception_ptr error);
  void close();

  // Looks at the request's samples at `places`, if all of them are scored.
  std::optional<std::vector<Peek>> peek(uint64_t number, const std::vector<size_t>& places);
  // The scores of a request all of whose samples were put: waits for as long as the rewards take,
  // which have timeouts of their own, and calls `meanwhile` now and then. kClosed once closed.
  Scores wait(uint64_t number, const std::function<void()>& meanwhile = {});

 private:
  struct Request {
    uint64_t number = 0;
    std::vector<rewards::RewardInput> prompts;
    size_t generations = 1;
    std::shared_ptr<Attempt> attempt;  // the last one; null before the first
  };
  Request& at(uint64_t number);

  std::mutex mutex_;
  std::condition_variable arrived_, scored_;
  std::list<Request> requests_;  // oldest first
  std::optional<uint64_t> preferred_;
  std::exception_ptr error_;
  bool closed_ = false;
};

}  // namespace retort::recipes
