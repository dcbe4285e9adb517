// Losses over single completions that were judged good or bad (KTO and its relative), from summed
// log-probabilities. Formulas: docs/losses.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/options.h"

namespace retort::losses {

enum class KtoLoss { kKto, kApoZeroUnpaired };

struct KtoLossOptions {
  KtoLoss loss_type = KtoLoss::kKto;
  double beta = 0.1;                // of the loss, and of the rewards in the metrics
  double desirable_weight = 1.0;    // of the loss of a desirable completion
  double undesirable_weight = 1.0;  // of the loss of an undesirable one

  // kInvalidArgument unless all three numbers are positive and finite.
  void validate() const;
};

// True if the loss compares with kl_estimate(): kto does, apo_zero_unpaired compares with 0.
bool needs_kl(const KtoLossOptions& options);

// The estimate of KL(policy || reference) that kto compares with, in nats: the mean of log pi(y') -
// log pi_ref(y') over the completions y' of a global batch, each after the prompt of another row,
// and 0 where the mean is negative. A constant of the loss: it has no gradient.
double kl_estimate(double log_ratio_sum, double count);

// B completions. Sums over a completion's tokens of log p(token), temperature 1.
struct KtoInputs {
  at::Tensor policy;            // [B] float32, may require grad
  at::Tensor reference;         // [B] float32
  std::vector<bool> desirable;  // [B]
  double kl = 0;                // kl_estimate() of the global batch; 0 unless needs_kl
};

// Sums, so that micro-batches and ranks add up: the loss of a step is
//     loss_sum / (completions of the global batch)
// which is TRL's value when the global batch is one batch of TRL.
struct KtoResult {
  at::Tensor loss_sum;  // scalar float32 with autograd
  int64_t count = 0;    // B

  // Metrics of the desirable (chosen) and the undesirable (rejected) completions, as TRL's
  // KTOTrainer names them: reward = beta * (log pi - log pi_ref), logp = log pi.
  struct Side {
    int64_t count = 0;
    double rewards_sum = 0;
    double logps_sum = 0;
  };
  Side chosen, rejected;
};

// The loss of B completions as a sum, with its gradient and metrics.
//
// Arithmetic: values and gradients are formed in one pass in float64, completion by completion,
//   without overflow on the way. NaN in gives NaN out: the trainer reports it.
// Gradient: differentiable once. B = 0 gives a zero that still reaches the policy's sums.
// Errors: kInvalidArgument for what options.validate() refuses, shapes and dtypes, a negative kl,
//   and a kl that the loss does not read.
// Collectives: none.
// Devices: vectors on any; each is read with a copy to the host, where it is computed. The scalar
//   is on the policy's.
// Threads: any.
KtoResult kto_loss(const KtoInputs& inputs, const KtoLossOptions& options);

}  // namespace retort::losses

template <>
struct retort::EnumNames<retort::losses::KtoLoss> {
  using E = retort::losses::KtoLoss;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"kto", E::kKto}, {"apo_zero_unpaired", E::kApoZeroUnpaired}}};
};
