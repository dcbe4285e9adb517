// How far two answers to one question are apart.
#pragma once

#include <span>

#include "engines/contract/contract.h"
#include "engines/contract/engine.h"

namespace retort::engines {

// Of numbers in the same order. Equal infinities differ by 0.
Difference difference(std::span<const float> a, std::span<const float> b);
// Of given tokens, and of ids that are in the top-k of both.
Difference difference(const Scored& a, const Scored& b);
// Of both together.
Difference joined(const Difference& a, const Difference& b);

}  // namespace retort::engines
