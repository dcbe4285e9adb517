#include "tests/engines/draw_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>

#include <cmath>

namespace retort::engines::test {

void DrawStatistics::add(const at::Tensor& log_probs, const std::vector<int32_t>& tokens) {
  const at::Tensor all = log_probs.to(at::kDouble);
  const at::Tensor probs = all.exp();
  const at::Tensor ids = at::tensor(tokens, at::kLong).unsqueeze(1);
  const at::Tensor drawn = all.gather(1, ids);
  num_tokens_ += static_cast<int64_t>(tokens.size());

  // -log p has the entropy as its mean.
  const at::Tensor entropy = -(probs * all).sum(-1);
  const at::Tensor variance = (probs * all * all).sum(-1) - entropy * entropy;
  excess_ += (-drawn.squeeze(1) - entropy).sum().item<double>();
  variance_ += variance.sum().item<double>();

  // The token of rank r is drawn or not: p and p (1 - p).
  const at::Tensor falling = std::get<0>(probs.sort(-1, true));
  const at::Tensor expected = falling.sum(0);
  const at::Tensor variances = (falling * (1 - falling)).sum(0);
  const at::Tensor rank = (all > drawn).sum(-1);
  for (size_t r = 0; r < kRanks; ++r) {
    const auto at = static_cast<int64_t>(r);
    ranks_[r].drawn += (rank == at).sum().item<double>();
    ranks_[r].expected += expected[at].item<double>();
    ranks_[r].variance += variances[at].item<double>();
  }
}

double DrawStatistics::surprise() const { return excess_ / std::sqrt(variance_); }

double DrawStatistics::rank_error() const {
  double sum = 0;
  for (const Rank& rank : ranks_)
    sum += (rank.drawn - rank.expected) * (rank.drawn - rank.expected) / rank.variance;
  return sum / static_cast<double>(kRanks);
}

}  // namespace retort::engines::test
