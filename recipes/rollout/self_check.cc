#include "recipes/rollout/self_check.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "models/generation/engine.h"
#include "recipes/data/batches.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rewards/reward.h"
#include "recipes/rollout/prompts.h"
#include "recipes/sft/self_check.h"

namespace retort::recipes {
namespace {

constexpr int64_t kDrawnTokens = 8;

// The rewards that compare with a reference, under the names that the run gives them.
std::vector<rewards::RewardOptions> comparing_rewards(const Recipe& recipe) {
  const rewards::RewardSet all(recipe.rewards, /*scores=*/false);
  std::vector<rewards::RewardOptions> comparing;
  for (size_t i = 0; i < recipe.rewards.size(); ++i) {
    rewards::RewardOptions reward = recipe.rewards[i];
    if (reward.type != rewards::RewardType::kExactMatch &&
        reward.type != rewards::RewardType::kNumeric)
      continue;
    reward.name = all.names()[i];
    reward.weight = 1;  // one that is only shown fails as well
    comparing.push_back(std::move(reward));
  }
  return comparing;
}

// Throws where the reference of one is missing or is none for a reward.
class References {
 public:
  explicit References(const Recipe& recipe) {
    auto comparing = comparing_rewards(recipe);
    if (!comparing.empty()) rewards_.emplace(std::move(comparing));
  }

  void require(const data::PromptSample& prompt) {
    if (!rewards_) return;
    rewards_->score({{.prompt = prompt.prompt_text,
                      .completion = prompt.reference,
                      .reference = prompt.reference,
                      .fields = prompt.fields,
                      .origin = prompt.origin}});
  }

  std::string names() const {
    std::string text;
    if (rewards_)
      for (const std::string& name : rewards_->names())
        text += (text.empty() ? "" : ", ") + name;
    return text;
  }

 private:
  std::optional<rewards::RewardSet> rewards_;
};

struct PromptCounts {
  int64_t rows = 0, usable = 0, longest = 0;

  std::string text(const std::string& key, const Recipe& recipe) const {
    std::string text =
        std::to_string(usable) + " of " + std::to_string(rows) + " rows of " + key + " can be used";
    if (usable == 0) return text;
    const int64_t completion = recipe.generation->max_new_tokens;
    return text + "; the longest has " + std::to_string(longest) + " tokens, " +
           std::to_string(longest + completion) + " with a completion of " +
           std::to_string(completion) + ", of data.max_length " +
           std::to_string(recipe.data.max_length);
  }
};

// Reads every row, as no run of a few steps would; returns the first prompt.
data::PromptSample check_rows(SelfCheck& check, const Recipe& recipe, const std::string& key,
                              const std::vector<data::Source>& sources) {
  const models::LoadedModel& student = check.student();
  const auto dataset = open_prompts(recipe, sources, student.tokenizer, student.chat, /*cache=*/"");
  References references(recipe);
  PromptCounts counts{.rows = dataset->size()};
  std::optional<data::PromptSample> first;
  for (int64_t row = 0; row < counts.rows; ++row) {
    const auto prompt = dataset->get(row);
    if (!prompt) continue;
    references.require(*prompt);
    ++counts.usable;
    counts.longest = std::max(counts.longest, static_cast<int64_t>(prompt->prompt_ids.size()));
    if (!first) first = prompt;
  }

  check.check("prompts", first.has_value(), counts.text(key, recipe));
  if (const std::string names = references.names(); !names.empty())
    check.check("references", true, "every prompt has one for " + names);
  return *first;
}

// A completion as the trainer gets it, with the log-probability that the generator gave each token.
struct Drawn {
  data::MicroBatch batch;
  std::vector<float> log_probs;
};

Drawn draw(const models::Decoder& decoder, const data::PromptSample& prompt, int64_t max_tokens) {
  const int64_t max_length = static_cast<int64_t>(prompt.prompt_ids.size()) + max_tokens;
  const int64_t block = models::EngineOptions{}.block_tokens;
  models::Engine engine(decoder, {.num_blocks = (max_length + block - 1) / block});
  models::Completion completion =
      engine
          .run({.prompts = {prompt.prompt_ids},
                .draw = {.sampling = {.temperature = 0}, .max_new_tokens = max_tokens}})
          .at(0);

  data::Sample sample{.input_ids = prompt.prompt_ids, .origin = prompt.origin};
  sample.is_target.resize(sample.input_ids.size(), 0);
  sample.input_ids.insert(sample.input_ids.end(), completion.token_ids.begin(),
                          completion.token_ids.end());
  sample.is_target.resize(sample.input_ids.size(), 1);
  return {.batch = data::make_micro_batch({std::move(sample)}),
          .log_probs = std::move(completion.logps)};
}

void check_drawn(SelfCheck& check, const std::string& origin, const CheckedRows& rows,
                 const Drawn& drawn) {
  const c10::NoGradGuard no_grad;
  const at::Tensor trained =
      losses::linear_log_probs(rows.hidden, rows.weight, {}, drawn.batch.targets).log_probs;
  double error = 0;
  for (size_t i = 0; i < drawn.log_probs.size(); ++i)
    error = std::max(error, std::abs(trained[static_cast<int64_t>(i)].item<double>() -
                                     static_cast<double>(drawn.log_probs[i])));
  check.check("drawn and trained", error < 1e-3,
              origin + ": log p of " + std::to_string(drawn.log_probs.size()) +
                  " tokens as generator and trainer compute it: difference " + scientific(error));
}

}  // namespace

void check_prompts(SelfCheck& check, const Recipe& recipe) {
  const data::PromptSample prompt = check_rows(check, recipe, "data.train", recipe.data.train);
  if (!recipe.data.eval.empty()) check_rows(check, recipe, "data.eval", recipe.data.eval);

  const c10::NoGradGuard no_grad;
  const models::Decoder& decoder = check.student().decoder;
  const Drawn drawn =
      draw(decoder, prompt, std::min(kDrawnTokens, recipe.generation->max_new_tokens));
  const CheckedRows rows = rows_of(decoder, drawn.batch);
  check_drawn(check, prompt.origin, rows, drawn);
  check_cross_entropy(check, rows, drawn.batch.targets);
}

}  // namespace retort::recipes
