// Rollouts on disk, for people to read: generation.save_samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "recipes/document/generation_options.h"
#include "recipes/rollout/rollout.h"
#include "recipes/run/metrics/patient_files.h"

namespace retort::recipes {

// [["model", 12], ["environment", 3], ["model", 7]]: whose the tokens of a completion are, one run
// after the other. Of an episode without its prompt.
std::string spans_json(const models::Completion& completion);

// `<run folder>/samples` of a recipe that saves samples; else empty.
std::filesystem::path samples_folder(const GenerationOptions& generation,
                                     const std::filesystem::path& run_folder);

// The first rank of each replica writes `<folder>/step-<step>-rank-<dp rank>.jsonl`; nothing is
// written where `folder` is empty. A line is one JSON object for each sample: prompt (of an episode
// as its environment had it), completion (as rewards see it), prompt_ids, token_ids (as they were
// drawn), logps, sampling_logps (null: an engine did not say; one of them null: of a token that the
// model did not draw), reward, rewards (by `reward_names`; null: unscorable), of an episode spans
// and episode (its record), finish_reason, sample_id, weight_version; and of the row reference (its
// answer; null: it has none), fields (its other columns) and origin. Written atomically, by
// `files`, which keeps what a full disk has no room for.
void save_samples(PatientFiles& files, const std::filesystem::path& folder, parallel::World& world,
                  const Rollout& rollout, int64_t step,
                  const std::vector<std::string>& reward_names);

}  // namespace retort::recipes
