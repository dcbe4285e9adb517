// Training samples of several JSONL sources.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "recipes/data/row_set.h"
#include "recipes/data/sample.h"

namespace retort::data {

// Threads: get() may be called from any thread.
class Dataset : public ItemSet<Sample> {
 public:
  Dataset(std::vector<Source> sources, const DataOptions& options, models::Tokenizer tokenizer,
          models::ChatTemplate chat, const std::filesystem::path& cache);
  std::string fingerprint() const override;
  // Whether rows may be longer than max_length: they go on in the next pack.
  bool wraps() const { return wraps_; }

 private:
  Sample make(const Line& line) const override;

  bool wraps_;
  SampleOptions options_;
};

}  // namespace retort::data
