// An objective for the training loop that is its own data.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/ops/packed.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/run/loop/objective.h"

namespace retort::recipes {

// Each step is one micro-batch whose tokens follow from its number.
class NumberedObjective : public Objective {
 public:
  StepInfo next_step(int64_t step) override {
    if (step == fail_at) throw Error(ErrorCode::kMismatch, "step " + std::to_string(step));
    for (const int64_t one : without)
      step += one <= step ? 1 : 0;
    steps.push_back(step);
    std::vector<int32_t> row;
    for (int32_t i = 0; i < 9; ++i)
      row.push_back((static_cast<int32_t>(step) * 5 + i * i) % 67);
    tokens_ = models::pack_rows({row});
    return {.micro_batches = 1, .after = {.total = step}, .epoch = 0.1};
  }
  std::string origins(size_t) const override { return "row " + std::to_string(steps.back()); }
  size_t num_values() const override { return 1; }
  const models::PackedTokens& tokens(size_t) const override { return tokens_; }

  at::Tensor loss_sum(const models::Head& head, const at::Tensor& hidden, size_t,
                      StepSums& sums) override {
    const at::Tensor rows = hidden.narrow(0, 0, 8);
    const at::Tensor targets = tokens_.input_ids.narrow(0, 1, 8);
    sums.count += 8;
    sums.num_tokens += 9;
    sums.values[0] += 1;
    at::Tensor loss = losses::linear_cross_entropy(rows, head.weight, {}, targets).loss_sum;
    if (steps.back() >= flat_from) loss = loss * 0;
    if (infinite_at.contains(steps.back())) loss = loss * std::numeric_limits<double>::infinity();
    // whose derivative is finite
    if (steps.back() == lifted_at) loss = loss + std::numeric_limits<double>::infinity();
    // 0, whose derivative is not finite
    if (steps.back() == steep_at) loss = loss + (hidden.sum() * 0).sqrt();
    return loss;
  }
  void finish_step(const StepSums& sums, MetricsRow& row) override {
    row.add("batches", sums.values[0]);
  }

  std::vector<int64_t> steps;  // that were drawn
  int64_t fail_at = 0, lifted_at = 0, steep_at = 0;
  int64_t flat_from = std::numeric_limits<int64_t>::max();  // no gradient any more
  std::set<int64_t> infinite_at;
  // Steps that are left out: the one after takes the next number's tokens.
  std::set<int64_t> without;

 private:
  models::PackedTokens tokens_;
};

}  // namespace retort::recipes
