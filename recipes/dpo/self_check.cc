#include "recipes/dpo/self_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "recipes/data/pair_batches.h"
#include "recipes/data/preference_dataset.h"
#include "recipes/losses/counterparts.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/preference.h"
#include "recipes/run/rows/row_warnings.h"

namespace retort::recipes {
namespace {

// Returns log p of the chosen and of the rejected completion of a batch of one pair: [2].
at::Tensor completion_log_probs(const models::Decoder& decoder, const models::PackedTokens& tokens,
                                const at::Tensor& positions, const data::PairMicroBatch& batch) {
  const at::Tensor rows = decoder.hidden(tokens).index_select(0, positions);
  const models::Head head = decoder.head();
  const at::Tensor log_probs =
      losses::linear_log_probs(rows, head.weight, {}, batch.targets, {}, head.vocab, head.softcap)
          .log_probs;
  return at::zeros({2}, log_probs.options()).index_add(0, batch.sequence_of_row, log_probs);
}

// Returns log p of both completions as one sequence that forks, which must be that of two
// sequences: [2].
at::Tensor check_shared_prompt(SelfCheck& check, const data::PairMicroBatch& batch) {
  const c10::NoGradGuard no_grad;
  const models::Decoder& decoder = check.student().decoder;
  const data::SharedPrompts shared = data::share_prompts(batch);
  const at::Tensor apart =
      completion_log_probs(decoder, batch.tokens, batch.predict_positions, batch);
  const at::Tensor forked =
      completion_log_probs(decoder, shared.tokens, shared.predict_positions, batch);

  const double error = ((apart - forked).abs() / apart.abs().clamp_min(1)).max().item<double>();
  check.check(
      "one prompt, two completions", error < 1e-4,
      "log p as two sequences and as one that forks: relative difference " + scientific(error));
  return forked;
}

// Checks the loss where policy and reference are one model, and which way its gradient points.
void check_loss(SelfCheck& check, const at::Tensor& log_probs, const data::PairShape& shape,
                const losses::PreferenceOptions& options) {
  const c10::AutoGradMode grad(true);
  const at::Tensor chosen = log_probs.narrow(0, 0, 1).clone().set_requires_grad(true);
  const at::Tensor rejected = log_probs.narrow(0, 1, 1).clone().set_requires_grad(true);
  losses::PreferenceInputs inputs{
      .policy_chosen = chosen,
      .policy_rejected = rejected,
      .reference_chosen = {},
      .reference_rejected = {},
      .chosen_tokens = at::full({1}, static_cast<double>(shape.chosen_tokens)),
      .rejected_tokens = at::full({1}, static_cast<double>(shape.rejected_tokens))};
  if (losses::needs_reference(options)) {
    inputs.reference_chosen = chosen.detach();
    inputs.reference_rejected = rejected.detach();
  }
  // Weights, where there are some, are 1 and change nothing here.
  if (options.use_weighting) inputs.pair_weights = at::full({1}, 1.0, at::kFloat);
  if (options.ld_alpha && losses::uses_chosen_nll(options)) inputs.policy_chosen_whole = chosen;
  if (losses::needs_counterparts(options))
    inputs.counterparts = losses::counterparts(chosen, rejected, chosen, rejected);

  const losses::PreferenceResult result = losses::preference_loss(inputs, options);
  const double loss = result.loss_sum.item<double>();
  if (options.loss_type == std::vector{losses::PreferenceLoss::kSigmoid} &&
      options.loss_weights.empty())
    check.check("student == reference", std::abs(loss - std::numbers::ln2) < 1e-6,
                "loss " + scientific(loss) + ", must be ln 2");

  // discopop has a maximum above margin 0: at equal models it may point away from it.
  if (std::ranges::count(options.loss_type, losses::PreferenceLoss::kDiscopop) > 0) return;
  (result.loss_sum + result.chosen_nll_sum).sum().backward();
  const double slope = (chosen.grad() - rejected.grad()).item<double>();
  check.check(
      "direction", slope < 0,
      "d loss / d (log p chosen - log p rejected) " + scientific(slope) + ", must be below 0");
}

}  // namespace

data::PairMicroBatch first_pair(SelfCheck& check, const Recipe& recipe,
                                std::shared_ptr<const data::PreferenceDataset> dataset) {
  check_first_rows(check, *dataset);
  data::PairBatchStream stream(std::move(dataset), {.seed = static_cast<uint64_t>(recipe.seed),
                                                    .rows_per_micro_batch = 1,
                                                    .shuffle = recipe.data.shuffle});
  data::PairMicroBatch batch = stream.next().micro_batches.at(0);
  for (int tries = 0; batch.pairs[0].identical && tries < 100; ++tries)
    batch = stream.next().micro_batches.at(0);

  const data::PairShape& shape = batch.shapes.at(0);
  check.check("pair", !batch.pairs[0].identical,
              batch.pairs[0].origin + ": " + std::to_string(shape.chosen_tokens) +
                  " tokens of the chosen completion, " + std::to_string(shape.rejected_tokens) +
                  " of the rejected one, which must differ");
  return batch;
}

void check_dpo_numbers(SelfCheck& check, const Recipe& recipe) {
  const models::LoadedModel& student = check.student();
  const data::PairMicroBatch batch =
      first_pair(check, recipe,
                 std::make_shared<data::PreferenceDataset>(recipe.data.train, recipe.data,
                                                           student.tokenizer, student.chat, ""));
  const at::Tensor log_probs = check_shared_prompt(check, batch);
  check_loss(check, log_probs, batch.shapes.at(0), recipe.dpo->preference());

  if (!losses::needs_reference(recipe.dpo->preference())) return;
  const std::string& role = recipe.dpo->reference;
  if (is_elsewhere(check, recipe, role)) return;
  check_vocabularies(check, models::load_model_without_chat(recipe.roles.at(role).model, "float32"),
                     role);
}

}  // namespace retort::recipes
