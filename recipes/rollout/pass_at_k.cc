#include "recipes/rollout/pass_at_k.h"

#include "base/error.h"

namespace retort::recipes {

double pass_at_k(int64_t num_completions, int64_t num_passed, int64_t k) {
  RETORT_CHECK(k >= 1 && k <= num_completions && num_passed <= num_completions);
  double none = 1;  // C(n - c, k) / C(n, k), factor by factor
  for (int64_t i = 0; i < k; ++i) {
    const int64_t failed = num_completions - num_passed - i;
    if (failed <= 0) return 1;
    none *= static_cast<double>(failed) / static_cast<double>(num_completions - i);
  }
  return 1 - none;
}

std::vector<int64_t> reported_ks(int64_t num_completions) {
  std::vector<int64_t> ks;
  for (int64_t k = 1; k < num_completions; k *= 2)
    ks.push_back(k);
  ks.push_back(num_completions);
  return ks;
}

}  // namespace retort::recipes
