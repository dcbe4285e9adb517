// Which tokens of a completion the server's log-probabilities belong to.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engines/llamacpp/completion.h"

namespace retort::engines::llamacpp {

inline constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

// The log-probability of each token, kUnknown where the server says none, or where several tokens
// could be meant. `chances` is a part of the tokens in their order (Completion::chances); an entry
// is a token's own if it is matched with the same one from the left and from the right.
// kCorrupt if they are no such part.
std::vector<float> align(std::span<const int32_t> token_ids, std::span<const Chances> chances);

}  // namespace retort::engines::llamacpp
