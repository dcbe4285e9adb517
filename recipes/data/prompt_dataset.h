// Prompts with their reference answers, for recipes that generate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "recipes/data/row_set.h"
#include "recipes/data/sample.h"

namespace retort::data {

// Every row format that has a prompt serves (make_prompt). Threads: get() may be called from any
// thread.
class PromptDataset : public RowSet {
 public:
  // Of the options max_length and on_bad_sample are used. `completion_tokens`: the room that a
  // prompt must leave within max_length; at least 1.
  PromptDataset(std::vector<Source> sources, const DataOptions& options,
                models::Tokenizer tokenizer, models::ChatTemplate chat,
                const std::filesystem::path& cache, int64_t completion_tokens = 1);
  // nullopt for a bad row when on_bad_sample is skip; kInvalidArgument naming file and line
  // otherwise. A prompt that leaves no room for a completion is a bad row: a cut prompt is another
  // question.
  std::optional<PromptSample> get(int64_t row) const;
  bool usable(int64_t row) const override;
  std::string fingerprint() const override;

 private:
  int64_t max_length_;
  int64_t completion_tokens_;
};

}  // namespace retort::data
