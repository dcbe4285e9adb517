#include "recipes/grpo/options.h"

#include "base/error.h"

namespace retort::recipes {

losses::PolicyOptions GrpoOptions::policy() const {
  return {.loss_type = loss_type,
          .importance_sampling_level = importance_sampling_level,
          .epsilon = epsilon,
          .epsilon_high = epsilon_high,
          .beta = beta,
          .sampling_correction = correction(),
          .importance_sampling_cap = importance_sampling_cap};
}

losses::SamplingCorrection GrpoOptions::correction() const {
  using losses::SamplingCorrection;
  switch (sampling_correction) {
    case CorrectionChoice::kAuto:
    case CorrectionChoice::kNone: break;
    case CorrectionChoice::kTokenTruncate: return SamplingCorrection::kTokenTruncate;
    case CorrectionChoice::kTokenMask: return SamplingCorrection::kTokenMask;
    case CorrectionChoice::kSequenceTruncate: return SamplingCorrection::kSequenceTruncate;
    case CorrectionChoice::kSequenceMask: return SamplingCorrection::kSequenceMask;
  }
  return SamplingCorrection::kNone;
}

int64_t GrpoOptions::staleness_left(int64_t sync_every_steps) const {
  // Weights are pushed where a round begins, once as many steps have passed.
  const int64_t rounds = (sync_every_steps + num_iterations - 1) / num_iterations;
  const int64_t oldest = (rounds - 1) * num_iterations + (num_iterations - 1);
  return max_staleness - oldest;
}

void GrpoOptions::validate() const {
  const auto require = [](bool good, const std::string& message) {
    if (!good) throw Error(ErrorCode::kInvalidArgument, message);
  };
  policy().validate();
  require(num_iterations >= 1, "num_iterations must be at least 1");
  require(max_staleness >= 0, "max_staleness must be 0 or above");
  require(advantage == AdvantageType::kGrpo || scale_rewards == losses::ScaleRewards::kGroup,
          "scale_rewards has no effect without advantage: grpo");
}

}  // namespace retort::recipes
