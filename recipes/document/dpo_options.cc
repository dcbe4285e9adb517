#include "recipes/document/dpo_options.h"

namespace retort::recipes {

losses::PreferenceOptions DpoOptions::preference() const {
  return {.loss_type = loss_type,
          .loss_weights = loss_weights,
          .beta = beta,
          .label_smoothing = label_smoothing,
          .simpo_gamma = simpo_gamma,
          .discopop_tau = discopop_tau,
          .f_divergence_type = f_divergence_type,
          .f_alpha_divergence_coef = f_alpha_divergence_coef,
          .use_weighting = use_weighting,
          .ld_alpha = ld_alpha};
}

void DpoOptions::validate() const {
  preference().validate();
  check_prefetch(prefetch);
}

}  // namespace retort::recipes
