#include "recipes/losses/pair_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace retort::losses {
namespace {

std::vector<int64_t> tokens_of_sequences(const at::Tensor& sequence_of_row, int64_t sequences) {
  std::vector<int64_t> tokens(static_cast<size_t>(sequences));
  const int64_t* sequence = sequence_of_row.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < sequence_of_row.numel(); ++row)
    ++tokens.at(static_cast<size_t>(sequence[row]));
  return tokens;
}

}  // namespace

at::Tensor shared_length_weights(const at::Tensor& sequence_of_row, int64_t pairs,
                                 double ld_alpha) {
  const at::Tensor rows = sequence_of_row.contiguous();
  const std::vector<int64_t> tokens = tokens_of_sequences(rows, 2 * pairs);
  std::vector<int64_t> seen(tokens.size());
  at::Tensor weights = at::empty({rows.numel()}, at::kFloat);
  float* weight = weights.mutable_data_ptr<float>();
  for (int64_t row = 0; row < rows.numel(); ++row) {
    const auto sequence = static_cast<size_t>(rows.const_data_ptr<int64_t>()[row]);
    // Sequences 2 i and 2 i + 1 are the completions of pair i.
    const size_t chosen = sequence / 2 * 2;
    const int64_t shared = std::min(tokens[chosen], tokens[chosen + 1]);
    weight[row] = seen[sequence]++ < shared ? 1.0F : static_cast<float>(ld_alpha);
  }
  return weights;
}

at::Tensor pair_weights(const at::Tensor& log_probs, const at::Tensor& log_sum_squares,
                        const at::Tensor& sequence_of_row, int64_t pairs) {
  const at::Tensor rows = sequence_of_row.contiguous();
  const at::Tensor of_token = log_probs.detach().contiguous();
  const at::Tensor of_draw = log_sum_squares.contiguous();
  const std::vector<int64_t> tokens = tokens_of_sequences(rows, 2 * pairs);

  // WPO: the exponents of the two completions are added, which multiplies their weights. A
  // completion without tokens has exponent 0.
  std::vector<double> surplus(tokens.size());
  for (int64_t row = 0; row < rows.numel(); ++row)
    surplus[static_cast<size_t>(rows.const_data_ptr<int64_t>()[row])] +=
        static_cast<double>(of_token.const_data_ptr<float>()[row]) -
        static_cast<double>(of_draw.const_data_ptr<float>()[row]);
  at::Tensor weights = at::empty({pairs}, at::kFloat);
  for (size_t i = 0; i < static_cast<size_t>(pairs); ++i) {
    double exponent = 0;
    for (const size_t sequence : {2 * i, 2 * i + 1})
      exponent += surplus[sequence] / static_cast<double>(std::max<int64_t>(tokens[sequence], 1));
    weights.mutable_data_ptr<float>()[i] = static_cast<float>(std::exp(exponent));
  }
  return weights;
}

}  // namespace retort::losses
