// A reward model: pairs of completions, each scored as a whole at its last token.
//   loss = mean over pairs of -log sigmoid(s(chosen) - s(rejected) - margin)
//          + center_rewards_coefficient * (s(chosen) + s(rejected))^2
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "recipes/data/pair_batches.h"
#include "recipes/document/reward_model_options.h"
#include "recipes/losses/bradley_terry.h"
#include "recipes/reward_model/reward_pairs.h"
#include "recipes/run/loop/objective.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// Pairs as the model reads them: each prompt once, and of all rows those that the head reads, two a
// pair, chosen before rejected.
struct ScoredPairs {
  data::PairMicroBatch batch;
  models::PackedTokens tokens;  // with its wanted rows [2 P]
  at::Tensor objectives;        // [P] int64
  at::Tensor margins;           // [P] float32; undefined without use_margin
};
// `pad_token_id`: as SequenceClassifier's; `share_prompts`: data::student_sequences.
// kInvalidArgument as pair_target.
ScoredPairs make_scored_pairs(data::PairMicroBatch batch, const RewardModelOptions& options,
                              int64_t pad_token_id, bool share_prompts = true);
// [P] chosen and [P] rejected, float32 with autograd, from the hidden states `rows` [2 P, H].
losses::BradleyTerryInputs pair_scores(const models::Head& head, const at::Tensor& rows,
                                       const ScoredPairs& pairs);

// Threads: compute. Collectives: none.
class RewardModelObjective : public Objective {
 public:
  struct Options {
    RewardModelOptions reward_model;
    int64_t pad_token_id = -1;
    bool share_prompts = true;  // data::student_sequences
  };
  using PairSource = std::function<data::PairBatchStream::Step(int64_t step)>;
  RewardModelObjective(PairSource source, Options options);

  StepInfo next_step(int64_t step) override;
  std::string origins(size_t index) const override;
  size_t num_values() const override { return kValues; }
  const models::PackedTokens& tokens(size_t index) const override {
    return drawn_.front().at(index).tokens;
  }
  at::Tensor loss_sum(const models::Head& head, const at::Tensor& hidden, size_t index,
                      StepSums& sums) override;
  void finish_step(const StepSums& sums, MetricsRow& row) override;

  // Loss and metrics on held-out pairs ("eval_" names). All ranks call; one all-reduce over dp and
  // pp.
  MetricsRow evaluate(int64_t step, const roles::Trainer& student,
                      const std::vector<data::PairMicroBatch>& batches,
                      parallel::World& world) const;

 private:
  enum Value : size_t { kAccuracy, kMargin, kChosen, kRejected, kScores, kIdentical, kValues };
  at::Tensor pair_loss(const models::Head& head, const at::Tensor& rows, const ScoredPairs& pairs,
                       StepSums& sums) const;
  static void add_metrics(const StepSums& sums, const std::string& prefix, MetricsRow& row);

  PairSource source_;
  Options options_;
  std::deque<std::vector<ScoredPairs>> drawn_;  // by step and micro-batch
};

}  // namespace retort::recipes
