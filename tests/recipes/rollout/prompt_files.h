// Prompts on disk that a recipe's test reads as a run does, and answers to them by rule.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/generation/request.h"
#include "recipes/data/index_stream.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/rewards/reward.h"
#include "tests/data/word_tokenizer.h"

namespace retort::test {

// Prompt i is words i, i + 1, ... in line i + 1 of the file, 2 to 4 and `more_words`; its words
// have ids below 67, which roles::nano_model has.
class PromptFiles {
 public:
  explicit PromptFiles(int64_t num_prompts, int64_t more_words = 0)
      : tokenizer_(word_tokenizer(path())) {
    std::string lines;
    for (int64_t i = 0; i < num_prompts; ++i) {
      std::string words;
      for (int64_t w = i; w < i + 2 + i % 3 + more_words; ++w)
        words += (words.empty() ? "w" : " w") + std::to_string(w);
      lines += R"({"prompt": ")" + words + R"(", "completion": "w0"})" + "\n";
    }
    prompts_ = std::make_shared<data::PromptDataset>(
        std::vector<data::Source>{{.path = folder_.write("prompts.jsonl", lines).string()}},
        data::DataOptions{.max_length = 32}, tokenizer_, chat_template(), cache());
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path cache() const { return path() / "cache"; }
  const models::Tokenizer& tokenizer() const { return tokenizer_; }
  const std::shared_ptr<data::PromptDataset>& prompts() const { return prompts_; }
  // In the order of the file.
  std::unique_ptr<data::IndexStream> order(const data::Cursor& from = {}) const {
    return std::make_unique<data::IndexStream>(
        prompts_, data::IndexOptions{.seed = 1, .shuffle = false}, from);
  }

 private:
  TemporaryFolder folder_;
  models::Tokenizer tokenizer_;
  std::shared_ptr<data::PromptDataset> prompts_;
};

inline constexpr uint64_t kLongestAnswer = 6;

// Between 1 and kLongestAnswer tokens, by the number of the sample alone. The log-probabilities are
// near those of a model that knows nothing, log(1 / 67) = -4.2, but no model's.
inline models::Completion numbered_answer(uint64_t sample_id) {
  models::Completion completion;
  const uint64_t length = 1 + (7 * sample_id + sample_id / 4) % kLongestAnswer;
  for (uint64_t i = 0; i < length; ++i) {
    completion.token_ids.push_back(word(static_cast<int32_t>((7 * sample_id + 3 * i) % 50)));
    completion.sampling_logps.push_back(
        static_cast<float>(-4.2 + 0.8 * std::sin(static_cast<double>(sample_id + 2 * i))));
  }
  completion.logps = completion.sampling_logps;
  completion.finish_reason =
      length == kLongestAnswer ? models::FinishReason::kLength : models::FinishReason::kEos;
  return completion;
}

// 1 for at least three tokens, 0.5 for a single one, 0 for two.
inline std::vector<rewards::RewardOptions> length_rewards() {
  return {{.type = rewards::RewardType::kLength, .weight = 1.0, .name = "long", .min = 3},
          {.type = rewards::RewardType::kLength, .weight = 0.5, .name = "single", .max = 1}};
}
inline double length_reward(const models::Completion& completion) {
  const size_t length = completion.token_ids.size();
  return (length >= 3 ? 1.0 : 0.0) + (length <= 1 ? 0.5 : 0.0);
}

}  // namespace retort::test
