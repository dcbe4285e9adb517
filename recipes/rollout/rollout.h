// Samples for a training step: prompts go to a generator, what comes back is scored; and the
// generator follows the student. begin(), finish() and sync() are SampleSource's (sample_source.h),
// here as RolloutWorker makes them (rollout_worker.h); RolloutScorer stands before the first two.
//
// On each dp rank of the student, in the order of a step:
//
//   prompts --> begin() --- generator.submit ----> queue --> engine, with weights of version v
//                      <-- generator.collect --- tokens, log-probabilities, finish reasons, of each
//                  |                             sample as soon as it ends
//                  +-----> scoring thread -----> rewards: rules here, a program, a service
//                  |
//               finish()   all samples of the request, with their scores
//                  |
//                  v
//               objective: advantages or kept samples, and the loss --> trainer: version v + 1
//                  |
//                  v
//               sync() ---- weights.bucket ------> beside the weights in use
//                      ---- weights.commit ------> in their place, between two requests
//
// Who waits for whom, at which bound:
//
//   who waits            for what                           at most
//   -------------------  ---------------------------------  --------------------------------------
//   begin()              room in rpc.max_inflight_bytes     rpc.timeout
//   finish()             its samples                        generation.timeout from when they are
//                                                           begun to be drawn
//   finish()             their scores                       two batches, of which each reward takes
//                                                           at most its timeout
//   the scoring thread   samples to score                   the next one, or the end of the run
//   sync(), first of mp  its requests to be queued          rpc.timeout
//   sync(), rank 0       the last version to be in use      generation.timeout from its commit
//   sync(), senders      buckets to arrive                  rpc.timeout; 8 a replica on their way
//   the other ranks      the ranks above, at a vote         the world's timeout: student_timeout()
//                                                           in recipes/run/rank/student_options.h
//   a queued request     the version that it names          generation.timeout of its caller
//   a commit             older requests to be done          generation.timeout of its caller;
//                                                           nothing with in_flight: abort
//   a generator          nobody: the next request after 256 that are not collected is refused
//   grpo's next rounds   the round that is trained on       (max_staleness - (every_steps - 1)) /
//                                                           steps_per_rollout() rounds ahead, none
//                                                           of them past a step that saves
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/generation/request.h"
#include "recipes/data/sample.h"
#include "recipes/rollout/episode_record.h"

namespace retort::recipes {

struct RolloutSample {
  models::Completion completion;  // of an episode without its prompt (models::take_prompt)
  // Of an episode, whose environment wrote it; else empty: the group's.
  std::vector<int32_t> prompt_ids;
  std::string prompt_text;  // of prompt_ids
  // Of an episode, once it was read: by RolloutScorer::finish, or by read_episodes.
  std::optional<EpisodeRecord> episode = std::nullopt;
  uint64_t sample_id = 0;
  uint64_t weight_version = 0;
  std::string text;              // models::completion_text, of an episode's last turn
  std::optional<double> reward;  // nullopt: unscorable, or not scored
  double adjustment = 0;         // that the recipe adds to the reward before samples are compared
  std::vector<std::optional<double>> components;
};
struct RolloutGroup {
  data::PromptSample prompt;
  std::vector<RolloutSample> samples;
};
// What a completion is to its student: of an episode without the prompt that its environment wrote.
// Number, version, text, record and score are left out.
RolloutSample sample_of(models::Completion completion);

// Whether an environment answered in it. Its record may still be unread.
inline bool is_episode(const RolloutSample& sample) { return !sample.completion.episode.empty(); }

// The tokens before a sample's own.
inline const std::vector<int32_t>& prompt_ids_of(const data::PromptSample& prompt,
                                                 const RolloutSample& sample) {
  return is_episode(sample) ? sample.prompt_ids : prompt.prompt_ids;
}

// What the student reads of a sample: its tokens behind its prompt, of which those that the model
// drew are targets. What an environment said between them has no loss.
data::Sample training_row(const data::PromptSample& prompt, const RolloutSample& sample);

// True for an episode that was given up, mostly as its environment failed
// (rewards::Episode::is_lost). Its record must have been read.
bool is_lost(const RolloutSample& sample);

struct Rollout {
  std::vector<RolloutGroup> groups;  // of this rank, in order
  uint64_t weight_version = 0;
  double generation_seconds = 0;   // of the slowest generator
  double wait_seconds = 0;         // that this rank waited for samples
  double reward_seconds = 0;       // that scoring took, where this rank scores
  double reward_wait_seconds = 0;  // that it waited for scores after the last sample was there
};
// Reads the records of episodes that nobody has read yet. kCorrupt: read_episode.
void read_episodes(Rollout& rollout);

}  // namespace retort::recipes
