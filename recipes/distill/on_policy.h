// On-policy distillation (GKD, arXiv 2306.13649): some or all batches hold the student's own
// completions of the batch's prompts.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "models/text/tokenizer.h"
#include "parallel/world.h"
#include "recipes/distill/draw_ahead.h"
#include "recipes/distill/two_tokenizers.h"
#include "recipes/document/recipe.h"
#include "recipes/losses/policy.h"
#include "recipes/rollout/sample_source.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/metrics/metrics_writer.h"
#include "recipes/run/metrics/patient_files.h"
#include "roles/teacher/frozen_answers.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// Whether `step` is on-policy: a draw from (seed, step) alone, so that every rank, and a resumed
// run, draws alike. lmbda 0: never; 1: always.
bool is_on_policy(uint64_t seed, int64_t step, double lmbda);
// The same for the steps of a recipe with `distill`.
std::function<bool(int64_t step)> on_policy_steps(const Recipe& recipe);

// A source of steps. In an on-policy step each sample of the data's batch keeps its tokens before
// the last run of targets, in a conversation all but its last answer, and gets a completion of the
// student of now, or of some steps ago (DrawAhead), whose tokens are the targets; a prompt whose
// completion is empty is left out. The loss is divided by the tokens that were generated.
// Threads: compute. Collectives: those of SampleSource.
class OnPolicySource {
 public:
  struct Options {
    double lmbda = 1.0;
    uint64_t seed = 0;
    int64_t max_length = 1024;             // of a prompt with its completion
    int64_t max_new_tokens = 256;          // of a completion
    std::filesystem::path samples_folder;  // where samples are written; empty: nowhere
    // Writes the prompts and references of those samples, whose rows are ids here.
    std::optional<models::Tokenizer> tokenizer{};
    // With a teacher of another tokenizer, which reads the completions too; null: none.
    std::shared_ptr<const TwoTokenizers> both{};
    DrawAhead draws{};
  };
  OnPolicySource(parallel::World& world, const roles::Trainer& trainer, StepSource data,
                 std::shared_ptr<SampleSource> samples, Options options);
  // Each step once, in order; the first one is the run's first.
  data::BatchStream::Step operator()(int64_t step);
  // Adds what is said of the samples of the row's step, where it was on-policy: how long they took,
  // and with max_staleness how old the weights were that drew them.
  void add_metrics(MetricsRow& row);

 private:
  struct Begun {
    int64_t step = 0;
    data::BatchStream::Step batches;
    std::optional<PendingRollout> pending;  // none: the data's own
  };
  void begin(int64_t step, int64_t done);
  std::vector<PendingRollout*> in_flight();
  RolloutRequest request_of(const data::BatchStream::Step& batches, int64_t step) const;
  void take_completions(const Rollout& rollout, data::BatchStream::Step& batches) const;

  parallel::World& world_;
  const roles::Trainer& trainer_;
  StepSource data_;
  std::shared_ptr<SampleSource> samples_;
  Options options_;
  PatientFiles sample_files_;
  int64_t next_ = 0;         // to be begun; 0: none was
  std::deque<Begun> begun_;  // oldest first
  struct Drawn {
    uint64_t weight_version = 0;
    double generation_seconds = 0, wait_seconds = 0;
  };
  std::map<int64_t, Drawn> drawn_;  // of the steps that are drawn and not computed yet
};

// Reverse KL on the sampled tokens as a policy gradient: each token's advantage is log q_teacher -
// log p_student, so what crosses the wire is one number for each token. Reported as `reverse_kl`
// (the k1 estimate) and `kd_loss` (the same). Of a teacher with another tokenizer the two are
// compared span by span (losses::span_advantages), the signs that end turns among the spans.
class SampledTokenObjective : public BatchObjective {
 public:
  struct Options {
    double temperature = 1.0;
    int64_t num_ids = 0;  // that completions are drawn from (num_drawn_ids)
    int64_t dp_rank = 0, dp_size = 1;
    bool asks = true;  // false: this rank is not where the pipeline ends, so it needs no teacher
    std::shared_ptr<const TwoTokenizers> both{};  // null: the teacher has the student's tokenizer
    DrawAhead draws{};
    // Of tokens that older weights have drawn.
    losses::SamplingCorrection sampling_correction = losses::SamplingCorrection::kNone;
    double importance_sampling_cap = 3.0;
  };
  SampledTokenObjective(StepSource source, std::unique_ptr<roles::FrozenAnswers> teacher,
                        Options options);
  ~SampledTokenObjective() override;
  size_t num_values() const override { return kValues; }
  bool loss_falls() const override { return false; }
  int64_t lookahead(int64_t step) const override { return options_.draws.asked(step); }

 protected:
  void announce(int64_t step, const data::BatchStream::Step& batches) override;
  at::Tensor batch_loss(const models::Head& head, const at::Tensor& rows,
                        const data::MicroBatch& batch, StepSums& sums) override;
  void add_metrics(const StepSums& sums, MetricsRow& row) override;

 private:
  enum Value : size_t {
    kReverseKl,
    kEntropy,
    kAlignedTokens,
    kUnaligned,
    kWaitSeconds,
    kDifference,
    kRatio,
    kRatios,
    kValues
  };
  // A micro-batch that was announced. With another tokenizer: what stands for the same bytes.
  struct Asked {
    std::optional<roles::PendingPayload> pending;  // none where there is nothing to ask
    std::vector<losses::TokenGroup> spans;
    int64_t num_unaligned = 0;  // AlignedBatch's
  };
  Asked ask(const data::MicroBatch& batch, uint64_t request, int64_t step);
  // The advantages of the drawn tokens.
  at::Tensor advantages(Asked asked, const at::Tensor& log_probs, StepSums& sums);

  std::unique_ptr<roles::FrozenAnswers> teacher_;
  Options options_;
  std::deque<Asked> in_flight_;
};

}  // namespace retort::recipes
