// Distillation from a teacher with another tokenizer: distributions of student and teacher where
// both end a token at the same byte, sorted (ULD) or matched by name (GOLD; docs/losses.md).
//   loss = (1 - kd_ratio) * CE + kd_ratio * mean over samples of the mean over groups of D
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/world.h"
#include "recipes/distill/draw_ahead.h"
#include "recipes/distill/two_tokenizers.h"
#include "recipes/losses/linear_uld.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/metrics/rpc_metrics.h"
#include "roles/teacher/frozen_answers.h"
#include "roles/trainer/trainer.h"
#include "rpc/agent.h"

namespace retort::recipes {

// The teacher is asked in its own ids, for every target of its reading of a micro-batch. As with
// DistillObjective the requests of the next `prefetch` steps are in flight. The loss is divided by
// the samples of the step, the cross-entropy's share by its target tokens, as in TRL's ULDLoss.
// Threads: compute. Collectives: an all-reduce on dp before the first loss of a step whose
// cross-entropy counts; those of losses::unread_uld.
class CrossTokenizerObjective : public BatchObjective {
 public:
  struct Options {
    losses::UldOptions uld;  // kd_weight and ce_weight follow from kd_ratio
    double kd_ratio = 1.0;
    // Whether the student itself drew the targets of a step, whose kd_ratio is 1. Null: never.
    std::function<bool(int64_t step)> is_on_policy;
    int64_t prefetch = 2;  // steps whose answers may be in flight beyond the current one
    std::optional<DrawAhead> draws = std::nullopt;  // instead: of batches that the student draws
    int64_t dp_rank = 0, dp_size = 1;
    bool asks = true;  // false: this rank is not where the pipeline ends, so it needs no teacher
  };
  CrossTokenizerObjective(StepSource source, rpc::Agent& agent,
                          std::unique_ptr<roles::FrozenAnswers> teacher,
                          std::shared_ptr<const TwoTokenizers> both, Options options);
  ~CrossTokenizerObjective() override;

  int64_t lookahead(int64_t step) const override {
    return options_.draws ? options_.draws->asked(step) : options_.prefetch;
  }
  size_t num_values() const override { return kValues; }
  // The distance of two sorted distributions is at most 2.
  bool loss_falls() const override { return options_.kd_ratio < 1; }
  void begin_step(parallel::Group& dp) override;

  // As DistillObjective::evaluate(): adds eval_kd_loss, the mean over the samples of the batches.
  void evaluate(const roles::Trainer& student, const std::vector<data::MicroBatch>& batches,
                parallel::World& world, MetricsRow& row);

 protected:
  void announce(int64_t step, const data::BatchStream::Step& batches) override;
  at::Tensor batch_loss(const models::Head& head, const at::Tensor& rows,
                        const data::MicroBatch& batch, StepSums& sums) override;
  void add_metrics(const StepSums& sums, MetricsRow& row) override;

 private:
  enum Value : size_t {
    kKd,
    kOneToOne,
    kMerged,
    kMatched,
    kUnmatched,
    kCe,
    kEntropy,
    kGroups,
    kOneToOneGroups,
    kMergedGroups,
    kAlignedTokens,
    kTargets,
    kUnaligned,
    kWaitSeconds,
    kBytes,
    kValues
  };
  // A micro-batch on both sides, and the teacher's answer where there is anything to ask.
  struct Asked {
    AlignedBatch aligned;
    roles::PendingPayload pending;
    bool is_sent = false;
  };
  // What a step's cross-entropy is weighted by.
  struct StepWeights {
    double samples = 0, targets = 0;  // of this rank
    bool is_on_policy = false;
  };
  Asked ask(const data::MicroBatch& batch, uint64_t request_id, int64_t step);
  // Waits for the answer; adds its numbers to `sums`.
  at::Tensor loss_of(Asked asked, const models::Head& head, const at::Tensor& rows,
                     const at::Tensor& targets, const losses::UldOptions& uld, StepSums& sums);
  losses::TeacherSignal receive(Asked& asked, const at::Device& device, StepSums& sums);

  PeerMetrics peers_;
  std::unique_ptr<roles::FrozenAnswers> teacher_;
  std::shared_ptr<const TwoTokenizers> both_;
  Options options_;
  at::Tensor head_;                // the teacher's, where the student computes
  std::deque<Asked> in_flight_;    // one for each announced micro-batch, oldest first
  std::deque<StepWeights> steps_;  // one for each announced step
  losses::UldOptions uld_;         // of the step that is computed
};

}  // namespace retort::recipes
