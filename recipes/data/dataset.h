// Training samples of several sources.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "recipes/data/row_set.h"
#include "recipes/data/sample.h"

namespace retort::data {
namespace detail {
class TokenFile;
}

// Another tokenizer by which rows are read beside the student's (Sample::reading).
struct RowReader {
  models::Tokenizer tokenizer;
  models::ChatTemplate chat;
  int64_t max_length = 0;  // a row that has more tokens there is a bad row; 0: any length
};

// A demand of a recipe on its samples beside their targets.
struct SampleRule {
  // kInvalidArgument naming the sample's origin for one that is a bad row; null: none is.
  std::function<void(const Sample&)> require;
  // For the fingerprint, behind a space: the options by which it judges.
  std::string shaping;
  // Who else reads the rows; null: nobody.
  std::shared_ptr<const RowReader> reader;
};

// With data.tokenized_cache and a `cache` (that is, in a run) the tokens of all rows are in a file
// of that folder, which the first process that wants them makes: the samples are the same.
// Threads: get() may be called from any thread.
class Dataset : public ItemSet<Sample> {
 public:
  Dataset(std::vector<Source> sources, const DataOptions& options, models::Tokenizer tokenizer,
          models::ChatTemplate chat, const std::filesystem::path& cache, SampleRule rule = {});
  // True if rows may be longer than max_length: they go on in the next pack.
  bool wraps() const { return wraps_; }
  // After this call messages rows, too, say whether their prompt alone has other tokens
  // (SampleOptions::compare_prompts). Not while other threads read.
  void compare_prompts() { options_.compare_prompts = true; }

 private:
  Sample make(const Line& line) const override;
  Shaping shaping() const override;
  Sample tokenized(const Line& line) const;
  Reading read_by_other(const Line& line) const;
  void open_tokens(const std::filesystem::path& folder);

  bool wraps_;
  SampleOptions options_;
  SampleRule rule_;
  std::shared_ptr<const detail::TokenFile> tokens_;  // null: rows are tokenised as they are read
};

}  // namespace retort::data
