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
  // Of the options max_length and on_bad_sample are used.
  PromptDataset(std::vector<Source> sources, const DataOptions& options,
                models::Tokenizer tokenizer, models::ChatTemplate chat,
                const std::filesystem::path& cache);
  // nullopt for a bad row when on_bad_sample is skip; kInvalidArgument naming file and line
  // otherwise. A prompt of max_length tokens or more is a bad row: it leaves no room for a
  // completion, and a cut prompt is another question.
  std::optional<PromptSample> get(int64_t row) const;
  bool usable(int64_t row) const override;
  std::string fingerprint() const override;

 private:
  int64_t max_length_;
};

}  // namespace retort::data
