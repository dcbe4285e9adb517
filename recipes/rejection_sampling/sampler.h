// Rejection sampling (best-of-n fine-tuning): rounds of generate, score, select, and SFT on what
// was kept.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "recipes/data/index_stream.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/document/rejection_sampling_options.h"
#include "recipes/rejection_sampling/select.h"
#include "recipes/rollout/episode_metrics.h"
#include "recipes/rollout/prompt_sharding.h"
#include "recipes/rollout/rollout_scorer.h"
#include "recipes/rollout/sample_source.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/metrics/patient_files.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// The steps of SFT over all rounds, as a source for SftObjective. The first step of a round
// (steps_per_round steps each) draws and scores completions with the student of now, and writes
// what is kept and the round's numbers (recipes/rejection_sampling/round_files.h). A file that is
// there already is used as it is, so that a run resumed in the middle of a round trains on the same
// rows and shows the same numbers. Threads: compute. Collectives: votes on the world, and gathers
// over dp of what each rank drew, at the first step of a round.
class RejectionSampler {
 public:
  struct Options {
    RejectionSamplingOptions rejection;
    int64_t num_generations = 8;  // completions of each prompt
    int64_t steps_per_round = 1;
    bool episodes = false;  // every sample is one
    uint64_t seed = 0;
    std::filesystem::path run_folder;
    std::filesystem::path samples_folder;  // where samples are written; empty: nowhere
  };
  // Makes the stream over the kept rows of a round (a JSONL file), moved to where `cursor` is.
  using OpenKept = std::function<std::unique_ptr<data::BatchStream>(
      const std::filesystem::path& file, data::Cursor cursor)>;
  RejectionSampler(parallel::World& world, const roles::Trainer& trainer,
                   std::shared_ptr<const data::PromptDataset> prompts,
                   std::unique_ptr<data::IndexStream> order, std::shared_ptr<SampleSource> samples,
                   std::shared_ptr<RolloutScorer> scorer, OpenKept open, Options options);

  // `resumed`: the cursor of the loop's state, for the first step of this process.
  data::BatchStream::Step step(int64_t step, const data::Cursor& resumed);
  void add_metrics(MetricsRow& row) const {
    row.values.insert(row.values.end(), metrics_.values.begin(), metrics_.values.end());
  }

 private:
  // All scored samples of a round, of all ranks, in the same order on each.
  struct Drawn {
    std::vector<Candidate> candidates;
    std::vector<std::string> lines;  // kept_line of each
    int64_t unscorable = 0;
  };
  void draw_round(int64_t round, int64_t step, const std::filesystem::path& file);
  DealtPrompts deal_round(int64_t round);
  Rollout draw(int64_t round, int64_t step);
  Drawn gather(const Rollout& rollout, int64_t round) const;
  // Adds what is said of episodes to the round's numbers. Collectives: add_episode_metrics'.
  void add_episodes(const Rollout& rollout);

  parallel::World& world_;
  const roles::Trainer& trainer_;
  std::shared_ptr<const data::PromptDataset> prompts_;
  std::unique_ptr<data::IndexStream> order_;
  std::shared_ptr<SampleSource> samples_;
  std::shared_ptr<RolloutScorer> scorer_;
  OpenKept open_;
  Options options_;
  PatientFiles sample_files_;
  OtherPromptsWarning other_prompts_;
  int64_t round_ = -1, rounds_drawn_ = 0;
  std::unique_ptr<data::BatchStream> stream_;
  MetricsRow metrics_;
};

}  // namespace retort::recipes
