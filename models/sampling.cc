#include "models/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "models/kernels.h"

namespace retort::models {
namespace {

// Token ids that top_k and top_p leave, in no particular order.
std::vector<int32_t> candidates(const float* logits, int64_t vocab_size, const GenerateOptions& options) {
  std::vector<int32_t> ids(static_cast<size_t>(vocab_size));
  std::iota(ids.begin(), ids.end(), 0);
  const auto more_likely = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  if (options.top_k > 0 && options.top_k < vocab_size) {
    std::nth_element(ids.begin(), ids.begin() + options.top_k - 1, ids.end(), more_likely);
    ids.resize(static_cast<size_t>(options.top_k));
  }
  if (options.top_p >= 1.0) return ids;
  std::sort(ids.begin(), ids.end(), more_likely);
  std::vector<double> weights;
  double total = 0;
  for (int32_t id : ids) {
    weights.push_back(std::exp((static_cast<double>(logits[id]) - logits[ids[0]]) / options.temperature));
    total += weights.back();
  }
  size_t kept = 0;
  for (double before = 0; kept < ids.size() && (kept == 0 || before < options.top_p * total); ++kept) before += weights[kept];
  ids.resize(kept);
  return ids;
}

}  // namespace

Choice choose_token(const float* logits, int64_t vocab_size, const GenerateOptions& options, uint64_t sample, uint64_t position) {
  int64_t best = 0;
  const float normaliser = log_sum_exp(logits, vocab_size, &best);
  if (!std::isfinite(normaliser)) {
    throw Error(ErrorCode::kCorrupt, "the model's logits are not finite; check the weights and the dtype")
        .with("sample", sample)
        .with("position", position);
  }
  if (options.temperature > 0) {
    double largest = -INFINITY;
    for (int32_t id : candidates(logits, vocab_size, options)) {
      const double score =
          logits[id] / options.temperature + random_gumbel(options.seed, sample, position, static_cast<uint64_t>(id));
      if (score > largest) {
        largest = score;
        best = id;
      }
    }
  }
  return {static_cast<int32_t>(best), logits[best] - normaliser};
}

}  // namespace retort::models
