#include "recipes/reward_model/self_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "models/decoder/sequence_scores.h"
#include "recipes/dpo/self_check.h"
#include "recipes/reward_model/objective.h"

namespace retort::recipes {
namespace {

ScoredPairs first_scored_pair(SelfCheck& check, const Recipe& recipe) {
  const models::LoadedModel& student = check.student();
  auto dataset = std::make_shared<RewardPairs>(recipe.data.train, recipe.data, student.tokenizer,
                                               student.chat, "", *recipe.reward_model);
  return make_scored_pairs(first_pair(check, recipe, dataset), *recipe.reward_model,
                           student.decoder.config().classifier.pad_token_id);
}

// Returns the score of prompt + completion as a sequence of its own.
double score_alone(const models::Decoder& decoder, const std::vector<int32_t>& prompt,
                   const std::vector<int32_t>& completion, int64_t objective) {
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), completion.begin(), completion.end());
  const int64_t position = models::score_position(ids, decoder.config().classifier.pad_token_id);
  const at::Tensor hidden =
      decoder.hidden(models::wanting(models::pack_rows({ids}), at::full({1}, position, at::kLong)));
  return models::sequence_scores(decoder.head(), hidden)[0][objective].item<double>();
}

void check_bradley_terry(SelfCheck& check, const losses::BradleyTerryInputs& inputs,
                         const losses::BradleyTerryOptions& options) {
  const c10::AutoGradMode grad(true);
  losses::BradleyTerryInputs leaves{.chosen = inputs.chosen.clone().set_requires_grad(true),
                                    .rejected = inputs.rejected.clone().set_requires_grad(true),
                                    .margin = inputs.margin};
  const losses::BradleyTerryResult result = losses::bradley_terry_loss(leaves, options);
  const double chosen = inputs.chosen.item<double>();
  const double rejected = inputs.rejected.item<double>();
  const double margin = inputs.margin.defined() ? inputs.margin.item<double>() : 0;
  const double sum = chosen + rejected;
  // -log sigmoid(chosen - rejected - margin), and the penalty that centres rewards.
  const double expected = std::log1p(std::exp(rejected + margin - chosen)) +
                          options.center_rewards_coefficient * sum * sum;
  const double loss = result.loss_sum.item<double>();
  check.check("loss against the formula",
              std::abs(loss - expected) < 1e-5 * std::max(1.0, std::abs(expected)),
              scientific(loss) + " against " + scientific(expected));

  result.loss_sum.backward();
  const double slope = (leaves.chosen.grad() - leaves.rejected.grad()).item<double>();
  check.check("direction", slope < 0,
              "d loss / d (chosen - rejected) " + scientific(slope) + ", must be below 0");
}

}  // namespace

void check_reward_model_numbers(SelfCheck& check, const Recipe& recipe) {
  const c10::NoGradGuard no_grad;
  const models::Decoder& decoder = check.student().decoder;
  const ScoredPairs pair = first_scored_pair(check, recipe);
  const losses::BradleyTerryInputs scores =
      pair_scores(decoder.head(), decoder.hidden(pair.tokens), pair);

  const data::PreferenceSample& texts = pair.batch.pairs[0];
  const int64_t objective = pair.objectives.item<int64_t>();
  double error = 0;
  for (const auto& [completion, score] : {std::pair(texts.chosen_ids, scores.chosen),
                                          std::pair(texts.rejected_ids, scores.rejected)}) {
    const double alone = score_alone(decoder, texts.prompt_ids, completion, objective);
    error =
        std::max(error, std::abs(score.item<double>() - alone) / std::max(1.0, std::abs(alone)));
  }
  check.check("one prompt, two completions", error < 1e-4,
              "scores " + scientific(scores.chosen.item<double>()) + " and " +
                  scientific(scores.rejected.item<double>()) +
                  "; as two sequences and as one that forks: relative difference " +
                  scientific(error));
  check_bradley_terry(check, scores, recipe.reward_model->loss());
}

}  // namespace retort::recipes
