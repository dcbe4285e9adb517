#include "recipes/run/loop/optimizer_step.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "models/decoder/decoder.h"
#include "parallel/parameter.h"
#include "parallel/vote.h"
#include "recipes/run/loop/metric_sums.h"

namespace retort::recipes {
namespace {

// Describes the first parameter of this rank, or of its adapter, that holds NaN or an infinity:
// "'model.norm.weight' holds 3 of 64 numbers that are not finite"; "" if none does. It reads every
// parameter, and on a device waits for that.
std::string damaged_weights(const models::Decoder& decoder) {
  const at::NoGradGuard no_grad;
  std::vector<parallel::NamedParameter> parameters = decoder.parameters();
  if (decoder.lora())
    for (parallel::NamedParameter& parameter : decoder.trained_parameters())
      parameters.push_back(std::move(parameter));

  for (const parallel::NamedParameter& parameter : parameters) {
    const int64_t all = parameter.value.numel();
    const int64_t finite = at::isfinite(parameter.value.detach()).sum().item<int64_t>();
    if (finite < all)
      return "'" + parameter.name + "' holds " + std::to_string(all - finite) + " of " +
             std::to_string(all) + " numbers that are not finite";
  }
  return "";
}

// A loss that is not finite is blamed on its samples, unless the weights are damaged already.
void check_finite(double value, const Objective& objective, size_t micro_batch,
                  const roles::Trainer& trainer, bool may_skip) {
  if (std::isfinite(value)) return;
  std::string what =
      "the loss is " + std::to_string(value) + " on samples " + objective.origins(micro_batch);
  const std::string damaged = damaged_weights(trainer.decoder());
  if (!damaged.empty())
    what += "; not for their sake: the student's " + damaged +
            ", in the model's files or since an update; restore the weights";
  if (!may_skip) throw Error(ErrorCode::kInvalidArgument, what);
  RETORT_LOG(kWarning) << what;
}

}  // namespace

StepSums compute_gradients(roles::Trainer& trainer, parallel::World& world, size_t micro_batches,
                           Objective& objective, bool may_skip) {
  StepSums sums;
  sums.values.resize(objective.num_values(), 0.0);
  trainer.begin_step();
  objective.begin_step(world.dp());

  // A loss is checked when its number is read: at once on the host, but on a device for all
  // micro-batches together, because each look would make the host wait for the device.
  const auto loss_of = [&](size_t i, const at::Tensor& hidden) {
    const at::Tensor loss = objective.loss_sum(trainer.decoder().head(), hidden, i, sums);
    sums.late.add(loss, [&, i](const double* value) {
      check_finite(*value, objective, i, trainer, may_skip);
      sums.loss += *value;
    });
    return loss;
  };

  if (world.pp().size() > 1) {
    trainer.run_pipeline(
        micro_batches, [&](size_t i) -> const models::PackedTokens& { return objective.tokens(i); },
        loss_of);
  } else {
    // A rank that fails in a micro-batch must say so before the backward pass that sums gradients
    // over the ranks, in which the others would wait for it: one vote, cast before the last.
    parallel::Vote vote(world.all());
    for (size_t i = 0; i < micro_batches; ++i) {
      const bool last = i + 1 == micro_batches;
      const at::Tensor loss =
          vote.attempt([&] { return loss_of(i, trainer.hidden(objective.tokens(i))); });
      if (last) vote.cast();
      trainer.backward(loss, last);
    }
  }
  // On a device the losses are checked only now, on each rank its own: the vote ends all ranks
  // before they come to the sums.
  if (!trainer.decoder().device().is_cpu())
    parallel::run_on_all(world.all(), [&] { sums.late.read(); });
  all_reduce(sums, world.dp_pp());
  return sums;
}

roles::Trainer::Update update_or_skip(roles::Trainer& trainer, double loss, double divisor,
                                      bool may_skip) {
  using NonFinite = roles::Trainer::NonFinite;
  if (std::isfinite(loss))
    return trainer.finish_step(divisor, may_skip ? NonFinite::kSkip : NonFinite::kRefuse);
  // Every rank has refused a loss of its own that is not finite, so here their sum has overflowed.
  if (!may_skip)
    throw Error(ErrorCode::kInvalidArgument, "the sum of the loss over all ranks is not finite");
  return trainer.skip_step(divisor);
}

}  // namespace retort::recipes
