// Several JSONL sources as one indexed set of samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recipes/data/jsonl.h"
#include "recipes/data/sample.h"

namespace retort::data {

// Samples are made on demand; a fixed sample order (source by source) is the identity of the set.
// Threads: get() may be called from any thread.
class Dataset {
 public:
  Dataset(std::vector<Source> sources, const DataOptions& options, models::Tokenizer tokenizer, models::ChatTemplate chat,
          const std::filesystem::path& cache);
  int64_t size() const;  // rows of all sources
  int64_t num_sources() const;
  int64_t source_size(int64_t source) const;
  double source_weight(int64_t source) const;
  // nullopt for a bad row when on_bad_sample is skip (counted in num_skipped()); kInvalidArgument
  // naming file and line otherwise.
  std::optional<Sample> get(int64_t row) const;
  int64_t num_skipped() const;            // distinct bad rows met so far by this object
  std::string first_skip_reason() const;  // "" if none
  std::string fingerprint() const;        // of files, columns, tokenizer, template and the options that shape samples

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace retort::data
