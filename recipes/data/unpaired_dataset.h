// Judged completions of several JSONL sources.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "recipes/data/row_set.h"
#include "recipes/data/unpaired.h"

namespace retort::data {

// Threads: get() may be called from any thread.
class UnpairedDataset : public RowSet {
 public:
  // Of the options max_length and on_bad_sample are used.
  UnpairedDataset(std::vector<Source> sources, const DataOptions& options,
                  models::Tokenizer tokenizer, models::ChatTemplate chat,
                  const std::filesystem::path& cache);
  // nullopt for a bad row when on_bad_sample is skip; kInvalidArgument naming file and line
  // otherwise.
  std::optional<UnpairedSample> get(int64_t row) const;
  bool usable(int64_t row) const override;
  std::string fingerprint() const override;
  int64_t max_length() const { return max_length_; }

 private:
  int64_t max_length_;
};

}  // namespace retort::data
