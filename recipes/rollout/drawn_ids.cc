#include "recipes/rollout/drawn_ids.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace retort::recipes {
namespace {

// The exponential of this bias is 0 at every temperature in use. It is finite, because zero times
// it has to be zero, which zero times infinity is not.
constexpr float kLeftOut = -1e9F;

}  // namespace

int64_t num_drawn_ids(const RunContext& context) {
  const Recipe& recipe = context.recipe();
  if (recipe.roles.at(recipe.generation->role).external) return 0;
  const int64_t known = context.tokenizer.vocab_size();
  return known < context.vocab_rows ? known : 0;
}

at::Tensor bias_of_drawn_ids(const models::Head& head, int64_t num_ids) {
  if (num_ids == 0) return {};
  const int64_t rows = head.weight.size(0);
  const int64_t begin = head.vocab.whole() ? 0 : head.vocab.begin;
  const int64_t drawn = std::clamp<int64_t>(num_ids - begin, 0, rows);
  at::Tensor bias = at::zeros({rows}, head.weight.options().dtype(at::kFloat).requires_grad(false));
  bias.narrow(0, drawn, rows - drawn).fill_(kLeftOut);
  return bias;
}

}  // namespace retort::recipes
