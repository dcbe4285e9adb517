#include "parallel/detail/gradient_squares.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>

#include "base/sizes.h"

namespace retort::parallel::detail {
namespace {

// Blocks are summed by as many threads as there are, each as a whole, and then in their order: the
// sum has the same bits for any number of threads.
constexpr size_t kBlock = 1 << 16;

// Eight partial sums, which the compiler can keep in vector registers, are added in a fixed order.
double sum_of_squares(std::span<const float> values) {
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= values.size(); i += 8)
    for (size_t lane = 0; lane < 8; ++lane) {
      const double x = values[i + lane];
      lanes[lane] += x * x;
    }
  for (; i < values.size(); ++i)
    lanes[0] += static_cast<double>(values[i]) * values[i];
  double sum = 0;
  for (double lane : lanes)
    sum += lane;
  return sum;
}

}  // namespace

std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors) {
  if (!tensors.empty() && !tensors.front().is_cpu()) return operator_sums_of_squares(tensors);

  // The blocks of all tensors form one list, so that threads share the work evenly even if one
  // tensor is far larger than the rest.
  std::vector<std::span<const float>> blocks;
  std::vector<size_t> owners;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::span<const float> values{tensors[i].const_data_ptr<float>(),
                                        to_size(tensors[i].numel())};
    for (size_t begin = 0; begin < values.size(); begin += kBlock) {
      blocks.push_back(values.subspan(begin, std::min(kBlock, values.size() - begin)));
      owners.push_back(i);
    }
  }

  std::vector<double> squares(blocks.size());
  at::parallel_for(0, to_int64(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      squares[to_size(b)] = sum_of_squares(blocks[to_size(b)]);
  });
  std::vector<double> sums(tensors.size(), 0.0);
  for (size_t b = 0; b < blocks.size(); ++b)
    sums[owners[b]] += squares[b];
  return sums;
}

std::vector<double> operator_sums_of_squares(const std::vector<at::Tensor>& tensors) {
  std::vector<double> sums(tensors.size(), 0.0);
  std::vector<at::Tensor> filled;
  for (const at::Tensor& t : tensors)
    if (t.numel() > 0) filled.push_back(t);
  if (filled.empty()) return sums;

  const at::NoGradGuard no_grad;
  // All norms come to the host in one copy, which waits for the device once.
  const at::Tensor norms = at::stack(at::_foreach_norm(filled, 2, at::kDouble)).cpu();
  const double* norm = norms.const_data_ptr<double>();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0) continue;
    sums[i] = *norm * *norm;
    ++norm;
  }
  return sums;
}

}  // namespace retort::parallel::detail
