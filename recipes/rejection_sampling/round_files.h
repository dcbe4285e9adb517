// What a round of rejection sampling leaves in the run's folder: the kept rows and its numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "recipes/data/sample.h"
#include "recipes/rollout/rollout.h"
#include "recipes/run/metrics/metrics_writer.h"

namespace retort::recipes {

// `<run>/kept/round-<n>.jsonl`; the numbers lie beside it, as `round-<n>.metrics`.
std::filesystem::path kept_file(const std::filesystem::path& run_folder, int64_t round);

// `row`, the sample's training_row, in a line of the kept file, without its newline, as
// data::Dataset reads it: input_ids, labels, prompt, completion, reward, round, sample_id, seed,
// weight_version, origin; of an episode spans and episode too (sample_files.h), by which its turns
// are told apart.
std::string kept_line(const data::Sample& row, const RolloutGroup& group,
                      const RolloutSample& sample, int64_t round, uint64_t seed);

// Writes both files of a round, the rows last: rows without their numbers are never found. Each
// appears whole or not at all.
void write_round(const std::filesystem::path& kept, const std::vector<std::string>& lines,
                 const MetricsRow& metrics);

// The numbers of a round that another process has drawn; empty if there are none.
MetricsRow read_round_metrics(const std::filesystem::path& kept);

}  // namespace retort::recipes
