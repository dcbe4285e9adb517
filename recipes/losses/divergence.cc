#include "recipes/losses/divergence.h"

#include <cmath>
#include <string>

namespace retort::losses {
namespace {

void require(bool ok, const char* field, const char* expected, double value) {
  if (!ok)
    throw Error(ErrorCode::kInvalidArgument, std::string(field) + " must be " + expected)
        .with(field, value);
}

}  // namespace

void DivergenceOptions::validate() const {
  require(beta >= 0 && beta <= 1, "beta", "in [0, 1]", beta);
  require(skew_lambda >= 0 && skew_lambda < 1, "skew_lambda",
          "in [0, 1): at 1 the loss is 0 whatever the student does", skew_lambda);
  require(temperature > 0 && std::isfinite(temperature), "temperature", "positive and finite",
          temperature);
  require(kd_ratio >= 0 && kd_ratio <= 1, "kd_ratio", "in [0, 1]", kd_ratio);
  require(common_vocab >= 0, "common_vocab", "a number of ids, or 0 for no limit",
          static_cast<double>(common_vocab));
  require(chunk_tokens >= 0, "chunk_tokens", "positive, or 0 for a size chosen from the shapes",
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
