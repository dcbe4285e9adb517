// Measures how far two answers to one question are apart.
#pragma once

#include <span>

#include "engines/contract/contract.h"
#include "engines/contract/engine.h"

namespace retort::engines {

// The difference of numbers in the same order. Equal infinities differ by 0.
Difference difference(std::span<const float> a, std::span<const float> b);
// The difference of two answers at given tokens, and at ids that are in the top-k of both.
Difference difference(const Scored& a, const Scored& b);
// The difference over the numbers of both.
Difference joined(const Difference& a, const Difference& b);

}  // namespace retort::engines
