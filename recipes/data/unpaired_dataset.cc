#include "recipes/data/unpaired_dataset.h"

#include <utility>

namespace retort::data {

UnpairedDataset::UnpairedDataset(std::vector<Source> sources, const DataOptions& options,
                                 models::Tokenizer tokenizer, models::ChatTemplate chat,
                                 const std::filesystem::path& cache)
    : RowSet(std::move(sources), options, std::move(tokenizer), std::move(chat), cache),
      max_length_(options.max_length) {}

std::optional<UnpairedSample> UnpairedDataset::get(int64_t row) const {
  return read<UnpairedSample>(row, [&](const Line& line) {
    return make_unpaired(line.text, line.origin, line.source, line.tokenizer, line.chat,
                         max_length_);
  });
}

bool UnpairedDataset::usable(int64_t row) const { return !skips() || get(row).has_value(); }

std::string UnpairedDataset::fingerprint() const {
  return hash_of("unpaired", "max_length=" + std::to_string(max_length_));
}

}  // namespace retort::data
