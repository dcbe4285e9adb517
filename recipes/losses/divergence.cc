#include "recipes/losses/divergence.h"

#include <cmath>
#include <string>

#include "recipes/losses/detail/option_check.h"

namespace retort::losses {

using detail::check_option;

void DivergenceOptions::validate() const {
  check_option(beta >= 0 && beta <= 1, "beta", "must be in [0, 1]", beta);
  check_option(skew_lambda >= 0 && skew_lambda < 1, "skew_lambda",
               "must be in [0, 1): at 1 the loss is 0 whatever the student does", skew_lambda);
  check_option(temperature > 0 && std::isfinite(temperature), "temperature",
               "must be positive and finite", temperature);
  check_option(kd_ratio >= 0 && kd_ratio <= 1, "kd_ratio", "must be in [0, 1]", kd_ratio);
  check_option(common_vocab >= 0, "common_vocab", "must be a number of ids, or 0 for no limit",
               static_cast<double>(common_vocab));
  check_option(chunk_tokens >= 0, "chunk_tokens",
               "must be positive, or 0 for a size chosen from the shapes",
               static_cast<double>(chunk_tokens));
  if (tail != Tail::kBucket && type != DivergenceType::kForwardKl)
    throw Error(
        ErrorCode::kInvalidArgument,
        "tail: " + std::string(enum_name(tail)) +
            " goes with loss_type: forward_kl only (any other divergence would be "
            "minimised by moving the student's mass out of the teacher's top-k); use tail: bucket")
        .with("loss_type", enum_name(type));
}

}  // namespace retort::losses
