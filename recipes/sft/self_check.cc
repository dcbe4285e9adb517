#include "recipes/sft/self_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/ops/softcap.h"
#include "recipes/data/dataset.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/run/rows/row_warnings.h"

namespace retort::recipes {
namespace {

// So many target positions are examined; fp64 finite differences need no more.
constexpr int64_t kMaxRows = 16;

}  // namespace

CheckedRows rows_of(const models::Decoder& decoder, const data::MicroBatch& batch) {
  const at::Tensor positions =
      batch.predict_positions.narrow(0, 0, std::min(kMaxRows, batch.num_targets()));
  const models::Head head = decoder.head();
  return {decoder.hidden(batch.tokens).index_select(0, positions).detach().to(at::kFloat),
          head.weight.detach().to(at::kFloat), head.softcap};
}

data::MicroBatch first_batch(const Recipe& recipe, SelfCheck& check, data::SampleRule rule) {
  const models::LoadedModel& student = check.student();
  auto dataset = std::make_shared<data::Dataset>(recipe.data.train, recipe.data, student.tokenizer,
                                                 student.chat, "", std::move(rule));
  dataset->compare_prompts();
  check_first_rows(check, *dataset);
  data::BatchStream stream(dataset, {.seed = static_cast<uint64_t>(recipe.seed),
                                     .rows_per_micro_batch = 1,
                                     .max_length = recipe.data.max_length,
                                     .packing = recipe.data.packing,
                                     .shuffle = recipe.data.shuffle});
  data::MicroBatch batch = stream.next().micro_batches.at(0);
  check.check("targets", batch.num_targets() > 0,
              std::to_string(batch.num_targets()) + " in the first row");
  return batch;
}

void check_first_cross_entropy(const Recipe& recipe, SelfCheck& check,
                               losses::CrossEntropyType type) {
  const c10::NoGradGuard no_grad;
  const data::MicroBatch batch = first_batch(recipe, check);
  const CheckedRows rows = rows_of(check.student().decoder, batch);
  check_cross_entropy(check, rows, batch.targets.narrow(0, 0, rows.hidden.size(0)), type);
}

void check_cross_entropy(SelfCheck& check, const CheckedRows& rows, const at::Tensor& targets,
                         losses::CrossEntropyType type) {
  const c10::NoGradGuard no_grad;
  const auto ce = losses::linear_cross_entropy(rows.hidden, rows.weight, {}, targets, 0, {},
                                               rows.softcap, type);
  const double value = ce.loss_sum.item<double>();
  const at::Tensor logits = models::softcapped(
      at::matmul(rows.hidden.to(at::kDouble), rows.weight.to(at::kDouble).t()), rows.softcap);
  const at::Tensor log_probs = at::log_softmax(logits, 1).gather(1, targets.unsqueeze(1));
  // Dynamic fine-tuning weighs -log p of a target by p, which is a constant for the gradient: the
  // value is -p log p.
  const bool dft = type == losses::CrossEntropyType::kDft;
  const double expected = -(dft ? log_probs.exp() * log_probs : log_probs).sum().item<double>();
  check.check(dft ? "dft against fp64" : "cross-entropy against fp64",
              std::abs(value - expected) < 1e-4 * std::abs(expected),
              scientific(value) + " against " + scientific(expected));
}

}  // namespace retort::recipes
