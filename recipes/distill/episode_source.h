// On-policy distillation on whole episodes: what the student and an environment said to each other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "parallel/world.h"
#include "recipes/data/batches.h"
#include "recipes/data/index_stream.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/rollout/sample_source.h"
#include "recipes/run/metrics/metrics_writer.h"
#include "recipes/run/metrics/patient_files.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// Reads the records of episodes, and gives each that was not lost the reward of its environment, if
// that gave one.
void take_own_rewards(Rollout& rollout);

// `count` micro-batches of at most `rows_per_micro_batch` episodes, in the order of the rollout,
// whose records were read. One that was lost, or in which the student said nothing, is left out of
// its micro-batch, so that no other moves to another one.
std::vector<data::MicroBatch> episode_batches(const Rollout& rollout, int64_t rows_per_micro_batch,
                                              int64_t count);

// A source of steps whose samples are episodes, one for each prompt, of the student of now. Its own
// tokens are the targets; what the environment said between them is read by student and teachers,
// and has no loss. The last step of an epoch has the prompts that are left.
//
// Errors: kUnavailable for a step in which no episode is left to learn from.
// Threads: compute. Collectives, the same on every rank: a vote on the world around those of
//   SampleSource, then an all-reduce and add_episode_metrics' on dp.
class EpisodeSource {
 public:
  struct Options {
    int64_t rows_per_micro_batch = 8;      // per_device_train_batch_size: episodes
    int64_t micro_batches = 1;             // gradient_accumulation_steps
    std::filesystem::path samples_folder;  // where samples are written; empty: nowhere
  };
  EpisodeSource(parallel::World& world, const roles::Trainer& trainer,
                std::shared_ptr<const data::PromptDataset> prompts,
                std::unique_ptr<data::IndexStream> order, std::shared_ptr<SampleSource> samples,
                Options options);
  data::BatchStream::Step operator()(int64_t step);

  // Adds what is said of the episodes of the step that was drawn last: those of
  // add_episode_metrics, lengths in tokens of the student, the mean reward of the environment where
  // it gives one, and times.
  void add_metrics(MetricsRow& row) const;

 private:
  Rollout draw(const data::IndexStream::Step& rows, int64_t step);
  MetricsRow metrics_of(const Rollout& rollout, int64_t step);

  parallel::World& world_;
  const roles::Trainer& trainer_;
  std::shared_ptr<const data::PromptDataset> prompts_;
  std::unique_ptr<data::IndexStream> order_;
  std::shared_ptr<SampleSource> samples_;
  const Options options_;
  PatientFiles sample_files_;
  MetricsRow metrics_;
};

}  // namespace retort::recipes
