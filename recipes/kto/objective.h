// Kahneman-Tversky optimisation: single completions, each judged desirable or not, compared with a
// frozen reference in another process.
//   s    = log pi(y | x) - log pi_ref(y | x)
//   z    = max(0, mean over the global batch of s of the mismatched completions), without gradient
//   loss = mean over the global batch of  w_D (1 - sigmoid(beta (s - z)))   of a desirable row
//                                         w_U (1 - sigmoid(beta (z - s)))   of an undesirable one
//
// A step on a rank:
//   next_step    asks the reference for both kinds of completions, `prefetch` steps ahead
//   begin_step   mismatched completions of all micro-batches through the student, no gradient;
//                z from their sum over dp
//   loss_sum     own completions of one micro-batch, with gradient
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "recipes/data/unpaired_batches.h"
#include "recipes/losses/kto.h"
#include "recipes/run/loop/mean_logits.h"
#include "recipes/run/loop/objective.h"
#include "recipes/run/rank/request_id.h"
#include "recipes/run/reference/reference.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// Threads: compute. Collectives: those of Reference and of the losses on tp; in begin_step the
// student's on tp and pp, one vote and one all-reduce on dp, all only if the loss needs z.
class KtoObjective : public Objective {
 public:
  struct Options {
    losses::KtoLossOptions loss;
    int64_t prefetch = 2;
    int64_t dp_rank = 0, dp_size = 1;
  };
  using RowSource = std::function<data::UnpairedBatchStream::Step(int64_t step)>;
  // `student` must outlive the objective.
  KtoObjective(RowSource source, const roles::Trainer& student,
               std::unique_ptr<Reference> reference, Options options);
  ~KtoObjective() override;

  int64_t lookahead(int64_t) const override { return options_.prefetch; }
  StepInfo next_step(int64_t step) override;
  std::string origins(size_t index) const override;
  size_t num_values() const override { return kValues; }
  bool loss_falls() const override { return false; }  // at most 1
  void begin_step(parallel::Group& dp) override;
  const models::PackedTokens& tokens(size_t index) const override {
    return drawn_.front().at(index).batch.own.tokens;
  }
  at::Tensor loss_sum(const models::Head& head, const at::Tensor& hidden, size_t index,
                      StepSums& sums) override;
  void finish_step(const StepSums& sums, MetricsRow& row) override;

  // Loss and metrics on held-out rows ("eval_" names), with z over all of them. All ranks call; two
  // all-reduces over dp and pp.
  MetricsRow evaluate(int64_t step, const std::vector<data::UnpairedMicroBatch>& batches,
                      parallel::World& world);

 private:
  enum Value : size_t {
    kChosen,  // completions
    kRejected,
    kRewardsChosen,
    kRewardsRejected,
    kLogpsChosen,
    kLogpsRejected,
    kLogitsChosen,
    kLogitsRejected,
    kTokensChosen,
    kTokensRejected,
    kMismatched,  // completions
    kMismatchedLogRatios,
    kWaitSeconds,
    kValues
  };
  // A micro-batch and its reference's answers on their way (not valid: known already).
  struct Drawn {
    data::UnpairedMicroBatch batch;
    Reference::Pending own, mismatched;
    double mismatched_log_ratios = 0;  // their sum, once begin_step has it
    double waited = 0;                 // seconds, in begin_step
  };
  using DrawnStep = std::vector<Drawn>;

  Reference::Pending ask(const data::CompletionBatch& batch, uint64_t request_id, int64_t step);
  at::Tensor mismatched_log_probs(const data::CompletionBatch& batch) const;
  void compare_mismatched(Drawn& drawn, const at::Tensor& log_probs);
  at::Tensor batch_loss(const models::Head& head, const at::Tensor& rows, Drawn& drawn, double kl,
                        StepSums& sums);
  void add_logits(const at::Tensor& mean_logits, const data::UnpairedMicroBatch& batch,
                  StepSums& sums) const;
  double evaluate_kl(int64_t step, const std::vector<data::UnpairedMicroBatch>& batches,
                     parallel::World& world, StepSums& sums);
  void add_metrics(const StepSums& sums, const std::string& prefix, MetricsRow& row) const;

  RowSource source_;
  const roles::Trainer& student_;
  std::unique_ptr<Reference> reference_;
  Options options_;
  std::deque<DrawnStep> drawn_;
  double kl_ = 0;           // z of the oldest drawn step
  MeanLogits mean_logits_;  // of a step's weights
  uint64_t next_evaluation_request_ = kFirstEvaluationRequest;
};

}  // namespace retort::recipes
