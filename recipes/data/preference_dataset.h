#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "recipes/data/preference.h"
#include "recipes/data/row_set.h"

namespace retort::data {

// It uses the options max_length, truncation_mode and on_bad_sample alone. Threads: get() may be
// called from any thread.
class PreferenceDataset : public ItemSet<PreferenceSample> {
 public:
  PreferenceDataset(std::vector<Source> sources, const DataOptions& options,
                    models::Tokenizer tokenizer, models::ChatTemplate chat,
                    const std::filesystem::path& cache)
      : ItemSet(std::move(sources), options, std::move(tokenizer), std::move(chat), cache),
        truncation_(options.truncation_mode) {}

 protected:
  Shaping shaping() const override;
  PreferenceSample make(const Line& line) const override;

 private:
  TruncationMode truncation_;
};

}  // namespace retort::data
