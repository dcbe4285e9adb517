#include "recipes/type/plan.h"

#include <algorithm>

namespace retort::recipes {

int64_t micro_batch_tokens(const Recipe& recipe, int64_t sequences_per_row) {
  if (recipe.train.tokens_per_batch) return *recipe.train.tokens_per_batch;
  const int64_t rows = recipe.train.per_device_train_batch_size.value_or(0);
  return rows * sequences_per_row * recipe.data.max_length;
}

int64_t micro_batch_sequences(const Recipe& recipe, const RecipePlan& plan) {
  const int64_t tokens = micro_batch_tokens(recipe, plan.sequences_per_row);
  // Where the sequences of a row fork from one prompt, they are one sequence that is as long as all
  // of them.
  const int64_t each = recipe.data.max_length * (plan.forks ? plan.sequences_per_row : 1);
  return std::max<int64_t>(1, tokens / std::max<int64_t>(1, each));
}

double tokens_per_step(const Recipe& recipe, int64_t sequences_per_row) {
  return static_cast<double>(micro_batch_tokens(recipe, sequences_per_row) *
                             recipe.train.gradient_accumulation_steps * recipe.student().world.dp);
}

double rows_per_step(const Recipe& recipe) {
  const TrainOptions& train = recipe.train;
  return static_cast<double>(train.per_device_train_batch_size.value_or(0)) *
         static_cast<double>(train.gradient_accumulation_steps) *
         static_cast<double>(recipe.student().world.dp);
}

LinkPlan plan_link(const Recipe& recipe, const std::string& role, double bytes_per_token,
                   double tokens, int64_t prefetch) {
  const double bytes_per_step = bytes_per_token * tokens;
  return {.role = role,
          .bytes_per_token = bytes_per_token,
          .bytes_per_step = bytes_per_step,
          .prefetch = prefetch,
          .prefetch_bytes = bytes_per_step * static_cast<double>(prefetch + 1) /
                            static_cast<double>(recipe.student().world.dp)};
}

LinkPlan plan_reference_link(const Recipe& recipe, const std::string& role, double tokens,
                             int64_t prefetch) {
  const roles::PayloadSpec spec{.kind = roles::PayloadKind::kTargetLogProbs};
  const auto bytes_per_token = static_cast<double>(roles::payload_bytes_per_row(spec, 0, 0, 0));
  LinkPlan link = plan_link(recipe, role, bytes_per_token, tokens, prefetch);
  link.payload = spec;
  return link;
}

}  // namespace retort::recipes
