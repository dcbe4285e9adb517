// The rows of a reward model: preference pairs, with a margin and the number they are about.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "recipes/data/preference_dataset.h"
#include "recipes/document/reward_model_options.h"

namespace retort::recipes {

// What a pair says beside its texts.
struct PairTarget {
  double margin = 0;
  int64_t objective = 0;  // which of the head's numbers
};
// Reads the target from the row's columns `margin`, if the options use it, and `objective`.
// kInvalidArgument naming the row for one that is missing, or that is no such number.
PairTarget pair_target(const data::PreferenceSample& pair, const RewardModelOptions& options);

// A pair without a target is a bad row. Threads: as PreferenceDataset.
class RewardPairs : public data::PreferenceDataset {
 public:
  RewardPairs(std::vector<data::Source> sources, const data::DataOptions& options,
              models::Tokenizer tokenizer, models::ChatTemplate chat,
              const std::filesystem::path& cache, const RewardModelOptions& reward_model);

 protected:
  Shaping shaping() const override;
  data::PreferenceSample make(const Line& line) const override;

 private:
  RewardModelOptions reward_model_;
};

}  // namespace retort::recipes
