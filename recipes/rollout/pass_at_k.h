// How often one of k completions of a prompt passes.
#pragma once

#include <cstdint>
#include <vector>

namespace retort::recipes {

// The probability that at least one of k completions passes which are chosen from `num_completions`
// of which `num_passed` do: 1 - C(n - c, k) / C(n, k), unbiased for k drawn ones (Chen et al. 2021,
// arXiv 2107.03374). 1 <= k <= num_completions.
double pass_at_k(int64_t num_completions, int64_t num_passed, int64_t k);

// 1, 2, 4, ... and `num_completions`.
std::vector<int64_t> reported_ks(int64_t num_completions);

}  // namespace retort::recipes
