#include "recipes/rules/train.h"

#include <cstdint>
#include <sstream>

namespace retort::recipes {
namespace {

// Only gradients in float16 need a scale: the range of other types is wide enough.
void check_loss_scale(const TrainOptions& train, const RoleOptions& student,
                      const RecipePlaces& places) {
  if (student.dtype == FloatType::kFloat16) return;
  const TrainOptions defaults;
  const auto refuse_unless = [&](bool is_default, const char* key) {
    if (!is_default)
      places.refuse({"train", key},
                    "has no effect without roles.student.dtype: float16, whose range alone needs a "
                    "loss scale; remove the key");
  };
  refuse_unless(train.initial_loss_scale == defaults.initial_loss_scale, "initial_loss_scale");
  refuse_unless(train.min_loss_scale == defaults.min_loss_scale, "min_loss_scale");
  refuse_unless(train.loss_scale_window == defaults.loss_scale_window, "loss_scale_window");
}

}  // namespace

void check_train(const TrainOptions& train, const data::DataOptions& data,
                 const RoleOptions& student, const RecipeType& type, const RecipePlaces& places) {
  const TrainOptions defaults;
  const std::string no_eval = "has no effect without data.eval";
  // Writing `data.eval=[]` over a recipe turns its evaluations off, however often they were, so
  // that is no mistake.
  if (data.eval.empty() && !places.written({"data", "eval"})) {
    if (train.eval_steps != defaults.eval_steps) places.refuse({"train", "eval_steps"}, no_eval);
    if (train.eval_on_start) places.refuse({"train", "eval_on_start"}, no_eval);
  }
  if (data.eval.empty() && train.metric_for_best_model)
    places.refuse({"train", "metric_for_best_model"}, no_eval);
  if (student.world.dp == 1 && train.grad_bucket_bytes != defaults.grad_bucket_bytes)
    places.refuse({"train", "grad_bucket_bytes"},
                  "has no effect with roles.student.world.dp: 1, where gradients are not summed "
                  "over ranks; remove the key");
  if (train.neftune_noise_alpha && !type.adds_embedding_noise())
    places.refuse({"train", "neftune_noise_alpha"}, "is for recipe: sft; remove the key");
  check_loss_scale(train, student, places);
}

void check_least_rate(const TrainOptions& train, const RecipePlaces& places) {
  if (train.min_lr <= train.learning_rate.value()) return;
  std::ostringstream rate;
  rate << *train.learning_rate;
  places.refuse({"train", "min_lr"}, "must not be above learning_rate, which is " + rate.str() +
                                         " for this recipe where the key is left out; write both");
}

void check_no_skipped_steps(const TrainOptions& train, const RecipePlaces& places,
                            const std::string& what) {
  if (train.skip_nonfinite_steps > 0)
    places.refuse({"train", "skip_nonfinite_steps"},
                  "is not for this loss, which is formed of " + what +
                      ", before a step is known to be finite; remove the key");
}

void check_pair_batches(const TrainOptions& train, const data::DataOptions& data,
                        const RecipePlaces& places) {
  const int64_t longest = 2 * data.max_length;
  if (train.tokens_per_batch && *train.tokens_per_batch < longest)
    places.refuse({"train", "tokens_per_batch"},
                  "must be at least twice data.max_length (2 * " + std::to_string(data.max_length) +
                      "), as both completions of a pair count; raise it, or lower "
                      "data.max_length");
  if (train.batch_size_rampup_steps > 0 && train.tokens_per_batch)
    places.refuse({"train", "batch_size_rampup_steps"},
                  "batches of pairs by tokens are formed before their step is known; use "
                  "per_device_train_batch_size");
}

}  // namespace retort::recipes
