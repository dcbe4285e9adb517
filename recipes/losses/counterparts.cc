#include "recipes/losses/counterparts.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "recipes/losses/detail/vector_arguments.h"

namespace retort::losses {
namespace {

using Numbers = std::vector<double>;

Numbers difference(const at::Tensor& of, const at::Tensor& less) {
  const detail::FloatVector left(of);
  const detail::FloatVector right(less);
  Numbers numbers(static_cast<size_t>(of.size(0)));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = left[static_cast<int64_t>(i)] - right[static_cast<int64_t>(i)];
  return numbers;
}

// Returns the indices from the least number to the largest. NaN goes last, because comparing with
// it would be no order; the sort is stable, so equal numbers stay as they were given.
std::vector<size_t> order_of(const Numbers& numbers) {
  std::vector<size_t> order(numbers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (std::isnan(numbers[a]) || std::isnan(numbers[b])) return !std::isnan(numbers[a]);
    return numbers[a] < numbers[b];
  });
  return order;
}

// to[i] = the one of `others` whose place among them is that of numbers[i].
void write_counterparts(const Numbers& numbers, const Numbers& others, double* to) {
  const std::vector<size_t> order = order_of(numbers);
  const std::vector<size_t> order_of_others = order_of(others);
  for (size_t place = 0; place < order.size(); ++place)
    to[order[place]] = others[order_of_others[place]];
}

}  // namespace

at::Tensor counterparts(const at::Tensor& policy_chosen, const at::Tensor& policy_rejected,
                        const at::Tensor& reference_chosen, const at::Tensor& reference_rejected) {
  if (!policy_chosen.defined() || policy_chosen.dim() != 1)
    throw Error(ErrorCode::kInvalidArgument,
                "policy_chosen must be [P] float32, one sum for each pair");
  const int64_t pairs = policy_chosen.size(0);
  detail::require_vector(policy_chosen, "policy_chosen", pairs);
  detail::require_vector(policy_rejected, "policy_rejected", pairs);
  detail::require_vector(reference_chosen, "reference_chosen", pairs);
  detail::require_vector(reference_rejected, "reference_rejected", pairs);

  const Numbers chosen = difference(policy_chosen, reference_chosen);
  const Numbers rejected = difference(policy_rejected, reference_rejected);
  at::Tensor result = at::empty({3, pairs}, at::kDouble);
  double* rows = result.mutable_data_ptr<double>();
  write_counterparts(difference(policy_chosen, policy_rejected),
                     difference(reference_chosen, reference_rejected), rows);
  write_counterparts(chosen, rejected, rows + pairs);
  write_counterparts(rejected, chosen, rows + 2 * pairs);
  return result;
}

}  // namespace retort::losses
