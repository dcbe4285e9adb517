// Checks that a number of an engine's is a log-probability.
#pragma once

#include <string>

namespace retort::engines {

// Some engines (vLLM) write this for NaN and minus infinity, which JSON does not have.
inline constexpr double kClampedLogProb = -9999.0;

// `value` as it is kept. kCorrupt, with `field`, for one above 0, NaN, infinite, or at most
// kClampedLogProb.
float checked_log_prob(double value, const std::string& field);

}  // namespace retort::engines
