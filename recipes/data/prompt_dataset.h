// Prompts with their reference answers, for recipes that generate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "recipes/data/row_set.h"
#include "recipes/data/sample.h"

namespace retort::data {

// Every row format that has a prompt serves (make_prompt). A prompt that leaves no room for a
// completion is a bad row: a cut prompt is another question. Threads: get() may be called from any
// thread.
class PromptDataset : public ItemSet<PromptSample> {
 public:
  // It uses the options max_length and on_bad_sample alone. `completion_tokens`: the room that a
  // prompt must leave within max_length; at least 1. `for_episodes`: make_prompt's.
  PromptDataset(std::vector<Source> sources, const DataOptions& options,
                models::Tokenizer tokenizer, models::ChatTemplate chat,
                const std::filesystem::path& cache, int64_t completion_tokens = 1,
                bool for_episodes = false);

 private:
  Shaping shaping() const override;
  PromptSample make(const Line& line) const override;

  const int64_t completion_tokens_;
  const bool for_episodes_;
};

}  // namespace retort::data
