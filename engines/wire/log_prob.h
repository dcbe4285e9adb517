// Whether a number that an engine gave is a log-probability.
#pragma once

#include <string>

namespace retort::engines {

// What some engines write for NaN and minus infinity, which JSON does not have (vLLM).
inline constexpr double kClampedLogProb = -9999.0;

// `value` as it is kept. kCorrupt, with `field`, for one above 0, NaN, infinite, or at most
// kClampedLogProb.
float checked_log_prob(double value, const std::string& field);

}  // namespace retort::engines
