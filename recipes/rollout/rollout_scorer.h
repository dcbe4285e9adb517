// The rewards of rollouts, scored while samples are still drawn and while the student trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "models/generation/stop_text.h"
#include "models/text/tokenizer.h"
#include "parallel/group.h"
#include "recipes/rewards/reward.h"
#include "recipes/rollout/sample_source.h"
#include "recipes/rollout/scoring_queue.h"

namespace retort::recipes {

// Between a recipe and its SampleSource: what is begun here is scored as it arrives.
//
//   begin() --> SampleSource::begin          samples, one by one as they end
//                                              |
//   compute: trains, or waits in finish()      +--> a thread: text, RewardSet::score
//                                                     |
//   finish() <-- SampleSource::finish, then the scores of all of them
//
// Batches: what has arrived while a batch was scored is the next one, of one request: the one that
//   finish() waits for, else the oldest. After the last sample of a request at most two batches are
//   left: the one in work and its own rest.
// Bits: a sample's score stands where the sample does, whenever it was scored. So results are the
//   same as long as a reward looks at one completion at a time.
// Threads: compute. One more, from the first request that this rank sends, calls the rewards, and
//   nobody else may; it uses no LibTorch.
// Errors: those of RewardSet::score come out of finish(), of every one from then on.
class RolloutScorer {
 public:
  // `stops`: what was asked of the engine that draws; texts are cut before it.
  RolloutScorer(std::shared_ptr<rewards::RewardSet> rewards, models::Tokenizer tokenizer,
                models::StopRule stops = {});
  // Waits for the batch in work.
  ~RolloutScorer();
  RolloutScorer(const RolloutScorer&) = delete;
  RolloutScorer& operator=(const RolloutScorer&) = delete;

  const std::vector<std::string>& names() const { return rewards_->names(); }

  // SampleSource::begin.
  PendingRollout begin(SampleSource& source, RolloutRequest request);
  // Peeks as ScoringQueue::peek does, on the rank that scores.
  std::optional<std::vector<ScoringQueue::Peek>> peek(uint64_t number,
                                                      const std::vector<size_t>& places) {
    return queue_->peek(number, places);
  }
  // SampleSource::finish of what was begun here; every sample has its scores, and an episode its
  // record. The first rank of `mp`, the ranks that have this rollout, scores; the others get what
  // it got. Collectives: the source's, then a vote and one broadcast on mp; none of these if there
  // are no samples.
  Rollout finish(SampleSource& source, PendingRollout pending, parallel::Group& mp);

 private:
  void score_all();

  std::shared_ptr<rewards::RewardSet> rewards_;
  const models::Tokenizer tokenizer_;
  const models::StopRule stops_;
  std::shared_ptr<ScoringQueue> queue_;  // with the sinks, which may outlive this
  std::thread thread_;                   // runs score_all()
};

}  // namespace retort::recipes
