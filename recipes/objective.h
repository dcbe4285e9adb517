// What a recipe adds to the training loop: the loss of a micro-batch, and what must be asked for ahead of time.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder.h"
#include "recipes/data/batches.h"
#include "recipes/metrics_writer.h"

namespace retort::recipes {

// Sums over the target tokens of a step; all-reduced over dp as one fp64 vector.
struct StepSums {
  double count = 0;  // target tokens
  double loss = 0, kd = 0, ce = 0;
  double teacher_mass = 0, student_mass = 0, masked_mass = 0;
  double entropy = 0, correct = 0;
  double num_tokens = 0;  // all tokens, targets or not
  static constexpr int kFields = 10;
  std::array<double*, kFields> fields() {
    return {&count, &loss, &kd, &ce, &teacher_mass, &student_mass, &masked_mass, &entropy, &correct, &num_tokens};
  }
};

class Objective {
 public:
  virtual ~Objective() = default;
  // How many steps are announced before the one being computed.
  virtual int64_t lookahead() const { return 0; }
  // A step's batches are known; called in order of steps, each once, before loss_sum of that step. Must not wait.
  virtual void announce(int64_t step, const data::BatchStream::Step& batches);
  // Sum of the loss over the targets of micro-batch `index` of the oldest announced step; adds to `sums`. May wait for a remote
  // payload until its deadline.
  virtual at::Tensor loss_sum(const models::Decoder& student, const data::MicroBatch& batch, size_t index, StepSums& sums) = 0;
  // The step is done; adds this recipe's metrics to the row. `sums` are global. Called on every rank.
  virtual void finish_step(const StepSums& sums, MetricsRow& row);
};

}  // namespace retort::recipes
