#include "recipes/kto/self_check.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "recipes/data/unpaired_batches.h"
#include "recipes/losses/kto.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/sequence_sums.h"
#include "recipes/run/rows/row_warnings.h"

namespace retort::recipes {
namespace {

constexpr int64_t kRows = 4;

data::UnpairedMicroBatch first_rows(SelfCheck& check, const Recipe& recipe) {
  const models::LoadedModel& student = check.student();
  auto dataset = std::make_shared<data::UnpairedDataset>(recipe.data.train, recipe.data,
                                                         student.tokenizer, student.chat, "");
  check_first_rows(check, *dataset);
  data::UnpairedBatchStream stream(dataset, {.seed = static_cast<uint64_t>(recipe.seed),
                                             .rows_per_micro_batch = kRows,
                                             .shuffle = recipe.data.shuffle});
  return stream.next().micro_batches.at(0);
}

at::Tensor log_probs_of(const models::Decoder& decoder, const data::CompletionBatch& batch) {
  const at::Tensor rows = decoder.hidden(batch.tokens).index_select(0, batch.predict_positions);
  const models::Head head = decoder.head();
  const at::Tensor log_probs =
      losses::linear_log_probs(rows, head.weight, {}, batch.targets, {}, head.vocab, head.softcap)
          .log_probs;
  return losses::sum_by_sequence(log_probs, batch.sequence_of_row, batch.num_completions());
}

// Returns log p of each row's completion, with all rows in one batch; checked against the first row
// alone.
at::Tensor check_log_probs(SelfCheck& check, const Recipe& recipe,
                           const data::UnpairedMicroBatch& batch) {
  const c10::NoGradGuard no_grad;
  const models::Decoder& decoder = check.student().decoder;
  const data::UnpairedSample& first = batch.samples.at(0);
  const data::UnpairedMicroBatch alone =
      data::make_unpaired_micro_batch({{first, first.completion_ids}}, recipe.data.max_length);
  const at::Tensor together = log_probs_of(decoder, batch.own);
  const double in_batch = together[0].item<double>();
  const double by_itself = log_probs_of(decoder, alone.own)[0].item<double>();
  const double error = std::abs(in_batch - by_itself) / std::max(std::abs(by_itself), 1.0);
  check.check("rows in one batch", error < 1e-4,
              first.origin +
                  ": log p of the completion in a batch and alone: relative difference " +
                  scientific(error));
  return together;
}

// Checks the loss and its slope for a completion with this label, where the student is the
// reference.
void check_label(SelfCheck& check, const losses::KtoLossOptions& options,
                 const at::Tensor& log_prob, bool desirable) {
  const c10::AutoGradMode grad(true);
  const std::string label = desirable ? "label: true" : "label: false";
  const at::Tensor policy = log_prob.clone().set_requires_grad(true);
  const losses::KtoResult result = losses::kto_loss(
      {.policy = policy, .reference = log_prob, .desirable = {desirable}}, options);
  const double weight = desirable ? options.desirable_weight : options.undesirable_weight;
  const double loss = result.loss_sum.item<double>();
  check.check(label + ", student == reference", std::abs(loss - weight / 2) < 1e-6 * weight,
              "loss " + scientific(loss) + ", must be half the weight");

  result.loss_sum.backward();
  const double slope = policy.grad().item<double>();
  check.check(label + ", direction", desirable ? slope < 0 : slope > 0,
              "d loss / d log p " + scientific(slope) + ", must be " +
                  (desirable ? "below" : "above") + " 0");
}

}  // namespace

void check_kto_numbers(SelfCheck& check, const Recipe& recipe) {
  const data::UnpairedMicroBatch batch = first_rows(check, recipe);
  const at::Tensor log_probs = check_log_probs(check, recipe, batch);
  for (const bool desirable : {true, false})
    check_label(check, recipe.kto->loss(), log_probs.narrow(0, 0, 1), desirable);

  const std::string& role = recipe.kto->reference;
  if (is_elsewhere(check, recipe, role)) return;
  check_vocabularies(check, models::load_model_without_chat(recipe.roles.at(role).model, "float32"),
                     role);
}

}  // namespace retort::recipes
