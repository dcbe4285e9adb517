// Supervised fine-tuning: token cross-entropy on the target tokens, never materialising all logits.
#pragma once

#include <utility>

#include "recipes/losses/cross_entropy_type.h"
#include "recipes/run/loop/batch_objective.h"

namespace retort::recipes {

class SftObjective : public BatchObjective {
 public:
  explicit SftObjective(StepSource source,
                        losses::CrossEntropyType type = losses::CrossEntropyType::kNll)
      : BatchObjective(std::move(source)), type_(type) {}
  size_t num_values() const override { return kValues; }
  // dft's is at most 1/e a token, and falls to 0 where the model gives its targets nothing.
  bool loss_falls() const override { return type_ != losses::CrossEntropyType::kDft; }

 protected:
  at::Tensor batch_loss(const models::Head& head, const at::Tensor& rows,
                        const data::MicroBatch& batch, StepSums& sums) override;
  void add_metrics(const StepSums& sums, MetricsRow& row) override;

 private:
  enum Value : size_t { kEntropy, kCorrect, kValues };
  const losses::CrossEntropyType type_;
};

}  // namespace retort::recipes
