#include "recipes/rollout/held_out.h"

#include <string>
#include <utility>
#include <vector>

#include "base/sizes.h"
#include "models/generation/completion_spans.h"
#include "recipes/rollout/pass_at_k.h"

namespace retort::recipes {
namespace {

// Evaluations' requests have numbers above those of all rounds.
constexpr uint64_t kFirstEvaluation = uint64_t{1} << 41;

// Samples of evaluations have numbers above those of all others: the same ones each time.
constexpr uint64_t kFirstEvaluationSample = uint64_t{1} << 62;

// Sums over the completions of held-out prompts: of this rank, then of all dp ranks.
struct EvaluationSums {
  explicit EvaluationSums(const GenerationOptions& options)
      : pass_reward(options.eval_pass_reward),
        ks(options.eval_num_generations > 1 ? reported_ks(options.eval_num_generations)
                                            : std::vector<int64_t>()),
        passes(ks.size(), 0.0) {}

  void add(const RolloutGroup& group) {
    int64_t passed = 0;
    for (const RolloutSample& sample : group.samples) {
      reward += sample.reward.value_or(0);
      scored += sample.reward ? 1 : 0;
      count += 1;
      if (!is_lost(sample)) {
        tokens += static_cast<double>(models::num_model_tokens(sample.completion));
        ended += 1;
      }
      passed += sample.reward && *sample.reward >= pass_reward;
    }
    prompts += 1;
    for (size_t i = 0; i < ks.size(); ++i)
      passes[i] += pass_at_k(to_int64(group.samples.size()), passed, ks[i]);
  }
  void reduce(parallel::Group& dp) {
    for (double* sum : {&reward, &scored, &tokens, &count, &ended, &prompts})
      *sum = dp.all_reduce(*sum);
    for (double& sum : passes)
      sum = dp.all_reduce(sum);
  }

  double reward = 0, scored = 0, tokens = 0, count = 0, ended = 0, prompts = 0;
  double pass_reward;
  std::vector<int64_t> ks;     // none: a prompt has one completion
  std::vector<double> passes;  // of each k, over prompts
};

}  // namespace

RolloutRequest held_out_request(const data::PromptDataset& rows, parallel::Group& dp,
                                const GenerationOptions& generation, int64_t step) {
  const auto generations = static_cast<uint64_t>(generation.eval_num_generations);
  RolloutRequest request{.step = step,
                         .number = kFirstEvaluation + static_cast<uint64_t>(step),
                         .prompts = {},
                         .num_generations = generation.eval_num_generations,
                         .sample_ids = {},
                         .greedy = generations == 1};
  for (int64_t row = dp.rank(); row < rows.size(); row += dp.size())
    if (auto prompt = rows.get(row)) {
      request.prompts.push_back(std::move(*prompt));
      for (uint64_t g = 0; g < generations; ++g)
        request.sample_ids.push_back(kFirstEvaluationSample +
                                     static_cast<uint64_t>(row) * generations + g);
    }
  return request;
}

MetricsRow held_out_metrics(const Rollout& rollout, const GenerationOptions& generation,
                            parallel::Group& dp, int64_t step) {
  EvaluationSums sums(generation);
  for (const RolloutGroup& group : rollout.groups)
    sums.add(group);
  sums.reduce(dp);

  MetricsRow row{.step = step, .values = {}};
  row.add("eval_reward", sums.reward / sums.scored)
      .add("eval_num_prompts", static_cast<int64_t>(sums.prompts))
      .add("eval_num_unscorable", static_cast<int64_t>(sums.count - sums.scored))
      .add("eval_completions/mean_length", sums.tokens / sums.ended)
      .add("eval_weight_version", static_cast<int64_t>(rollout.weight_version));
  for (size_t i = 0; i < sums.ks.size(); ++i)
    row.add("eval_pass@" + std::to_string(sums.ks[i]), sums.passes[i] / sums.prompts);
  return row;
}

}  // namespace retort::recipes
