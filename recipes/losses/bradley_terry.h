// The loss of reward models over pairs, from the scores of both completions (Bradley and Terry
// 1952, as Ouyang et al. 2022 use it). Formulas: docs/losses.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/options.h"

namespace retort::losses {

enum class RewardLoss { kBradleyTerry };

struct BradleyTerryOptions {
  // Weight of (chosen + rejected)^2, which pulls scores towards 0 (Eisenstein et al. 2023, eq. 2).
  double center_rewards_coefficient = 0.0;

  // kInvalidArgument unless it is finite and not negative.
  void validate() const;
};

// P pairs.
struct BradleyTerryInputs {
  at::Tensor chosen, rejected;  // [P] float32 scores, may require grad
  at::Tensor margin;            // [P] float32, by how much chosen should win; undefined: 0
};

// Sums, so that micro-batches and ranks add up: the loss of a step is loss_sum / pairs of the
// global batch.
struct BradleyTerryResult {
  at::Tensor loss_sum;  // scalar float32 with autograd
  int64_t count = 0;    // P

  // Metrics, as TRL's RewardTrainer names them.
  double accuracy_sum = 0;  // pairs whose chosen score is above the rejected one
  double margin_sum = 0;    // chosen - rejected, without the margin of the data
  double chosen_sum = 0, rejected_sum = 0;
};

// sum over pairs of -log sigmoid(chosen - rejected - margin) + c (chosen + rejected)^2.
//
// Arithmetic: values and gradients are formed in one pass in float64, pair by pair, without
//   overflow on the way. NaN in gives NaN out: the trainer reports it.
// Gradient: differentiable once. P = 0 gives a zero that still reaches the scores.
// Errors: kInvalidArgument for what options.validate() refuses, shapes and dtypes.
// Collectives: none.
// Devices: vectors on any; each is read with a copy to the host, where it is computed.
// Threads: any.
BradleyTerryResult bradley_terry_loss(const BradleyTerryInputs& inputs,
                                      const BradleyTerryOptions& options);

}  // namespace retort::losses

template <>
struct retort::EnumNames<retort::losses::RewardLoss> {
  using E = retort::losses::RewardLoss;
  static constexpr std::array<std::pair<std::string_view, E>, 1> values{
      {{"bradley_terry", E::kBradleyTerry}}};
};
