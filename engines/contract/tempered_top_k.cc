#include "engines/contract/tempered_top_k.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"

namespace retort::engines {
namespace {

// Holds what of a raw row bounds its tail.
struct Row {
  double largest = -INFINITY;  // log-probabilities
  double smallest = 0;
  double mass = 0;
};

[[noreturn]] void refuse_row(int64_t row, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "top-k log-probabilities: " + what).with("row", row);
}

Row read_row(const double* values, int64_t k, int64_t index, double error) {
  Row row;
  for (int64_t i = 0; i < k; ++i) {
    const double value = values[i];
    if (std::isnan(value)) refuse_row(index, "not a number");
    if (value > error) refuse_row(index, "above 0: " + std::to_string(value));
    row.largest = std::max(row.largest, value);
    row.smallest = std::min(row.smallest, value);
    row.mass += std::exp(value);
  }
  if (row.largest == -INFINITY) refuse_row(index, "every one is -inf");
  // All numbers may be too high by `error`, so only a sum that is above 1 even then cannot be.
  if (row.mass * std::exp(-error) > 1 + 1e-12)
    refuse_row(index, "their probabilities sum to " + std::to_string(row.mass));
  return row;
}

// Returns the least and the largest mass of the tail at temperature T, before it is normalised.
// Both are relative to exp(scale), so that a row whose largest probability is tiny loses no digits.
std::pair<double, double> tail_masses(const Row& row, double power, int64_t others, double error,
                                      double scale) {
  if (others == 0) return {0, 0};
  const auto n = static_cast<double>(others);
  const double highest = std::exp(row.smallest + error);  // no id of the tail is above it
  // Every log-probability may be wrong by `error`, all in the same direction.
  const double most = std::min(std::max(0.0, 1 - row.mass * std::exp(-error)), n * highest);
  const double least = std::min(std::max(0.0, 1 - row.mass * std::exp(error)), most);

  // The tail's raw mass is known, but not how it lies on its ids. The sum of p^(1/T) over them is
  // at one end where all n ids are equal, and at the other where as few ids as `highest` allows
  // have the mass. With 1/T below 1 the function is concave, so that equal ids have the most; above
  // 1 they have the least.
  const auto spread = [&](double mass) {
    if (mass == 0) return 0.0;
    return n * std::exp(power * std::log(mass / n) - scale);
  };
  const auto gathered = [&](double mass) {
    if (mass == 0) return 0.0;
    return mass * std::exp((power - 1) * std::log(highest) - scale);
  };
  if (power < 1) return {gathered(least), spread(most)};
  return {spread(least), gathered(most)};
}

void check(const at::Tensor& log_probs, double temperature, int64_t vocab_rows, double error) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "tempered top-k: " + what);
  };
  if (!(temperature > 0) || !std::isfinite(temperature)) refuse("temperature must be positive");
  if (!(error >= 0) || !std::isfinite(error)) refuse("error must not be negative");
  if (!log_probs.defined() || log_probs.dim() != 2 || log_probs.size(1) < 1)
    refuse("log_probs must be [R, K] with K at least 1");
  if (!log_probs.is_floating_point() || !log_probs.is_cpu())
    refuse("log_probs must be floating point on the host");
  if (vocab_rows < log_probs.size(1))
    refuse("vocab_rows " + std::to_string(vocab_rows) + " is below K " +
           std::to_string(log_probs.size(1)));
}

}  // namespace

double TemperedTopK::mean_most_tail() const {
  return most_tail.numel() == 0 ? 0.0 : most_tail.mean().item<double>();
}

TemperedTopK tempered_top_k(const at::Tensor& log_probs, double temperature, int64_t vocab_rows,
                            double error) {
  check(log_probs, temperature, vocab_rows, error);
  const at::Tensor raw = log_probs.to(at::kDouble).contiguous();
  const int64_t rows = raw.size(0);
  const int64_t k = raw.size(1);
  const double power = 1 / temperature;

  TemperedTopK result;
  result.log_probs = at::empty({rows, k}, at::TensorOptions().dtype(at::kFloat));
  result.least_tail = at::empty({rows}, at::TensorOptions().dtype(at::kDouble));
  result.most_tail = at::empty({rows}, at::TensorOptions().dtype(at::kDouble));
  auto* out = result.log_probs.mutable_data_ptr<float>();
  auto* least = result.least_tail.mutable_data_ptr<double>();
  auto* most = result.most_tail.mutable_data_ptr<double>();

  for (int64_t r = 0; r < rows; ++r) {
    const double* values = raw.const_data_ptr<double>() + r * k;
    const Row row = read_row(values, k, r, error);

    // The K ids are taken relative to the most probable of them, so that no exp() underflows in all
    // of them.
    const double scale = power * row.largest;
    double sum = 0;
    for (int64_t i = 0; i < k; ++i)
      sum += std::exp(power * values[i] - scale);
    for (int64_t i = 0; i < k; ++i)
      out[r * k + i] = static_cast<float>(power * values[i] - scale - std::log(sum));

    const auto [low, high] = tail_masses(row, power, vocab_rows - k, error, scale);
    // The K ids may be smaller or larger by `error` too.
    const double slack = std::exp(power * error);
    least[r] = low / (sum * slack + low);
    most[r] = high / (sum / slack + high);
  }
  return result;
}

}  // namespace retort::engines
