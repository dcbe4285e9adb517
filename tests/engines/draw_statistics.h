// Tests whether tokens were drawn from the distributions that they are said to come from.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace retort::engines::test {

class DrawStatistics {
 public:
  // tokens[i] was drawn where `log_probs` [N, V] has row i; probabilities of a row add up to 1.
  void add(const at::Tensor& log_probs, const std::vector<int32_t>& tokens);

  int64_t num_tokens() const { return num_tokens_; }
  // The sum of -log p of what was drawn, less its expectation (the entropies), in its standard
  // deviations: N(0, 1). Above 0 the draws are too warm, below it too cold, or cut.
  double surprise() const;
  // How often the most probable token was drawn, the second and so on, against what is expected:
  // the mean of kRanks squared errors in units of their variances, which is 1 (chi2/df).
  double rank_error() const;

  static constexpr size_t kRanks = 32;

 private:
  struct Rank {
    double drawn = 0, expected = 0, variance = 0;
  };

  int64_t num_tokens_ = 0;
  double excess_ = 0;
  double variance_ = 0;
  std::array<Rank, kRanks> ranks_;
};

}  // namespace retort::engines::test
