// Direct preference optimisation and its family: pairs of completions, compared with a frozen
// reference in another process.
//   loss = mean over pairs of sum_i weight_i * loss_i(log pi(chosen) - log pi_ref(chosen), log
//       pi(rejected) - log pi_ref(rejected))
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recipes/data/pair_batches.h"
#include "recipes/losses/preference.h"
#include "recipes/run/loop/mean_logits.h"
#include "recipes/run/loop/objective.h"
#include "recipes/run/rank/request_id.h"
#include "recipes/run/reference/reference.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// For each step the reference's answers of the next `prefetch` steps are already in flight.
// Threads: compute. Collectives: one all-reduce over dp for a step if the loss holds cross-entropy
// on the chosen completions.
class DpoObjective : public Objective {
 public:
  struct Options {
    losses::PreferenceOptions loss;
    // what begin_step computes with; null only where no loss needs counterparts
    const roles::Trainer* student = nullptr;
    int64_t prefetch = 2;
    bool share_prompts = true;  // data::student_sequences
    int64_t dp_rank = 0, dp_size = 1;
  };
  using PairSource = std::function<data::PairBatchStream::Step(int64_t step)>;
  // `reference`: null exactly when no loss needs one.
  DpoObjective(PairSource source, std::unique_ptr<Reference> reference, Options options);
  ~DpoObjective() override;

  int64_t lookahead(int64_t) const override { return reference_ ? options_.prefetch : 0; }
  StepInfo next_step(int64_t step) override;
  std::string origins(size_t index) const override;
  size_t num_values() const override { return kValues; }
  void begin_step(parallel::Group& dp) override;
  const models::PackedTokens& tokens(size_t index) const override {
    return drawn_.front().micro_batches.at(index).shared.tokens;
  }
  at::Tensor loss_sum(const models::Head& head, const at::Tensor& hidden, size_t index,
                      StepSums& sums) override;
  void finish_step(const StepSums& sums, MetricsRow& row) override;

  // Loss and metrics on held-out pairs ("eval_" names), with counterparts among all of them. All
  // ranks call; one all-reduce over dp and pp, two more for counterparts.
  MetricsRow evaluate(int64_t step, const roles::Trainer& student,
                      const std::vector<data::PairMicroBatch>& batches, parallel::World& world);

 private:
  enum Value : size_t {
    kNll,
    kChosenTokens,
    kRewardsChosen,
    kRewardsRejected,
    kMargins,
    kAccuracies,
    kLogpsChosen,
    kLogpsRejected,
    kLogitsChosen,
    kLogitsRejected,
    kRejectedTokens,
    kIdentical,
    kWaitSeconds,
    kValues
  };
  // A micro-batch and its reference's answer on its way (not valid: all its completions are known
  // already).
  struct Drawn {
    data::PairMicroBatch batch;
    data::SharedPrompts shared;  // of the batch: what the student reads
    Reference::Pending pending;
    std::vector<CompletionIds> completions;  // chosen and rejected of each pair, in turn
    // with ld_alpha: what weighted completions are kept by, and the weights of all rows
    std::vector<std::vector<int32_t>> weighted;
    at::Tensor row_weights;
    at::Tensor counterparts;  // if a loss needs them, once begin_step has them
    double waited = 0;        // seconds, in begin_step
  };
  struct DrawnStep {
    std::vector<Drawn> micro_batches;
  };
  void name_completions(Drawn& drawn) const;
  Drawn ask(data::PairMicroBatch batch, uint64_t request_id, int64_t step);
  losses::PreferenceInputs compare(const models::Head& head, const at::Tensor& rows, Drawn& drawn,
                                   double* waited, at::Tensor* logits);
  at::Tensor sums_without_gradient(const roles::Trainer& student, Drawn& drawn);
  std::vector<at::Tensor> find_counterparts(size_t batches,
                                            const std::function<at::Tensor(size_t)>& sums_of,
                                            parallel::Group& ranks) const;
  void count_chosen_tokens(parallel::Group& dp);
  at::Tensor pair_loss(const models::Head& head, const at::Tensor& rows, Drawn& drawn,
                       double nll_scale, StepSums& sums);
  void add_sums(const at::Tensor& mean_logits, const data::PairMicroBatch& batch,
                const losses::PreferenceInputs& inputs, const losses::PreferenceResult& result,
                StepSums& sums);
  void add_metrics(const StepSums& sums, const std::string& prefix, MetricsRow& row) const;

  PairSource source_;
  std::unique_ptr<Reference> reference_;
  Options options_;
  std::deque<DrawnStep> drawn_;
  double nll_scale_ = 0;    // pairs / chosen tokens of the global batch
  MeanLogits mean_logits_;  // of a step's weights
  uint64_t next_evaluation_request_ = kFirstEvaluationRequest;
};

}  // namespace retort::recipes
