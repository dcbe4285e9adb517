// Group relative policy optimisation: samples of each prompt are compared with one another, and the
// better ones made more likely.
//   A_i = (r_i - mean of the group) / (std + 1e-4);  loss = clipped policy gradient of A + beta *
//       k3 KL to a reference
#pragma once

#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "recipes/data/index_stream.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/document/grpo_options.h"
#include "recipes/grpo/advantages.h"
#include "recipes/grpo/micro_batch.h"
#include "recipes/grpo/mini_batch_split.h"
#include "recipes/grpo/reference_questions.h"
#include "recipes/grpo/resampler.h"
#include "recipes/grpo/round_metrics.h"
#include "recipes/grpo/step_loss.h"
#include "recipes/rollout/episode_metrics.h"
#include "recipes/rollout/rollout_scorer.h"
#include "recipes/rollout/sample_source.h"
#include "recipes/run/loop/objective.h"
#include "recipes/run/metrics/patient_files.h"
#include "recipes/run/reference/reference.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// A round is one rollout: prompts_per_round prompts with num_generations completions each, shared
// out over num_mini_batches optimizer steps and trained on num_iterations times. With max_staleness
// the rollouts of the next rounds are drawn while this one is trained on, as many as
// GrpoOptions::staleness_left allows; none is drawn across a step that saves a checkpoint, so that
// a resumed run draws with the same weights as one
// that went on.
// Threads: compute. Collectives: votes on the world, those of SampleSource and RolloutScorer, one
// all-gather of rewards (two with normalize_then_sum; as many more for each resampling and with
// kl_in_reward) and one all-reduce over dp for a round; with a reference a vote and a broadcast
// over tp for each micro-batch of a round, where the pipeline ends; with kl_in_reward a broadcast
// over pp; those of GrpoStepLoss; and where the student is asked before a step (old_logps) those of
// student_rows.
class GrpoObjective : public Objective {
 public:
  struct Options {
    GrpoOptions grpo;
    std::vector<double> reward_weights = {};    // with normalize_then_sum
    int64_t num_generations = 8;                // completions of each prompt
    int64_t max_new_tokens = 256;               // of a completion, of an episode behind its prompt
    bool episodes = false;                      // completions are episodes with an environment
    double temperature = 1.0;                   // at which they are drawn
    int64_t num_ids = 0;                        // that they are drawn from (num_drawn_ids)
    int64_t sync_every_steps = 1;               // between pushes of the weights that draw them
    int64_t prompts_per_round = 1;              // of all ranks and mini-batches
    int64_t micro_batches = 1;                  // of a step on each rank
    int64_t rows_per_micro_batch = 8;           // completions
    int64_t save_steps = 0, exit_interval = 0;  // steps after which a checkpoint is saved
    int64_t max_steps = 0, start_step = 0;
    data::Cursor start_cursor;             // where the stream begins
    std::filesystem::path samples_folder;  // where samples are written; empty: nowhere
  };
  // What it draws from, and asks. All but the world and the trainer are its own, or shared with the
  // run's evaluation.
  struct Parts {
    parallel::World& world;
    const roles::Trainer& trainer;
    std::shared_ptr<const data::PromptDataset> prompts;
    std::unique_ptr<data::IndexStream> stream;
    std::shared_ptr<SampleSource> samples;
    std::shared_ptr<RolloutScorer> scorer;
    std::unique_ptr<Reference> reference = nullptr;  // with beta
  };
  GrpoObjective(Parts parts, Options options);
  ~GrpoObjective() override;

  // Requests on their way, for SampleSource::sync.
  std::vector<PendingRollout*> in_flight();
  // Whether the next step pushes the weights that `done` steps have made, or no step follows: who
  // pushes them before then changes nothing that is trained on.
  bool pushes_after(int64_t done) const;

  StepInfo next_step(int64_t step) override;
  void begin_step(parallel::Group& dp) override;
  std::string origins(size_t index) const override;
  size_t num_values() const override { return GrpoStepLoss::num_values(); }
  const models::PackedTokens& tokens(size_t index) const override { return batch(index).tokens; }
  at::Tensor loss_sum(const models::Head& head, const at::Tensor& hidden, size_t index,
                      StepSums& sums) override {
    return loss_.loss_sum(head, hidden, batch(index), sums);
  }
  double divisor(const StepSums& sums) const override { return loss_.divisor(sums); }
  bool loss_falls() const override { return false; }  // advantages are around 0
  void finish_step(const StepSums& sums, MetricsRow& row) override;

 private:
  struct Round {
    int64_t number = 0;
    data::IndexStream::Step rows;
    data::Cursor before;
    PendingRollout pending;
  };
  int64_t last_round_ahead(int64_t round, int64_t done) const;
  bool saves_after(int64_t done) const;
  bool push_is_due(int64_t done) const;
  void request_rounds(int64_t round, int64_t step);
  void prepare(Round round, int64_t step);
  Rollout draw(Round& round, int64_t step);
  std::vector<GrpoMicroBatch> make_batches(const Rollout& rollout, int64_t num_prompts,
                                           const at::Tensor& advantages);
  void remember_old_policy();
  GrpoRewards rewards_of(const Rollout& rollout, const Round& round) const;
  GrpoMicroBatch& batch(size_t index) { return batches_.at(first_batch_ + index); }
  const GrpoMicroBatch& batch(size_t index) const { return batches_.at(first_batch_ + index); }

  parallel::World& world_;
  const roles::Trainer& trainer_;
  std::shared_ptr<const data::PromptDataset> prompts_;
  std::unique_ptr<data::IndexStream> stream_;
  std::shared_ptr<SampleSource> samples_;
  std::shared_ptr<RolloutScorer> scorer_;
  Options options_;
  PatientFiles sample_files_;
  const bool shares_prompts_;  // GrpoMicroBatch::tokens
  BatchSizes sizes_;
  std::unique_ptr<ReferenceQuestions> reference_;  // with beta
  GrpoStepLoss loss_;
  Resampler resampler_;
  data::Cursor drawn_to_;
  std::deque<Round> requested_;
  int64_t next_round_ = 0;
  std::vector<GrpoMicroBatch> batches_;  // of the round that is trained on
  size_t first_batch_ = 0;               // of the step
  StepInfo info_;                        // of its last step
  data::Cursor before_;                  // where the round began
  int64_t num_resampled_ = 0;            // prompts of the round that others stand in for
  RoundMetrics round_metrics_;
  OtherPromptsWarning other_prompts_;
  uint64_t weight_version_ = 0;  // that the round was drawn with
};

}  // namespace retort::recipes
