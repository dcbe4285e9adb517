#include "recipes/dpo/options.h"

#include "base/error.h"

namespace retort::recipes {

losses::PreferenceOptions DpoOptions::preference() const {
  return {.loss_type = loss_type,
          .loss_weights = loss_weights,
          .beta = beta,
          .label_smoothing = label_smoothing,
          .simpo_gamma = simpo_gamma};
}

void DpoOptions::validate() const {
  preference().validate();
  if (prefetch < 1)
    throw Error(ErrorCode::kInvalidArgument,
                "prefetch must be at least 1, got " + std::to_string(prefetch));
}

}  // namespace retort::recipes
