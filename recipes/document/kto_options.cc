#include "recipes/document/kto_options.h"

namespace retort::recipes {

losses::KtoLossOptions KtoOptions::loss() const {
  return {.loss_type = loss_type,
          .beta = beta,
          .desirable_weight = desirable_weight,
          .undesirable_weight = undesirable_weight};
}

void KtoOptions::validate() const {
  loss().validate();
  check_prefetch(prefetch);
}

}  // namespace retort::recipes
