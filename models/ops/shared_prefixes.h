// Packed sequences that begin alike, with what they share computed once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/ops/packed.h"

namespace retort::models {

// Tokens that neighbours must share for it to be worth a fork: below that, attention's masks cost
// about what the tokens do.
inline constexpr int64_t kLeastSharedPrefix = 16;

// The tokens given, of which some stand once for several sequences.
struct SharedPrefixes {
  PackedTokens tokens;  // with forks where sequences share
  // [N] int64 in host memory: the row of `tokens` in which each token given now stands. The same
  // tokens stand before it, at the same positions, so that its hidden state is the same.
  at::Tensor rows;
};

// Neighbouring sequences that begin with the same tokens, at least kLeastSharedPrefix of them,
// become one sequence that forks; which ones is chosen so that most tokens are saved. A function of
// the tokens alone. `tokens`: in host memory, without forks.
//
// G completions of C tokens of one prompt of P tokens become P + G C tokens instead of G (P + C).
// Time: N + S * the longest run of sequences that share.
SharedPrefixes share_prefixes(const PackedTokens& tokens);

}  // namespace retort::models
