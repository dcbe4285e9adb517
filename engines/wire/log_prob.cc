#include "engines/wire/log_prob.h"

#include <cmath>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines {

float checked_log_prob(double value, const std::string& field) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kCorrupt, field + ": " + json_number(value) + " is no log-probability" +
                                         why +
                                         "; the server's weights, dtype or kernels are wrong");
  };
  if (!std::isfinite(value)) refuse("");
  if (value > 0) refuse(", which is at most 0");
  if (value <= kClampedLogProb) refuse(": it stands for NaN or minus infinity");
  return static_cast<float>(value);
}

}  // namespace retort::engines
