// Training samples of several JSONL sources.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "recipes/data/row_set.h"
#include "recipes/data/sample.h"

namespace retort::data {

// Samples are made on demand. Threads: get() may be called from any thread.
class Dataset : public RowSet {
 public:
  Dataset(std::vector<Source> sources, const DataOptions& options, models::Tokenizer tokenizer,
          models::ChatTemplate chat, const std::filesystem::path& cache);
  // nullopt for a bad row when on_bad_sample is skip (counted in num_skipped()); kInvalidArgument
  // naming file and line otherwise.
  std::optional<Sample> get(int64_t row) const;
  bool usable(int64_t row) const override;
  std::string fingerprint() const override;

 private:
  SampleOptions options_;
};

}  // namespace retort::data
