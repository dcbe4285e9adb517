// Finds the tokens that a policy is unsure of: those that a policy gradient may be restricted to.
#pragma once

#include <vector>

namespace retort::losses {

// The least entropy of the tokens that belong to the share `quantile`, in [0, 1], of highest ones:
// the (1 - quantile)-quantile of `entropies`, between two of them on the line through both
// (torch.quantile), rounded to float32. A token belongs to the share if its entropy is not below
// this: with 0 that of the highest alone, with 1 all. NaN are left out of the quantile, and belong
// to the share, so that the loss shows them. Infinity for no entropies.
//
// `entropies` is of the GLOBAL batch. Source: Wang et al. 2025 (arXiv 2506.01939); TRL 1.16's
// get_high_entropy_mask, of which one call sees a micro-batch of all processes.
float entropy_threshold(std::vector<float> entropies, double quantile);

}  // namespace retort::losses
