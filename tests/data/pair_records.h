// Pair datasets whose rows a test can recognise.
#pragma once

#include <string>
#include <vector>

#include "recipes/data/preference_dataset.h"
#include "tests/data/word_tokenizer.h"

namespace retort::test {

// Row `id` has the field id, a prompt of `prompt` words, completions of `length` words and one more
// or less.
inline std::string pair_row(int64_t id, int64_t prompt, int64_t length) {
  const auto words = [](int64_t count) {
    std::string text;
    for (int64_t i = 0; i < count; ++i)
      text += " w" + std::to_string(i % kNumWords);
    return text;
  };
  return "{\"prompt\":\"" + words(prompt) + "\",\"chosen\":\"" + words(length + 1) +
         "\",\"rejected\":\"w7" + words(length - 1) + "\",\"id\":" + std::to_string(id) + "}\n";
}
inline int64_t pair_id(const data::PreferenceSample& pair) {
  return std::stoll(pair.fields.at(0).second);
}

// One source; every `bad_every`-th row is malformed (0: none).
inline std::shared_ptr<const data::PreferenceDataset> pair_dataset(
    const TemporaryFolder& folder, const std::vector<int64_t>& lengths, int64_t bad_every = 0,
    data::DataOptions options = {}) {
  std::string rows;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    rows += bad_every > 0 && id % bad_every == bad_every - 1 ? "bad\n"
                                                             : pair_row(id, 2 + id % 3, lengths[i]);
  }
  if (bad_every > 0) options.on_bad_sample = data::OnBadSample::kSkip;
  const data::Source source{.path = folder.write("pairs.jsonl", rows).string()};
  return std::make_shared<data::PreferenceDataset>(std::vector<data::Source>{source}, options,
                                                   word_tokenizer(folder.path()), chat_template(),
                                                   folder.path() / "cache");
}

}  // namespace retort::test
