#include "recipes/kto/options.h"

#include "base/error.h"

namespace retort::recipes {

losses::KtoLossOptions KtoOptions::loss() const {
  return {.loss_type = loss_type,
          .beta = beta,
          .desirable_weight = desirable_weight,
          .undesirable_weight = undesirable_weight};
}

void KtoOptions::validate() const {
  loss().validate();
  if (prefetch < 1)
    throw Error(ErrorCode::kInvalidArgument,
                "prefetch must be at least 1, got " + std::to_string(prefetch));
}

}  // namespace retort::recipes
