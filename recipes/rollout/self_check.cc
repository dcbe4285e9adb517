#include "recipes/rollout/self_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/generation/engine.h"
#include "recipes/data/batches.h"
#include "recipes/data/completion_sample.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rollout/draw_options.h"
#include "recipes/rollout/drawn_ids.h"
#include "recipes/rollout/prompts.h"
#include "recipes/rollout/reward_check.h"
#include "recipes/run/rows/row_warnings.h"
#include "recipes/sft/self_check.h"

namespace retort::recipes {
namespace {

constexpr int64_t kDrawnTokens = 8;
constexpr size_t kShownPrompts = 4;

struct PromptCounts {
  int64_t rows = 0, usable = 0, longest = 0;
  std::string longest_origin;

  std::string text(const std::string& key, const Recipe& recipe) const {
    std::string text =
        std::to_string(usable) + " of " + std::to_string(rows) + " rows of " + key + " can be used";
    if (usable == 0) return text;
    const int64_t completion = recipe.longest_completion();
    return text + "; the longest has " + std::to_string(longest) + " tokens, " +
           std::to_string(longest + completion) + " with a completion of " +
           std::to_string(completion) + ", of data.max_length " +
           std::to_string(recipe.data.max_length);
  }
};

// Reads every row, as no run of a few steps would; returns the first prompts.
std::vector<data::PromptSample> check_rows(SelfCheck& check, const Recipe& recipe,
                                           const std::string& key,
                                           const std::vector<data::Source>& sources) {
  const models::LoadedModel& student = check.student();
  const auto dataset = open_prompts(recipe, sources, student.tokenizer, student.chat, /*cache=*/"");
  References references(recipe);
  PromptCounts counts{.rows = dataset->size()};
  std::vector<data::PromptSample> first;
  for (int64_t row = 0; row < counts.rows; ++row) {
    const auto prompt = dataset->get(row);
    if (!prompt) continue;
    references.require(*prompt);
    ++counts.usable;
    const auto length = static_cast<int64_t>(prompt->prompt_ids.size());
    if (length > counts.longest) counts.longest_origin = prompt->origin;
    counts.longest = std::max(counts.longest, length);
    if (first.size() < kShownPrompts) first.push_back(*prompt);
  }

  check.check("prompts", !first.empty(), counts.text(key, recipe));
  if (const auto beyond = beyond_positions(counts.longest + recipe.longest_completion(),
                                           counts.longest_origin + " with a completion",
                                           student.decoder.config().max_position_embeddings))
    check.warn("prompts", *beyond);
  if (const std::string names = references.names(); !names.empty())
    check.check("references", true, "every prompt has one for " + names);
  return first;
}

// The beginning of a completion as the trainer gets it, and as the generator reported it.
struct Begun {
  data::MicroBatch batch;
  models::Completion completion;
};

Begun begin_completion(const SelfCheck& check, const data::PromptSample& prompt,
                       models::DrawOptions draw) {
  const models::Decoder& decoder = check.student().decoder;
  draw.max_new_tokens = std::min(kDrawnTokens, draw.max_new_tokens);
  draw.min_new_tokens = std::min(draw.min_new_tokens, draw.max_new_tokens);
  const int64_t max_length = static_cast<int64_t>(prompt.prompt_ids.size()) + draw.max_new_tokens;
  const int64_t block = models::EngineOptions{}.block_tokens;
  models::Engine engine(
      decoder, {.num_blocks = (max_length + block - 1) / block},
      [&](std::span<const int32_t> ids) { return check.student().tokenizer.decode(ids, true); });
  models::Completion completion =
      engine.run({.prompts = {prompt.prompt_ids}, .draw = std::move(draw)}).at(0);
  return {.batch = data::make_micro_batch({data::completion_sample(prompt, completion.token_ids)}),
          .completion = std::move(completion)};
}

// Returns how far two computations of the same log-probabilities are apart.
double difference(const at::Tensor& trained, const std::vector<float>& reported) {
  return (trained - at::tensor(reported, at::kFloat)).abs().max().item<double>();
}

// `bias`: of the head, may be undefined.
at::Tensor log_probs(const CheckedRows& rows, const data::MicroBatch& batch, double temperature,
                     const at::Tensor& bias) {
  return losses::linear_log_probs(rows.hidden, rows.weight, bias, batch.targets,
                                  {.temperature = temperature})
      .log_probs;
}

// Draws greedily and compares at temperature 1 over the whole vocabulary, which any generator can
// report.
std::vector<int32_t> check_greedy(SelfCheck& check, const data::PromptSample& prompt) {
  const models::Decoder& decoder = check.student().decoder;
  const Begun begun = begin_completion(
      check, prompt, {.sampling = {.temperature = 0}, .max_new_tokens = kDrawnTokens});
  const CheckedRows rows = rows_of(decoder, begun.batch);
  const double error = difference(log_probs(rows, begun.batch, 1, {}), begun.completion.logps);
  check.check("drawn and trained", error < 1e-3,
              prompt.origin + ": log p of " + std::to_string(begun.completion.logps.size()) +
                  " tokens as generator and trainer compute it: difference " + scientific(error));
  check_cross_entropy(check, rows, begun.batch.targets);
  return begun.completion.token_ids;
}

}  // namespace

CheckedPrompts check_prompts(SelfCheck& check, const Recipe& recipe) {
  CheckedPrompts checked;
  checked.first = check_rows(check, recipe, "data.train", recipe.data.train);
  if (!recipe.data.eval.empty()) check_rows(check, recipe, "data.eval", recipe.data.eval);

  const c10::NoGradGuard no_grad;
  checked.greedy_ids = check_greedy(check, checked.first.at(0));
  return checked;
}

SampledLogProbs check_sampling(SelfCheck& check, const Recipe& recipe,
                               const data::PromptSample& prompt) {
  const c10::NoGradGuard no_grad;
  const models::Decoder& decoder = check.student().decoder;
  const models::Tokenizer& tokenizer = check.student().tokenizer;
  const int64_t num_ids = tokenizer.vocab_size();
  const Begun begun =
      begin_completion(check, prompt,
                       draw_options(rollout_options(recipe, decoder.config(), tokenizer), num_ids,
                                    /*greedy=*/false));

  const GenerationOptions& generation = *recipe.generation;
  SampledLogProbs log_p{.generator = at::tensor(begun.completion.sampling_logps, at::kFloat),
                        .trainer = log_probs(rows_of(decoder, begun.batch), begun.batch,
                                             generation.sampling.temperature,
                                             bias_of_drawn_ids(decoder.head(), num_ids))};
  const double error = difference(log_p.trainer, begun.completion.sampling_logps);
  const bool is_whole = generation.whole_distribution();
  check.check(
      "drawn by the recipe", !is_whole || error < 1e-3,
      "log p at temperature " + scientific(generation.sampling.temperature) +
          " as generator and trainer compute it: difference " + scientific(error) +
          (is_whole ? ""
                    : ", as top_p, top_k, min_p, typical_p, min_new_tokens or a penalty shape it"));
  return log_p;
}

}  // namespace retort::recipes
